"""The validator: which values a schema takes, and how it names the place of a mistake."""

import pytest

from ratekeeper import InvalidRules
from ratekeeper.rules.validate import Place, fits

NUMBER = {"type": "integer", "minimum": 1, "maximum": 5, "title": "a number from 1 to 5"}
TABLE = {
    "type": "object",
    "properties": {"count": NUMBER, "name": {"type": "string", "pattern": "^[a-z]+$"}},
    "required": ["count"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (3, NUMBER),
        ([1, 5], {"type": "array", "items": NUMBER}),
        ({"count": 1, "name": "a"}, TABLE),
        ("b", {"enum": ["a", "b"]}),
        ("text", {"anyOf": [NUMBER, {"type": "string"}]}),
        (print, {"type": "string", "callable": True}),
    ],
)
def test_what_fits(value, schema):
    fits(Place("f: "), value, schema)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (6, NUMBER, "f: expected a number from 1 to 5, got 6."),
        (True, NUMBER, "f: expected a number from 1 to 5, got True."),
        ([1, 9], {"type": "array", "items": NUMBER}, "f: [1]: expected a number from 1 to 5, got 9."),
        ([], {"type": "array", "items": NUMBER, "minItems": 1}, "f: expected at least one, got []."),
        ({}, TABLE, "f: expected 'count': a number from 1 to 5. It is missing."),
        ({"count": 1, "nmae": "a"}, TABLE, "f: expected one of count, name, got 'nmae'. Did you mean 'name'?"),
        ({"count": 1, "zzz": "a"}, TABLE, "f: expected one of count, name, got 'zzz'. Take it out."),
        ({"count": 1, "name": "a\n"}, TABLE, "f: name: expected text, got 'a\\n'."),
        ("aa", {"enum": ["a", "b"], "title": "'a' or 'b'"}, "f: expected 'a' or 'b', got 'aa'. Did you mean 'a'?"),
        (1.5, {"anyOf": [NUMBER, {"type": "string"}], "title": "this or that"}, "f: expected this or that, got 1.5."),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(value, schema, message):
    with pytest.raises(InvalidRules) as caught:
        fits(Place("f: "), value, schema)
    assert str(caught.value) == message

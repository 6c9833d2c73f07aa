"""JSON bodies of the API: a misspelt field is an error, never a default."""

from types import SimpleNamespace

import pytest

from ratekeeper import InvalidInput
from ratekeeper.service.http.request_body import body_of, expect_fields, request_of, tuple_of


def call(body):
    return SimpleNamespace(path="/v1/check", body=body)


@pytest.mark.parametrize("body", [b'{"a": [1]}', b' {"a": [1]}', b'{"a": [1]}\r\n\t '])
def test_an_object_with_white_space_around_it(body):
    assert body_of(call(body)) == {"a": [1]}


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"", "something else"),
        (b'{"a": 1} {}', "something else"),
        (b"\xff", "something else"),
        (b"[" * 100_000, "something else"),
        (b"[1]", "list"),
        (b"null", "NoneType"),
    ],
)
def test_anything_else_is_refused(body, got):
    with pytest.raises(InvalidInput) as caught:
        body_of(call(body))
    assert str(caught.value) == f"/v1/check: expected a JSON object in the body, got {got}."


def test_a_misspelt_field_is_named():
    with pytest.raises(InvalidInput, match=r"^'csot': expected one of cost, key\. Did you mean 'cost'\?$"):
        expect_fields({"csot": 1}, frozenset({"cost", "key"}))


def test_a_key_of_parts_is_a_tuple_of_bounded_depth():
    assert tuple_of(["a", ["b", 1]]) == ("a", ("b", 1))
    deep: list = []
    for _ in range(20):
        deep = [deep]
    with pytest.raises(InvalidInput, match=r"^key: expected at most 8 lists inside each other\.$"):
        tuple_of(deep)


def test_a_described_request():
    request = request_of({"method": "POST", "path": "/a?b", "ip": "192.0.2.1", "headers": {"X-A": "1"}, "user": "ann"})
    assert (request.method, request.path, request.peer, request.value(b"x-a")) == ("POST", "/a", "192.0.2.1", "1")
    assert request.facts == {"user": "ann"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("GET /", "request: expected an object with method, path, ip, headers, got 'GET /'."),
        ({"path": 5}, "request.path: expected text, got 5."),
        ({"headers": {"a": 5}}, "request.headers: expected an object with texts, got {'a': 5}."),
        ({"facts": []}, "request.facts: expected an object, got []."),
    ],
)
def test_a_wrong_description_is_named(fields, message):
    with pytest.raises(InvalidInput) as caught:
        request_of(fields)
    assert str(caught.value) == message

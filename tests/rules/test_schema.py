"""The published JSON Schema, beside an independent validator."""

import json
import tomllib
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from ratekeeper import InvalidRules
from ratekeeper.http import headers
from ratekeeper.rules import schema as schemas
from ratekeeper.rules.parse import parse
from tests.rules.samples import EVERYTHING

SOURCE = Path(schemas.__file__).parents[1]


def test_the_shipped_schema_is_the_one_that_checks():
    assert json.loads((SOURCE / "rules.schema.json").read_text("utf-8")) == schemas.published()


RULES_FILES = ["examples/rules.toml", "examples/lab/rules.toml", "deploy/compose/rules.toml"]


@pytest.mark.parametrize("name", [*RULES_FILES, "src/ratekeeper/service/sample.toml", None])
def test_an_independent_validator_takes_every_file_that_we_take(name):
    schema = json.loads((SOURCE / "rules.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    text = EVERYTHING if name is None else (SOURCE.parent.parent / name).read_text("utf-8")
    rules = tomllib.loads(text)
    parse(rules)
    assert list(Draft202012Validator(schema).iter_errors(rules)) == []


@pytest.mark.parametrize(
    "wrong",
    [{"rulez": []}, {"rules": [{"name": "a", "limt": "1/s"}]}, {"rules": [{"name": "a", "mode": "maybe"}]},
     {"rules": [{"name": "a", "limit": 5}]}, {"rules": {"name": "a"}}],
)  # fmt: skip
def test_an_independent_validator_refuses_what_we_refuse(wrong):
    schema = json.loads((SOURCE / "rules.schema.json").read_text("utf-8"))
    assert list(Draft202012Validator(schema).iter_errors(wrong))
    with pytest.raises(InvalidRules):
        parse(wrong)


def test_every_key_is_described_and_every_dialect_is_real():
    def walk(schema, name):
        if name:
            assert schema.get("description"), name
            assert schema.get("title"), name
        for key, own in schema.get("properties", {}).items():
            walk(own, key)

    walk(schemas.RULES, "")
    walk(schemas.RULE, "")
    assert set(schemas.DIALECTS) == set(headers.DIALECTS)

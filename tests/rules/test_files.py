"""Rules files in three languages, and those that cannot be read."""

import json
import tomllib

import pytest
import yaml

from ratekeeper import InvalidRules, Policy, Request
from tests.rules.samples import EVERYTHING


def test_one_file_in_three_languages(tmp_path):
    found = tomllib.loads(EVERYTHING)
    (tmp_path / "rules.toml").write_text(EVERYTHING)
    (tmp_path / "rules.json").write_text(json.dumps(found))
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(found))
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(found))
    policies = [Policy.load(tmp_path / f"rules.{suffix}") for suffix in ("toml", "json", "yaml", "yml")]
    request = Request("POST", "/login", peer="203.0.113.9")
    assert len({str(policy.explain(request)) for policy in policies}) == 1
    assert [rule.name for rule in policies[0].rules] == ["per-ip", "search", "login", "whole-site", "admin"]
    assert policies[0].rules[2].on_store_error == "deny"
    assert policies[0].rules[0].on_store_error == "local"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("r.toml", "a = ", "r.toml: expected TOML, but Invalid value (at end of document)."),
        (
            "r.json",
            "{",
            "r.json: expected JSON, but Expecting property name enclosed in double quotes: line 1 column 2 (char 1).",
        ),
        ("r.yaml", "a: [", "r.yaml: expected YAML, but while parsing a flow node"),
        ("r.json", "[]", "r.json: expected a table of settings and rules, got list."),
        ("r.json", '{"rules": [], "rules": []}', "r.json: expected JSON, but 'rules' is given twice in one table."),
        (
            "r.yaml",
            "rules:\n- name: x\n  limit: 1/s\n  limit: 2/s",
            "r.yaml: expected YAML, but 'limit' is given twice",
        ),
        ("r.toml", "store = 'a'\nstore = 'b'", "r.toml: expected TOML, but Cannot overwrite a value"),
        ("r.ini", "", "r.ini: expected a name that ends in .toml, .yaml, .yml or .json."),
        (
            "r.yaml",
            "rules: [{name: x, limit: !!python/object:os.system {}}]",
            "r.yaml: expected YAML, but could not determine",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRules) as raised:
        Policy.load(tmp_path / name)
    assert str(raised.value).startswith(message)


def test_files_as_editors_write_them(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nname = "r"\nlimit = "1/minute"\n', "utf-8-sig")  # with a mark of byte order
    assert len(Policy.load(path).rules) == 1
    path = tmp_path / "rules.yaml"
    path.write_text("rules:\n- &one {name: r, limit: 1/minute}\n- {<<: *one, name: s}\n")
    assert [rule.name for rule in Policy.load(path).rules] == ["r", "s"]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidRules, match=r"^cannot read rules.toml: no such file"):
        Policy.load(tmp_path / "rules.toml")


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("mode: on", "mode (rule 'a'), line 4: expected 'enforce', 'shadow' or 'off', got True."),
        ("on_store_error: no", "on_store_error (rule 'a'), line 4: expected 'allow', 'deny' or 'local', got False."),
    ],
)
def test_words_that_yaml_reads_as_true_and_false_are_taught(tmp_path, line, mistake):
    path = tmp_path / "r.yaml"
    path.write_text(f"rules:\n  - name: a\n    limit: 5/minute\n    {line}\n")
    with pytest.raises(InvalidRules) as raised:
        Policy.load(path)
    advice = "YAML reads on, off, yes and no as true and false: put quotes around the word."
    assert str(raised.value) == f"r.yaml: rules[0].{mistake} {advice}"


def test_mode_off_of_yaml_is_off(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("rules:\n  - name: a\n    limit: 5/minute\n    mode: off\n")
    assert Policy.load(path).rules[0].mode == "off"

"""ratekeeper init: rules files to start from."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml

from ratekeeper import Policy
from ratekeeper.commands.init import KINDS, SCHEMA, STARTERS
from ratekeeper.rules.lint import advise
from tests.commands.command import run


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JWT_SECRET", "s" * 40)
    return tmp_path


def refused(*words):
    """The error of a command line that is wrong."""
    result = run("init", *words, "--json")
    assert result.exit_code == 2
    return json.loads(result.output)["error"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_starter_is_a_file_without_mistakes_warnings_or_advice(folder, kind):
    result = run("init", "limits.toml", "--kind", kind).output
    assert "  ratekeeper check limits.toml\n  ratekeeper serve limits.toml\n" in result
    policy = Policy.load(folder / "limits.toml", store="memory://")
    assert len(policy.rules) >= 3
    assert (list(policy.warnings), advise(policy.rules, policy.compiled.identity)) == ([], [])


def test_editors_find_the_schema_that_the_first_line_names(folder):
    run("init", "--kind", "api")
    assert (folder / "rules.toml").read_text("utf-8").startswith("#:schema rules.schema.json\n")
    assert (folder / "rules.schema.json").read_bytes() == SCHEMA.read_bytes()


def test_the_kind_is_asked_for(folder):
    assert "a website: visitors" in run("init", stdin="website\n").output
    assert 'store = "shm://website"' in (folder / "rules.toml").read_text("utf-8")


def test_nothing_is_overwritten_unless_forced(folder):
    (folder / "rules.toml").write_text("mine")
    message = "init: expected a new file, got rules.toml, which exists. Choose a name, or add --force."
    assert refused("--kind", "api") == message
    assert (folder / "rules.toml").read_text("utf-8") == "mine"
    assert not (folder / "rules.schema.json").exists()
    run("init", "--kind", "api", "--force")
    assert "[[rules]]" in (folder / "rules.toml").read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rules.yaml"], "init: expected a file that ends in .toml, got 'rules.yaml'. Rename it."),
        (["--kind", "blog"], "init: expected one of api, website, saas, internal, llm as --kind, got 'blog'."),
    ],
)
def test_mistakes_are_told(folder, words, message):
    assert refused(*words) == message
    assert list(folder.iterdir()) == []


def test_every_kind_has_its_file():
    assert sorted(path.stem for path in STARTERS.glob("*")) == sorted(KINDS)


def test_the_yaml_of_the_page_says_the_same_as_its_toml():
    page = Path(__file__).parents[2] / "docs" / "reference" / "website.yaml"
    assert yaml.safe_load(page.read_text("utf-8")) == tomllib.loads((STARTERS / "website.toml").read_text("utf-8"))
    assert Policy.load(page, store="memory://").rules

"""The commands: what they print, and the codes they exit with."""

import json
import logging

import pytest
from typer.testing import CliRunner

from ratekeeper.cli import app

RULES = """
[[rules]]
name = "login"
match = "POST /login"
limit = "5/minute fixed_window"

[[rules]]
name = "again"
match = "POST /login"
limit = "500/minute fixed_window"
"""


def run(*words, stdin=None):
    return CliRunner().invoke(app, [str(word) for word in words], input=stdin)


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(RULES)
    return path


def test_check_gives_advice(rules):
    found = run("check", rules, "--json")
    assert found.exit_code == 0
    assert json.loads(found.output)["advice"] == [
        "rule 'login' guards /login with a fixed window, which lets twice its count pass at the turn of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' guards /login with a fixed window, which lets twice its count pass at the turn of a window. "
        "Use gcra or sliding_log.",
        "rule 'again' never refuses anybody: 'login' counts the same and is stricter.",
    ]
    assert run("check", rules, "--strict").exit_code == 1


def test_check_refuses_what_cannot_be_used(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[[rules]]\nname = "a"\nlimit = "0/minute"\n')
    found = run("check", path)
    assert found.exit_code == 2
    assert "bad.toml: rules[0].limit" in found.output


def test_explain_says_which_rules_apply(rules):
    found = json.loads(run("explain", rules, "POST /login", "--ip", "198.51.100.1", "--json").output)
    assert [step["applies"] for step in found["rules"]] == [True, True]
    assert run("explain", rules, "nonsense").exit_code == 2


def test_try_makes_calls(rules):
    found = run("try", "2/hour", "--calls", "3").output
    assert found.count("admitted") == 2
    assert "again in" in found
    typed = run("try", "5/hour", stdin="\n3\np\n2\nr\n2\nx\nq\n").output
    assert typed.count("admitted") == 4
    assert typed.count("refused") == 1


def test_peek_and_reset_look_into_a_store(redis_server):
    store = f"{redis_server.url}/5?deadline=10"
    place = ["--limit", "1/hour", "--name", "cli", "--store", store]
    assert run("peek", "somebody", *place).exit_code == 0
    from ratekeeper import Limiter

    with Limiter("1/hour", name="cli", store=store) as limiter:
        limiter.check("somebody")
    found = run("peek", "somebody", *place, "--json")
    assert (found.exit_code, json.loads(found.output)["allowed"]) == (1, False)
    assert json.loads(run("keys", "--store", store, "--json").output)["keys"] == 1
    assert run("reset", "somebody", *place).exit_code == 0
    assert run("peek", "somebody", *place).exit_code == 0
    redis_server.client(db=5).flushdb()


def test_info_names_the_engine():
    assert json.loads(run("info", "--json").output)["engine"] in ("native", "pure")


def test_every_command_has_an_example_in_its_help():
    for name in ("serve", "check", "explain", "try", "keys", "peek", "reset"):
        found = run(name, "--help")
        assert found.exit_code == 0
        assert f"ratekeeper {name}" in found.output, name


@pytest.fixture
def own_logs():
    """``serve`` sets up the logs of its process; here that process is the test's."""
    log = logging.getLogger("ratekeeper")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.propagate = before[0], before[2]
    log.setLevel(before[1])


@pytest.mark.usefixtures("own_logs")
def test_serve_tells_a_mistake_and_opens_nothing(tmp_path):
    found = run("serve", tmp_path / "none.toml")
    assert found.exit_code == 2
    assert run("serve", "--http", "nonsense").exit_code == 2
    assert run("serve", "--http", "off").exit_code == 2

"""The runner finds every planted bug, and has nothing to say about a correct limiter."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import page, targets
from conformance.__main__ import main
from conformance.history import worst_interval
from conformance.judge import FAILED, NOT_JUDGED, NOT_PROMISED, PASSED, judge
from conformance.laws import LAWS
from conformance.limits import SECOND, Answer, Call, Limit, Promises
from conformance.reference.broken import BUGS
from conformance.reference.tiny import TinyTarget
from conformance.results import RESULTS
from conformance.session import CallableSession
from tests.tier import steps

ROOT = Path(__file__).parents[2]
TINY = targets.Target("tiny", "Python", "reference", lambda store: CallableSession(TinyTarget))


def test_the_tiny_limiter_keeps_every_law_that_it_promises():
    result = judge(TINY, is_quick=True)
    states = {name: cell["status"] for name, cell in result["laws"].items()}
    assert {name for name, state in states.items() if state not in (PASSED, NOT_PROMISED)} == set(), result
    assert [name for name, state in states.items() if state == PASSED] == [
        "admission", "remaining", "reset-after", "retry-after", "bound", "refusal-is-free", "key-isolation", "cost",
        "several", "long-run", "clock-step", "flood", "memory", "concurrent", "expiry",
    ]  # fmt: skip
    assert result["levels"] == {"core": PASSED, "distributed": PASSED, "http": NOT_PROMISED, "failure": NOT_PROMISED}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found_by_its_law(bug):
    result = judge(targets.find(f"broken:{bug}"), [BUGS[bug]], is_quick=True)
    assert result["laws"][BUGS[bug]]["status"] == FAILED


def test_there_are_ten_bugs_and_each_names_a_law():
    assert len(BUGS) == 10
    assert set(BUGS.values()) <= set(LAWS)


def test_a_failure_is_shown_with_a_short_history():
    cell = judge(targets.find("broken:reset-at-window-edge"), ["admission"], is_quick=True)["laws"]["admission"]
    assert cell["status"] == FAILED
    assert cell["says"].endswith("the model has the last call refused.")
    assert 2 <= len(cell["history"]) <= 15


def test_a_program_on_the_line_protocol_is_judged_alike():
    result = judge(targets.find("tiny"), ["admission", "concurrent", "flood"], is_quick=True)
    assert [cell["status"] for cell in result["laws"].values()] == [PASSED] * 3
    assert result["version"] == TinyTarget.version


@pytest.mark.full  # a few seconds each
@pytest.mark.parametrize("name", ["ratekeeper-memory", "ratekeeper-shm"])
def test_our_library_keeps_every_law(name):
    chosen = None if steps(1, 0) else ["admission", "bound", "refusal-is-free", "clock-step", "concurrent", "several"]
    result = judge(targets.find(name), chosen, is_quick=True)
    assert {law: cell for law, cell in result["laws"].items() if cell["status"] == FAILED} == {}
    assert result["levels"]["core"] == PASSED
    assert result["levels"]["distributed"] == PASSED


def test_a_law_that_is_not_promised_is_not_judged():
    class Plain(TinyTarget):
        promises = {"algorithms": ["gcra"], "clock": "virtual"}  # noqa: RUF012

    result = judge(targets.Target("plain", "Python", "peer", lambda store: CallableSession(Plain)), is_quick=True)
    states = {name: cell["status"] for name, cell in result["laws"].items()}
    assert {name for name, state in states.items() if state == PASSED} == {"admission", "bound", "long-run"}
    assert not set(states.values()) - {PASSED, NOT_PROMISED, NOT_JUDGED}


def test_a_slow_machine_does_not_look_guilty():
    """Ten calls that each took a second may have been decided at any instant of it."""
    calls = [Call(at * SECOND, (at + 1) * SECOND, "a", 1, Answer(True)) for at in range(10)]
    limit = Limit("gcra", 1, SECOND)
    assert worst_interval(calls, limit)[0] <= 1
    quick = [Call(at, at, "a", 1, Answer(True)) for at in range(3)]
    assert worst_interval(quick, limit)[0] == 3


def test_a_word_that_no_promise_has_is_an_error():
    with pytest.raises(ValueError, match="got 'refusals'"):
        Promises(("gcra",), frozenset({"refusals"}))
    with pytest.raises(ValueError, match="algorithm: expected one of fixed_window"):
        Limit("lottery", 1, SECOND)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--target", "nobody"], "target: expected a name from `python -m conformance list`"),
        (["run", "--target", "tiny", "--law", "gravity"], "law: expected one of admission, "),
        (["run", "--target", "broken:everything"], "broken: expected one of off-by-one, "),
        (["run", "--target", "resp:6380"], "target: expected resp:PORT?PROMISES.json, got resp:6380."),
    ],
)
def test_a_mistake_on_the_command_line_is_told(words, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["conformance", *words])
    assert main() == 2
    assert message in capsys.readouterr().err


def test_only_the_adapter_for_it_imports_ratekeeper():
    allowed = {"peers/python/ratekeeper_library.py"}
    folder = ROOT / "conformance"
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if any(name.split(".")[0] == "ratekeeper" for name in names):
                assert path.relative_to(folder).as_posix() in allowed, path


def test_the_suite_runs_where_no_package_is_installed():
    """With an interpreter that sees no site-packages."""
    command = [sys.executable, "-S", "-E", "-m", "conformance", "run", "--target", "tiny", "--law", "cost"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0, ran.stderr
    assert "ok   cost" in ran.stdout


def test_the_page_is_what_the_result_file_gives():
    results = json.loads(RESULTS.read_text("utf-8"))
    assert page.write_page(results, is_check=True) == 0


def test_the_published_results_have_twenty_targets_and_ours_are_green():
    results = json.loads(RESULTS.read_text("utf-8"))["targets"]
    assert len([each for each in results if "missing" not in each]) >= 20
    for each in results:
        if each["family"] != "peer":
            failed = [name for name, cell in each["laws"].items() if cell["status"] == FAILED]
            assert (each["target"], failed) == (each["target"], [])

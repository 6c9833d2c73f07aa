"""What commands print, and the codes that they exit with."""

import json

import pytest
import typer

from ratekeeper import Decision, InvalidInput, StoreUnavailable
from ratekeeper.commands.output import print_decision, report_errors


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Decision(True, 10, 5, 0.0, 5.0), "admitted  ███████████████··············· 5 of 10 left"),
        (
            Decision(True, 10, 10, 0.0, 0.0, delay=0.25),
            f"admitted  {'·' * 30} 10 of 10 left, waits 0.25 s for its turn",
        ),
        (Decision(False, 10, 0, 1.5, 5.0), f"refused   {'█' * 30} retry in 1.5 s"),
        (Decision(False, 10, 10, None, 5.0), f"refused   {'·' * 30} can never pass: at most 10 at once"),
    ],
)
def test_a_decision_is_a_bar_and_words(capsys, decision, words):
    print_decision(decision)
    assert capsys.readouterr().out.split() == words.split()  # however wide the terminal is


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InvalidInput("limit: expected a limit, got 5."), 2, "limit: expected a limit, got 5."),
        (StoreUnavailable("redis://x", "is gone"), 3, "the store does not answer: redis://x: is gone"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_an_error_is_a_message_and_a_code(capsys, error, code, text, as_json):
    with pytest.raises(typer.Exit) as ended, report_errors(as_json):
        raise error
    assert ended.value.exit_code == code
    printed = capsys.readouterr()
    if as_json:
        assert json.loads(printed.out)["error"] == text
    else:
        assert printed.err == text + "\n"

"""``ratekeeper try``: try a limit at the keyboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, out, print_decision, report_errors

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.limiter import Limiter


def complete_algorithm(incomplete: str) -> list[str]:
    """Return the algorithms that a shell may complete to."""
    from ratekeeper.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def trial(
    limit: Annotated[str, typer.Argument(help="Such as '10/minute' or '5/second burst 10'.")],
    algorithm: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Such as gcra or token_bucket.", autocompletion=complete_algorithm),
    ] = None,
    store: Annotated[
        str, typer.Option(metavar="URL", envvar="RATEKEEPER_STORE", help="URL of the store.")
    ] = "memory://",
    key: Annotated[str, typer.Option(help="The key to count.")] = "you",
    calls: Annotated[int, typer.Option(min=0, help="Make N calls and exit; 0 is interactive.")] = 0,
    as_json: bool = AS_JSON,
) -> None:
    """Try a limit: each Enter is a call, a number is a call of that cost.

    \b
    ratekeeper try "5/10 seconds" --algorithm sliding_log
    ratekeeper try "10/minute" --calls 12
    """
    from ratekeeper.limiter import Limiter

    with report_errors(as_json):
        limiter = Limiter(limit, algorithm=algorithm, store=store, name="try")  # type: ignore[arg-type]
        print_result = print_decision_json if as_json else print_decision
        if calls:
            for _ in range(calls):
                print_result(limiter.check(key))
            return
        if not as_json:
            out.print(
                f"{limiter.limits}. Enter: call; number: call of that cost; p: peek; r: reset; q: quit.", markup=False
            )
        for line in sys.stdin:
            word = line.strip().lower()
            if word in ("q", "quit", "exit"):
                break
            run_line(limiter, key, word, print_result)


def run_line(limiter: Limiter, key: str, word: str, print_result: Callable[..., None]) -> None:
    """Run one typed line."""
    if word in ("r", "reset"):
        limiter.reset(key)
        out.print("reset", style="dim")
    elif word in ("p", "peek"):
        print_result(limiter.peek(key), "would be ")
    elif not word or (word.isascii() and word.isdecimal() and int(word)):
        print_result(limiter.check(key, int(word or 1)))
    else:
        out.print("expected Enter, a cost of at least 1, p, r or q", style="yellow")


def print_decision_json(decision: Decision, would: str = "") -> None:
    """Print one decision as one line of JSON."""
    from ratekeeper.decision import decision_json

    typer.echo(json.dumps(decision_json(decision)))

"""``ratekeeper try``: feel a limit at the keyboard."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ratekeeper.commands.output import AS_JSON, mistakes, out

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.limiter import Limiter


def algorithms(incomplete: str) -> list[str]:
    """What a shell may complete."""
    from ratekeeper.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def trial(
    limit: Annotated[str, typer.Argument(help="Such as '10/minute' or '5/second burst 10'.")],
    algorithm: Annotated[str | None, typer.Option(help="gcra, token_bucket, ...", autocompletion=algorithms)] = None,
    store: Annotated[str, typer.Option(help="Where to count.")] = "memory://",
    key: Annotated[str, typer.Option(help="Who is counted.")] = "you",
    calls: Annotated[int, typer.Option(min=0, help="Make so many calls at once and end; 0: ask you.")] = 0,
    as_json: bool = AS_JSON,
) -> None:
    """Try a limit: each Enter is a call, a number is a call of that cost.

    \b
    ratekeeper try "5/10 seconds" --algorithm sliding_log
    ratekeeper try "10/minute" --calls 12
    """
    from ratekeeper.limiter import Limiter

    with mistakes(as_json):
        limiter = Limiter(limit, algorithm=algorithm, store=store, name="try")
        tell = say_json if as_json else show
        if calls:
            for _ in range(calls):
                tell(limiter.check(key))
            return
        if not as_json:
            out.print(f"{limiter.limits}. Enter: a call; a number: a call of that cost; p: peek; r: reset; q: end.",
                      markup=False)  # fmt: skip
        for line in sys.stdin:
            word = line.strip().lower()
            if word in ("q", "quit", "exit"):
                break
            answer(limiter, key, word, tell)


def answer(limiter: Limiter, key: str, word: str, tell: Callable[..., None]) -> None:
    """Do what one typed line asks."""
    if word in ("r", "reset"):
        limiter.reset(key)
        out.print("forgotten", style="dim")
    elif word in ("p", "peek"):
        tell(limiter.peek(key), "would be ")
    elif not word or (word.isascii() and word.isdecimal() and int(word)):
        tell(limiter.check(key, int(word or 1)))
    else:
        out.print("expected Enter, a cost of at least 1, p, r or q", style="yellow")


def say_json(decision: Decision, would: str = "") -> None:
    """One decision a line, for programs."""
    from ratekeeper.decision import decision_json

    typer.echo(json.dumps(decision_json(decision)))


def show(decision: Decision, would: str = "") -> None:
    width = 30
    used = width - round(width * decision.remaining / decision.limit)
    bar = "█" * used + "·" * (width - used)
    if decision.allowed:
        wait = f", its turn comes in {decision.delay:.3g} s" if decision.delay else ""
        out.print(f"[green]{would}admitted[/]  {bar} {decision.remaining} of {decision.limit} left{wait}")
    elif decision.retry_after is None:
        out.print(f"[red]{would}refused[/]   {bar} can never pass: at most {decision.limit} at once")
    else:
        out.print(f"[red]{would}refused[/]   {bar} again in {decision.retry_after:.6g} s")

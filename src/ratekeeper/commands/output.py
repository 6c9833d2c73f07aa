"""What commands print, and how they fail.

Errors go to the standard error.  Exit code 1 is a "no" (refused, or advice with --strict), 2 an error in the input,
3 a store or a service that does not answer, 130 an interrupt, 141 a reader that has closed the pipe.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer
from rich.console import Console

from ratekeeper.errors import InvalidInput, StoreUnavailable

if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.lab.text import Style


class PipedConsole(Console):
    """A console whose closed pipe is an error like any other; that of rich exits with 1, which here means "no"."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class CommandFailed(Exception):
    """Why a command cannot go on, and the code that it exits with."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


out = PipedConsole(highlight=False)
err = Console(stderr=True, highlight=False)

BROKEN_PIPE = 141  # 128 + the number of the signal, as shells have it
NO_ANSWER = 3
AS_JSON = typer.Option(False, "--json", help="Print JSON.")
WIDEST = 140  # columns of a drawing
BAR = 30  # columns of the bar of one decision


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_drawing(draw: Callable[[int, Style], str]) -> None:
    """Print what ``draw`` makes for the width and the style of this terminal."""
    from ratekeeper.lab.text import style_for

    encoding = out.encoding or "utf-8"
    text = draw(min(out.width, WIDEST), style_for(encoding, out.color_system is not None))
    typer.echo(text.encode(encoding, "replace").decode(encoding))


def print_decision(decision: Decision, would: str = "") -> None:
    """Print one decision as a bar of what is used, and in words."""
    used = BAR - round(BAR * decision.remaining / decision.limit)
    bar = "█" * used + "·" * (BAR - used)
    if decision.allowed:
        wait = f", waits {decision.delay:.3g} s for its turn" if decision.delay else ""
        out.print(f"[green]{would}admitted[/]  {bar} {decision.remaining} of {decision.limit} left{wait}")
    elif decision.retry_after is None:
        out.print(f"[red]{would}refused[/]   {bar} can never pass: at most {decision.limit} at once")
    else:
        out.print(f"[red]{would}refused[/]   {bar} retry in {decision.retry_after:.4g} s")


@contextmanager
def report_errors(as_json: bool = False) -> Iterator[None]:
    """Turn an error of the user or of the store into a message and an exit code."""
    try:
        yield
    except InvalidInput as error:
        fail(str(error), 2, as_json)
    except StoreUnavailable as error:
        fail(f"the store does not answer: {error}", NO_ANSWER, as_json)
    except CommandFailed as error:
        fail(str(error), error.code, as_json)


def fail(text: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"error": text})
    else:
        err.print(text, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)

"""What commands print, and how they fail: errors on standard error, exit code 1 for a "no", 2 for a mistake, 3 for a
store that does not answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer
from rich.console import Console

from ratekeeper.errors import InvalidInput, StoreUnavailable

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AS_JSON = typer.Option(False, "--json", help="Print JSON, for programs.")


def show_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def mistakes(as_json: bool = False) -> Iterator[None]:
    """Turn what we were told wrongly into a message and an exit code; for programs, into JSON too."""
    try:
        yield
    except InvalidInput as error:
        fail(str(error), 2, as_json)
    except StoreUnavailable as error:
        fail(f"the store does not answer: {error}", 3, as_json)


def fail(text: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        show_json({"error": text})
    else:
        err.print(text, style="red", markup=False, soft_wrap=True)
    raise typer.Exit(code)

"""What commands print, and how they fail: errors on standard error, exit code 2 for a mistake, 1 for a "no"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from ratekeeper.errors import InvalidInput, StoreUnavailable

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)

AS_JSON = typer.Option(False, "--json", help="Print JSON, for programs.")


def show_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def mistakes() -> Iterator[None]:
    """Turn what we were told wrongly into a message and an exit code."""
    try:
        yield
    except InvalidInput as error:
        err.print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None
    except StoreUnavailable as error:
        err.print(f"the store does not answer: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(3) from None

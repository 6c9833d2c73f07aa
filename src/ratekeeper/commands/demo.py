"""``ratekeeper demo``: the six algorithms, live in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Use a fake clock and show the end at once.")] = False,
) -> None:
    """Show six algorithms under the same calls for six seconds, then a rules file in front of an application.

    \b
    ratekeeper demo
    ratekeeper demo --fast

    Where nothing can be redrawn, as in a pipe, it shows the end at once.  NO_COLOR=1 turns the colours off.
    """
    from ratekeeper.demo.__main__ import show_all

    show_all(fast)

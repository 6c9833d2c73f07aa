"""A progress bar on the standard error, if that is a terminal: per cent, what was counted, and how many a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from ratekeeper.commands.output import err

Progress = Callable[[str, int, int, int], object]


@contextmanager
def progress_bar(noun: str, wanted: bool = True, clock: Callable[[], float] = monotonic) -> Iterator[Progress | None]:
    """Show a bar that counts ``noun``; yields the function that the lab calls, or None if nobody would see the bar."""
    if not wanted or not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[share]", "fields[count]")
    ]
    with Progress(columns[0], BarColumn(), *columns[1:], TimeRemainingColumn(), console=err, transient=True) as bar:
        tasks: dict[str, tuple[Any, float]] = {}

        def update(work: str, done: int, total: int, counted: int) -> None:
            if work not in tasks:
                tasks[work] = bar.add_task(work, total=total or None, share="", count=""), clock()
            task, began_at = tasks[work]
            share = f"{100 * done // total} %" if total else ""
            bar.update(task, completed=done, share=share, count=count_text(counted, noun, clock() - began_at))

        yield update


def count_text(counted: int, noun: str, seconds: float) -> str:
    """``1,200,000 lines, 310,000/s``: the rate needs a moment."""
    if not counted:
        return ""
    rate = f", {counted / seconds:,.0f}/s" if seconds >= 0.2 else ""
    return f"{counted:,} {noun}{rate}"

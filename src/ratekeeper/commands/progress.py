"""A progress bar on the standard error, if that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ratekeeper.commands.output import err

Progress = Callable[[str, int, int], object]


@contextmanager
def progress_bar(wanted: bool = True) -> Iterator[Progress | None]:
    """Show a bar; yields the function that the lab calls as it goes on, or None if nobody would see the bar."""
    if not wanted or not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)
    with Progress(name, BarColumn(), TimeRemainingColumn(), console=err, transient=True) as bar:
        tasks: dict[str, object] = {}

        def update(work: str, done: int, total: int) -> None:
            task = tasks.get(work)
            if task is None:
                task = tasks[work] = bar.add_task(work, total=total or None)
            bar.update(task, completed=done)  # type: ignore[arg-type]

        yield update

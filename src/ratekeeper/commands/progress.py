"""A bar on the standard error while long work goes on, where somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ratekeeper.commands.output import err

Progress = Callable[[str, int, int], object]


@contextmanager
def progress_bar(wanted: bool = True) -> Iterator[Progress | None]:
    """What the lab calls as it goes on; None where nobody would see it."""
    if not wanted or not err.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    words = TextColumn("{task.description}", markup=False)
    with Progress(words, BarColumn(), TimeRemainingColumn(), console=err, transient=True) as bar:
        tasks: dict[str, object] = {}

        def tell(what: str, done: int, total: int) -> None:
            task = tasks.get(what)
            if task is None:
                task = tasks[what] = bar.add_task(what, total=total or None)
            bar.update(task, completed=done)  # type: ignore[arg-type]

        yield tell

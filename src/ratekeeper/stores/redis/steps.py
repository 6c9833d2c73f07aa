"""Steps that threads and event loops share: generators that yield calls and are sent their results.

A call is a function and its arguments; an error of the call is raised where the generator yields.  ``drive`` runs the
steps with functions that block, ``adrive`` with functions that are awaited.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    T = TypeVar("T")
    Steps = Generator[tuple[Callable[..., Any], tuple[Any, ...]], Any, T]


def drive(steps: Steps[T]) -> T:
    outcome: Any = None
    step = steps.send
    while True:
        try:
            call, arguments = step(outcome)
        except StopIteration as done:
            return done.value
        try:
            outcome, step = call(*arguments), steps.send
        except BaseException as error:
            outcome, step = error, steps.throw


async def adrive(steps: Steps[T]) -> T:
    outcome: Any = None
    step = steps.send
    while True:
        try:
            call, arguments = step(outcome)
        except StopIteration as done:
            return done.value
        try:
            outcome, step = await call(*arguments), steps.send
        except BaseException as error:
            outcome, step = error, steps.throw

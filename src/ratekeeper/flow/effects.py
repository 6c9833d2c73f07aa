"""The effects that a flow yields.  A flow is a generator: it yields ``Ask`` (the store), ``Sleep``, ``Turn`` or
``Await``, is sent each outcome, and returns the answer.  ``drive.py`` runs flows for threads and for event loops, so a
flow is written once for both, and a test can run it with neither.
"""

from __future__ import annotations

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from typing import Any, TypeVar

    from ratekeeper.flow.queue import Waiter

    T = TypeVar("T")
    Flow = Generator[Any, Any, T]


class Ask:
    """Call ``operation`` of the store with these arguments; its result is sent back."""

    __slots__ = ("arguments", "operation")

    def __init__(self, operation: str, *arguments: object) -> None:
        self.operation = operation
        self.arguments = arguments


class Sleep:
    """Wait that many microseconds."""

    __slots__ = ("micros",)

    def __init__(self, micros: int) -> None:
        self.micros = micros


class Await:
    """Await what a function of the application returned; its result is sent back.  Threads cannot."""

    __slots__ = ("result",)

    def __init__(self, result: Awaitable[Any]) -> None:
        self.result = result


class Turn:
    """Wait until ``waiter`` is first in its queue, at most ``micros`` (None: for ever); sends back whether it is."""

    __slots__ = ("micros", "waiter")

    def __init__(self, waiter: Waiter, micros: int | None) -> None:
        self.waiter = waiter
        self.micros = micros

"""The simulated clock of the lab: the experiment moves it, and no call waits."""

from __future__ import annotations

from functools import partial
from operator import getitem
from typing import TYPE_CHECKING

from ratekeeper.stores import open_store

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable

    from ratekeeper.stores.protocol import Store

DEADLINE = 60.0  # real seconds for one decision: an experiment prefers a slow answer to an error


class VirtualClock:
    """A clock that stands still until it is set: ``clock.hand[0] = nanoseconds``.

    Reading it is a single C call, because every one of millions of decisions reads it.  Setting it is an item
    assignment, so the clock can be the target of a ``for`` loop.
    """

    __slots__ = ("hand", "nanos")

    def __init__(self, micros: int = 0) -> None:
        self.hand = [micros * 1000]
        self.nanos: Callable[[], int] = partial(getitem, self.hand, 0)  # type: ignore[assignment]

    def move_to(self, micros: int) -> None:
        self.hand[0] = micros * 1000

    def sleep(self, micros: int) -> None:
        self.hand[0] += max(0, micros) * 1000

    def wait(self, gate: LockType, micros: int | None) -> bool:
        if gate.acquire(False):
            return True
        self.sleep(micros or 0)  # nothing else runs in virtual time, so the lock cannot be released meanwhile
        return False

    async def asleep(self, micros: int) -> None:
        self.sleep(micros)


def open_in_virtual_time(url: str, clock: VirtualClock) -> Store:
    """Open a store that runs on ``clock``.  It has no fallback: an experiment must not mix two ways of deciding."""
    return open_store(url, clock=clock, deadline=DEADLINE, fallback=False)

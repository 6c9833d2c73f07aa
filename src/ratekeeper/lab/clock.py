"""Time as the lab tells it: whoever runs a simulation moves it, and nobody waits."""

from __future__ import annotations

from functools import partial
from operator import getitem
from typing import TYPE_CHECKING

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores import open_store

if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable

    from ratekeeper.check import Plan
    from ratekeeper.stores.protocol import Store

PATIENCE = 60.0  # seconds for one decision: nobody waits for it here


class VirtualClock:
    """A clock that stands where it was put: ``clock.hand[0] = nanoseconds``.

    Reading it is one call in C, as it is read for each of millions of decisions; setting it is an item assignment,
    so it can be the target of a ``for``.
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
        self.sleep(micros or 0)  # nobody else runs in virtual time, so nobody can open the gate meanwhile
        return False

    async def asleep(self, micros: int) -> None:
        self.sleep(micros)


def open_in_virtual_time(store: str, clock: VirtualClock) -> Store:
    """A store whose time is the lab's.  Where it cannot answer, nothing else does: that would be another experiment."""
    opened = open_store(store, clock=clock, deadline=PATIENCE)
    if opened.blocking:
        opened.fallback = Nobody()  # type: ignore[attr-defined]
    return opened


class Nobody:
    """Stands in for a store by raising."""

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> object:
        raise error or StoreUnavailable("store", "gave no answer")

    def table_for(self, layout: object, on_store_error: str | None = None) -> None:
        return None

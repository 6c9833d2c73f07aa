"""Time that a test moves, and everything in this process put on it."""

from __future__ import annotations

import heapq
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakSet

from ratekeeper.clock import following, set_default
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.units import SECOND, to_micros

if TYPE_CHECKING:
    import asyncio
    from _thread import LockType
    from collections.abc import Iterator

    from ratekeeper.units import Seconds

QUIET = 8  # turns of the event loop without news, after which everybody is taken to be waiting


class FakeClock:
    """Time that stands still until it is moved: ``clock.advance(1.5)``, exact to the microsecond.

    Waiting takes no real time: whoever would sleep moves the clock on instead.  On an event loop it moves only once
    all tasks wait, and to the earliest of them.  With ``auto=False`` waiters wait until ``advance`` lets them go.
    """

    def __init__(self, start: Seconds = 0.0, *, auto: bool = True) -> None:
        self.micros = to_micros(start, "start")
        if self.micros < 0:
            raise InvalidInput(f"FakeClock: expected a start of at least 0, got {shown(start)}.")
        self.auto = auto
        self.moved = threading.Condition()
        self.sleepers: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self.arrivals = 0
        self.jumping: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops where a jump is under way

    @property
    def now(self) -> float:
        """Seconds."""
        return self.micros / SECOND

    def nanos(self) -> int:
        return self.micros * 1000

    def advance(self, seconds: Seconds) -> None:
        """Move on; a negative number steps back, as clocks do that are set."""
        with self.moved:
            self.move_to(self.micros + to_micros(seconds, "advance"))

    def move_to(self, micros: int) -> None:
        if micros < 0:
            raise InvalidInput(f"FakeClock: expected an instant of at least 0, got {micros / SECOND} seconds.")
        with self.moved:
            self.micros = micros
            due = []
            while self.sleepers and self.sleepers[0][0] <= micros:
                due.append(heapq.heappop(self.sleepers))
            self.moved.notify_all()
        for _, _, loop, future in due:
            loop.call_soon_threadsafe(wake, future)

    def sleep(self, micros: int) -> None:
        until = self.micros + micros
        with self.moved:
            if not self.auto:
                self.moved.wait_for(lambda: self.micros >= until)
            elif until > self.micros:  # else another thread slept for longer
                self.move_to(until)

    def wait(self, gate: LockType, micros: int | None) -> bool:
        until = None if micros is None else self.micros + micros
        while not gate.acquire(True, 0.001):
            if until is not None and self.micros >= until:
                return False
        return True

    async def asleep(self, micros: int) -> None:
        import asyncio

        if micros <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self.moved:
            self.arrivals += 1
            heapq.heappush(self.sleepers, (self.micros + micros, self.arrivals, loop, future))
            begins = self.auto and loop not in self.jumping
            if begins:
                self.jumping.add(loop)
        if begins:
            loop.call_soon(self.jump, loop, self.arrivals, self.micros, QUIET)
        await future

    def jump(self, loop: asyncio.AbstractEventLoop, arrivals: int, micros: int, turns: int) -> None:
        """Move to the earliest sleeper, once nothing new has happened for some turns of the loop."""
        with self.moved:
            while self.sleepers and self.sleepers[0][3].done():  # cancelled
                heapq.heappop(self.sleepers)
            if not self.sleepers:
                self.jumping.discard(loop)
                return
            if (arrivals, micros) != (self.arrivals, self.micros):
                arrivals, micros, turns = self.arrivals, self.micros, QUIET + 1
            earliest = self.sleepers[0][0]
        if turns:
            loop.call_soon(self.jump, loop, arrivals, micros, turns - 1)
        else:
            with self.moved:
                self.move_to(max(self.micros, earliest))
            loop.call_soon(self.jump, loop, self.arrivals, self.micros, QUIET)


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextmanager
def frozen(clock: FakeClock | None = None) -> Iterator[FakeClock]:
    """Put every in-process limiter that was given no clock of its own on a FakeClock, with nothing used yet."""
    fake = FakeClock() if clock is None else clock
    forget()
    before = set_default(fake)
    try:
        yield fake
    finally:
        set_default(before)
        forget()


def forget() -> None:
    for store in following():
        store.clear()  # type: ignore[attr-defined]

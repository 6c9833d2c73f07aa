"""FakeClock: time that a test moves.  ``frozen``: every limiter of this process on such a clock."""

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

# Turns of the event loop after which the clock moves on: of a loop where no task could run, which gives input and
# output a chance, and of a loop where tasks run, but none of them sleeps, because a task may wait for the clock by
# asyncio.sleep(0).
IDLE_TURNS = 8
BUSY_TURNS = 200


class FakeClock:
    """A clock that stands still until it is moved: ``clock.advance(1.5)``, exact to the microsecond.

    A call that waits takes no real time: it moves the clock on instead.  On an event loop the clock moves once no task
    can run, and to the first time at which one can.  With ``auto=False`` calls wait until ``advance`` reaches their
    time.
    """

    def __init__(self, start: Seconds = 0.0, *, auto: bool = True) -> None:
        self.micros = to_micros(start, "start")  # the time, in microseconds
        if self.micros < 0:
            raise InvalidInput(f"FakeClock: expected a start of at least 0, got {shown(start)}.")
        self.auto = auto
        self._moved = threading.Condition()
        self._sleepers: list[tuple[int, int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []  # a heap, by time
        self._sleeps = 0  # how often tasks began to sleep
        self._jumping: WeakSet[asyncio.AbstractEventLoop] = WeakSet()  # loops that have a call of _jump scheduled

    @property
    def now(self) -> float:
        """The time, in seconds."""
        return self.micros / SECOND

    def nanos(self) -> int:
        """The time, in nanoseconds."""
        return self.micros * 1000

    def advance(self, seconds: Seconds) -> None:
        """Move on by ``seconds``; a negative number steps back, as a clock does when it is set."""
        with self._moved:
            self.move_to(self.micros + to_micros(seconds, "advance"))

    def move_to(self, micros: int) -> None:
        """Move to an instant, in microseconds."""
        if micros < 0:
            raise InvalidInput(f"FakeClock: expected an instant of at least 0, got {micros / SECOND} seconds.")
        with self._moved:
            self.micros = micros
            due = []
            while self._sleepers and self._sleepers[0][0] <= micros:
                due.append(heapq.heappop(self._sleepers))
            self._moved.notify_all()
        for _, _, loop, future in due:
            loop.call_soon_threadsafe(wake, future)

    def sleep(self, micros: int) -> None:
        """Sleep in a thread."""
        until = self.micros + micros
        with self._moved:
            if not self.auto:
                self._moved.wait_for(lambda: self.micros >= until)
            elif until > self.micros:  # else another thread slept for longer
                self.move_to(until)

    def wait(self, gate: LockType, micros: int | None) -> bool:
        """Acquire ``gate`` within ``micros``; returns whether it did."""
        until = None if micros is None else self.micros + micros
        while not gate.acquire(True, 0.001):
            if until is not None and self.micros >= until:
                return False
        return True

    async def asleep(self, micros: int) -> None:
        """Sleep in a task."""
        import asyncio

        if micros <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._moved:
            self._sleeps += 1
            heapq.heappush(self._sleepers, (self.micros + micros, self._sleeps, loop, future))
            begins = self.auto and loop not in self._jumping
            if begins:
                self._jumping.add(loop)
            seen = self._sleeps, self.micros
        if begins:
            loop.call_soon(self._jump, loop, seen, 0, 0)
        await future

    def _jump(self, loop: asyncio.AbstractEventLoop, seen: tuple[int, int], idle: int, busy: int) -> None:
        """Move to the time of the first sleeper, if no task has begun to sleep for some turns; else look again."""
        with self._moved:
            while self._sleepers and self._sleepers[0][3].done():  # cancelled
                heapq.heappop(self._sleepers)
            if not self._sleepers:
                self._jumping.discard(loop)
                return
            if seen != (self._sleeps, self.micros):
                seen, idle, busy = (self._sleeps, self.micros), 0, 0
            elif is_idle(loop):
                idle += 1
            else:
                idle, busy = 0, busy + 1
            if idle == IDLE_TURNS or busy == BUSY_TURNS:
                self.move_to(max(self.micros, self._sleepers[0][0]))
        loop.call_soon(self._jump, loop, seen, idle, busy)


def is_idle(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether no task of ``loop`` can run; always true of a loop that does not tell, such as uvloop's."""
    for handle in getattr(loop, "_ready", ()):
        callback = handle._callback
        if callback is not None and getattr(callback, "__func__", None) is not FakeClock._jump:  # None: cancelled
            return False
    return True


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@contextmanager
def frozen(clock: FakeClock | None = None) -> Iterator[FakeClock]:
    """Put every limiter of this process that was given no clock on a FakeClock, with nothing used yet."""
    fake = FakeClock() if clock is None else clock
    clear_stores()
    previous = set_default(fake)
    try:
        yield fake
    finally:
        set_default(previous)
        clear_stores()


def clear_stores() -> None:
    for store in following():
        store.clear()  # type: ignore[attr-defined]

"""FakeClock: time that a test moves.  ``frozen``: every limiter of this process on such a clock."""

from __future__ import annotations

import heapq
import threading
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from weakref import WeakSet

from ratekeeper.clock import following, set_default
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.event_loop import run_on_loop, running_loop
from ratekeeper.units import SECOND, to_micros

if TYPE_CHECKING:
    import asyncio
    from _thread import LockType
    from collections.abc import Iterator
    from typing import Any

    from ratekeeper.units import Seconds

# Turns of the event loop after which the clock moves on: of a loop where no task could run, which gives input and
# output a chance, and of a loop where tasks run, but none of them sleeps, because a task may wait for the clock by
# asyncio.sleep(0).
IDLE_TURNS = 8
BUSY_TURNS = 200
IDLE_SECONDS = 0.001  # on trio, real time: the same chance for input and output


def epoch_micros(instant: datetime) -> int:
    """Whole microseconds since 1970; a time without a zone would mean another instant on each machine."""
    if instant.tzinfo is None:
        raise InvalidInput(
            f"FakeClock: expected a datetime with a time zone, got {instant.isoformat()}. Say tzinfo=timezone.utc."
        )
    since = instant - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


class FakeClock:
    """A clock that stands still until it is moved: ``clock.advance(1.5)``, exact to the microsecond.

    A call that waits takes no real time: it moves the clock on instead.  On an event loop the clock moves once no task
    can run, and to the first time at which one can.  With ``auto=False`` calls wait until ``advance`` reaches their
    time.

    Its time is the time of day as well: ``start`` is in seconds since 1970, or a datetime with a time zone.
    """

    def __init__(self, start: Seconds | datetime = 0.0, *, auto: bool = True) -> None:
        self.micros = epoch_micros(start) if isinstance(start, datetime) else to_micros(start, "start")  # since 1970
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

        loop = running_loop()
        if micros <= 0:
            await run_on_loop(asyncio.sleep(0))
            return
        future: asyncio.Future[None] = loop.create_future()
        with self._moved:
            self._sleeps += 1
            heapq.heappush(self._sleepers, (self.micros + micros, self._sleeps, loop, future))
            begins = self.auto and loop not in self._jumping
            if begins:
                self._jumping.add(loop)
            seen = self._sleeps, self.micros
        if begins:
            if hasattr(loop, "turn_forever"):
                from trio.lowlevel import spawn_system_task

                spawn_system_task(self._jump_on_trio, loop)
            else:
                loop.call_soon(self._jump, loop, Ready(loop), seen, 0, 0)
        await future

    async def _jump_on_trio(self, loop: asyncio.AbstractEventLoop) -> None:
        """Move to the time of the first sleeper whenever no task of trio can run, until none sleeps."""
        from trio.testing import wait_all_tasks_blocked

        while True:
            await wait_all_tasks_blocked(IDLE_SECONDS)
            with self._moved:
                while self._sleepers and self._sleepers[0][3].done():  # cancelled
                    heapq.heappop(self._sleepers)
                if not self._sleepers:
                    self._jumping.discard(loop)
                    return
                self.move_to(max(self.micros, self._sleepers[0][0]))

    def _jump(self, loop: asyncio.AbstractEventLoop, ready: Ready, seen: tuple[int, int], idle: int, busy: int) -> None:
        """Move to the time of the first sleeper, if no task has begun to sleep for some turns; else look again."""
        with self._moved:
            while self._sleepers and self._sleepers[0][3].done():  # cancelled
                heapq.heappop(self._sleepers)
            if not self._sleepers:
                self._jumping.discard(loop)
                ready.close()
                return
            if seen != (self._sleeps, self.micros):
                seen, idle, busy = (self._sleeps, self.micros), 0, 0
            elif ready.is_empty():
                idle += 1
            else:
                idle, busy = 0, busy + 1
            if idle == IDLE_TURNS or busy == BUSY_TURNS:
                self.move_to(max(self.micros, self._sleepers[0][0]))
        loop.call_soon(self._jump, loop, ready, seen, idle, busy)


class Ready:
    """Knows whether anything is about to run on a loop, from one call of ``_jump`` to the next.

    A loop of asyncio shows its queue.  Another one, such as uvloop's, does not: there the calls of ``call_soon`` are
    counted, by which every task and every future schedules what comes next.  The queue is first in, first out, so if
    there was none since the last look, all that was in the queue has run.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.queue: Any = getattr(loop, "_ready", None)
        self.counted = CountedCalls.of(loop) if self.queue is None else None
        self.calls_seen = 0

    def is_empty(self) -> bool:
        if self.counted is None:
            return not any(handle._callback is not None and not is_jump(handle._callback) for handle in self.queue)
        before, self.calls_seen = self.calls_seen, self.counted.calls
        return before == self.calls_seen

    def close(self) -> None:
        if self.counted is not None:
            self.counted.release()


class CountedCalls:
    """Stands in the place of a loop's ``call_soon`` for as long as a clock uses it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.call_soon = loop.call_soon
        self.calls = 0
        self.users = 0  # clocks

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> CountedCalls:
        counted = getattr(loop.call_soon, "__self__", None)
        if not isinstance(counted, cls):
            counted = cls(loop)
            loop.call_soon = counted.count  # type: ignore[assignment, method-assign]
        counted.users += 1
        return counted

    def count(self, callback: Any, *arguments: Any, **options: Any) -> asyncio.Handle:
        self.calls += not is_jump(callback)
        return self.call_soon(callback, *arguments, **options)

    def release(self) -> None:
        self.users -= 1
        if not self.users and getattr(self.loop.call_soon, "__self__", None) is self:
            del self.loop.call_soon  # the loop's own comes to light


def is_jump(callback: Any) -> bool:
    return getattr(callback, "__func__", None) is FakeClock._jump


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

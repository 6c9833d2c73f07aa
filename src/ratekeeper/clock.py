"""Where time comes from, and how to wait for it.  The only file that sleeps.

A clock is any object with these four.  In-process decisions use the monotonic clock; a test's FakeClock
(``ratekeeper.testing``) rules all, also those that were made without it: stores that were given no clock
follow the default one, and ``set_default`` exchanges it for all of them.
"""

from __future__ import annotations

from time import monotonic_ns, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from _weakref import ReferenceType
    from typing import Protocol

    class Follower(Protocol):
        def use_clock(self, clock: Clock) -> None: ...

    class Clock(Protocol):
        def nanos(self) -> int:
            """Nanoseconds, never negative; decisions use whole microseconds of it."""

        def sleep(self, micros: int) -> None: ...

        def wait(self, gate: LockType, micros: int | None) -> bool:
            """Acquire ``gate`` within ``micros``; says whether it could."""

        async def asleep(self, micros: int) -> None: ...


# Microseconds.  An event loop waits whole milliseconds, rounded up, so it would be late by any part of one.  A wait
# aims that much too early instead, and then looks at the clock in every turn of the loop, which lets others go on;
# only where that is the smaller part of the wait, as looking takes processor time that would otherwise be idle.
AIM_BEFORE = 750
WORTH_AIMING = 3_000


class MonotonicClock:
    """The machine's monotonic clock: it never steps, whatever is done to the time of day."""

    __slots__ = ()
    nanos = staticmethod(monotonic_ns)

    def sleep(self, micros: int) -> None:
        sleep(micros / 1_000_000)

    def wait(self, gate: LockType, micros: int | None) -> bool:
        return gate.acquire(True, -1 if micros is None else min(max(0, micros) / 1_000_000, 86_400.0))

    async def asleep(self, micros: int) -> None:
        from asyncio import sleep as asleep

        if micros < WORTH_AIMING:
            await asleep(micros / 1_000_000)
            return
        until = monotonic_ns() + micros * 1000
        await asleep((micros - AIM_BEFORE) / 1_000_000)
        while monotonic_ns() < until:  # noqa: ASYNC110 - nothing tells that it is time
            await asleep(0)  # others go on meanwhile


MONOTONIC = MonotonicClock()
current: Clock = MONOTONIC
followers: dict[int, ReferenceType[Follower]] = {}


def follow(follower: Follower) -> Clock:
    """The default clock, now and after it was exchanged, for as long as ``follower`` lives."""
    from _weakref import ref

    number = id(follower)
    followers[number] = ref(follower, lambda _: followers.pop(number, None))
    return current


def set_default(clock: Clock) -> Clock:
    """Make ``clock`` the default for those that follow it and for those to come; returns the one before."""
    global current
    before, current = current, clock
    for follower in following():
        follower.use_clock(clock)
    return before


def following() -> list[Follower]:
    return [follower for reference in list(followers.values()) if (follower := reference()) is not None]

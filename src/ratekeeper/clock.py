"""The clock: where limiters read the time, and how they wait.

A clock is any object with the four methods of ``Clock``.  The default is the machine's monotonic clock.  Stores that
were given no clock follow the default, and ``set_default`` replaces it for all of them: that is how a FakeClock
(``ratekeeper.testing``) rules limiters that were made without it.
"""

from __future__ import annotations

from time import monotonic_ns, sleep, time_ns

from ratekeeper.event_loop import async_sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from _weakref import ReferenceType
    from collections.abc import Callable
    from typing import Protocol

    class FollowsDefault(Protocol):
        """A store that was given no clock."""

        def use_clock(self, clock: Clock) -> None: ...

    class Clock(Protocol):
        def nanos(self) -> int:
            """The time in nanoseconds, never negative; decisions use its whole microseconds.

            Of a clock that has no ``wall_nanos`` this is the time since 1970 as well: see ``wall``.
            """

        def sleep(self, micros: int) -> None: ...

        def wait(self, gate: LockType, micros: int | None) -> bool:
            """Acquire ``gate`` within ``micros``; returns whether it did."""

        async def asleep(self, micros: int) -> None: ...


# Microseconds.  An event loop rounds its waits up to whole milliseconds, so it wakes late.  A wait of at least
# SHORTEST_SPLIT therefore ends SPIN before its time, and then looks at the clock in every turn of the loop, in which
# other tasks go on.  A shorter wait does not: looking takes processor time, and must stay the smaller part of a wait.
SPIN = 750
SHORTEST_SPLIT = 3_000


class MonotonicClock:
    """The machine's monotonic clock: it never steps, even if the time of day is set."""

    __slots__ = ()
    nanos = staticmethod(monotonic_ns)
    wall_nanos = staticmethod(time_ns)

    def sleep(self, micros: int) -> None:
        sleep(micros / 1_000_000)

    def wait(self, gate: LockType, micros: int | None) -> bool:
        return gate.acquire(True, -1 if micros is None else min(max(0, micros) / 1_000_000, 86_400.0))

    async def asleep(self, micros: int) -> None:
        asleep = async_sleep()
        if micros < SHORTEST_SPLIT:
            await asleep(micros / 1_000_000)
            return
        until = monotonic_ns() + micros * 1000
        await asleep((micros - SPIN) / 1_000_000)
        while monotonic_ns() < until:
            await asleep(0)


def wall(clock: Clock) -> Callable[[], int]:
    """The time of day, in nanoseconds since 1970: windows that are aligned to it are decided by this one."""
    nanos: Callable[[], int] = getattr(clock, "wall_nanos", clock.nanos)
    return nanos


MONOTONIC = MonotonicClock()
current: Clock = MONOTONIC
followers: dict[int, ReferenceType[FollowsDefault]] = {}


def follow(store: FollowsDefault) -> Clock:
    """Return the default clock, and let ``store`` use each later default, for as long as it lives."""
    from _weakref import ref

    number = id(store)
    followers[number] = ref(store, lambda _: followers.pop(number, None))
    return current


def set_default(clock: Clock) -> Clock:
    """Make ``clock`` the default of all stores that were given none, now and later; returns the previous default."""
    global current
    previous, current = current, clock
    for store in following():
        store.use_clock(clock)
    return previous


def following() -> list[FollowsDefault]:
    """The stores that use the default clock."""
    return [store for reference in list(followers.values()) if (store := reference()) is not None]

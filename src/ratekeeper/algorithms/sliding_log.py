"""Sliding log: remembers when each admitted unit came, so the window truly slides.

The state is the tuple of those instants, oldest first, one for each unit of cost.

Law: never more than ``count`` in any interval of one period, wherever it starts; the price is memory,
eight bytes or more a unit.  No clock, no I/O; whole microseconds.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("3/second sliding_log")
>>> state, _ = decide(EMPTY, 0, limit, 1)
>>> state, _ = decide(state, 400_000, limit, 2)
>>> state
(0, 400000, 400000)
>>> retry_after(state, 500_000, limit, 1), retry_after(state, 500_000, limit, 2)
(500000, 900000)
>>> decide(state, 1_000_000, limit, 1)  # the first has left the window
((400000, 400000, 1000000), True)
"""

from __future__ import annotations

from _bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY: tuple[int, ...] = ()


def decide(state: tuple[int, ...], now: int, limit: Limit, cost: int) -> tuple[tuple[int, ...], bool]:
    if state and state[-1] > now:
        if state[-1] < now + limit.micros:  # the clock stepped back: it is taken to be where the newest came
            now = state[-1]
        else:  # by one period or more: nothing was admitted after now
            state = tuple([min(instant, now) for instant in state])
    gone = bisect_right(state, now - limit.micros)
    if len(state) - gone + cost > limit.count:
        return state, False
    return state[gone:] + (now,) * cost, True


def used(state: tuple[int, ...], now: int, limit: Limit) -> int:
    if state and now < state[-1] < now + limit.micros:
        now = state[-1]
    return len(state) - bisect_right(state, now - limit.micros)


def remaining(state: tuple[int, ...], now: int, limit: Limit) -> int:
    return max(0, limit.count - used(state, now, limit))


def retry_after(state: tuple[int, ...], now: int, limit: Limit, cost: int) -> int | None:
    if cost > limit.count:
        return None
    excess = used(state, now, limit) + cost - limit.count
    if excess <= 0:
        return 0
    oldest = len(state) - used(state, now, limit)
    blocking = state[oldest + excess - 1]
    if state[-1] >= now + limit.micros:
        blocking = min(blocking, now)
    return max(0, blocking + limit.micros - now)  # never negative, even of a state that a server made up


def reset_after(state: tuple[int, ...], now: int, limit: Limit) -> int:
    if not used(state, now, limit):
        return 0
    newest = state[-1]
    return max(0, (newest if newest < now + limit.micros else now) + limit.micros - now)


def delay(state: tuple[int, ...], now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: tuple[int, ...], now: int, limit: Limit, cost: int, at: int) -> tuple[int, ...]:
    """Forget ``cost`` units, the newest first of those that came no later than ``at``."""
    # What was taken at or after now, though the clock stepped back, was entered as the newest.
    end = len(state) if at >= now else bisect_right(state, at)
    return state[: max(0, end - cost)] + state[end:]


def debit(state: tuple[int, ...], now: int, limit: Limit, cost: int) -> tuple[int, ...]:
    """Enter ``cost`` units.  A full log forgets its oldest: the newest ``count`` decide when the next one fits."""
    if state and state[-1] >= now + limit.micros:
        state = tuple([min(instant, now) for instant in state])
    elif state and state[-1] > now:
        now = state[-1]
    live = state[bisect_right(state, now - limit.micros) :]
    entered = min(cost, limit.count, max(0, limit.owes - len(live)))
    return (live + (now,) * entered)[-max(limit.count, len(live)) :] if entered else state


debt = used

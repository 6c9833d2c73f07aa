"""First-use window: it starts with the first call, lasts one period, and the next call after that starts another.

The state is one number: the instant at which the window started in the high bits, the count in the low ``BITS``.

Law: at most ``count`` is admitted in a window, and windows never overlap, so up to twice that across an edge; over any
interval of length T at most ``count * (ceil(T / period) + 1)``.  No clock, no I/O; whole microseconds.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("5/second first-use")
>>> state, allowed = decide(EMPTY, 900_000, limit, 5)
>>> allowed, remaining(state, 900_000, limit), retry_after(state, 1_000_000, limit, 1)
(True, 0, 900000)
>>> decide(state, 1_899_999, limit, 1)[1], decide(state, 1_900_000, limit, 5)[1]
(False, True)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0
BITS = 52
MASK = (1 << BITS) - 1


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    start, used = state >> BITS, state & MASK
    if not used or now >= start + limit.micros:
        start, used = now, 0
    elif start >= now + limit.micros:  # the clock stepped back by a period or more: the window starts now
        start, state = now, now << BITS | used
    used += cost
    if used > limit.count:
        return state, False
    return start << BITS | used, True


def count(state: int, now: int, limit: Limit) -> int:
    return state & MASK if now < (state >> BITS) + limit.micros else 0


def until_end(state: int, now: int, limit: Limit) -> int:
    """Microseconds until the window ends; one that starts after now, as the clock stepped back, is still current."""
    start = state >> BITS
    return limit.micros if start >= now + limit.micros else start + limit.micros - now


def remaining(state: int, now: int, limit: Limit) -> int:
    return max(0, limit.count - count(state, now, limit))


def retry_after(state: int, now: int, limit: Limit, cost: int) -> int | None:
    if cost > limit.count:
        return None
    return until_end(state, now, limit) if count(state, now, limit) + cost > limit.count else 0


def reset_after(state: int, now: int, limit: Limit) -> int:
    return until_end(state, now, limit) if count(state, now, limit) else 0


def delay(state: int, now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: int, now: int, limit: Limit, cost: int, at: int) -> int:
    """Give ``cost``, taken at the instant ``at``, back: a window that has passed has nothing to give to."""
    used, start = count(state, now, limit), state >> BITS
    if start >= now + limit.micros:
        start = now
    if not used or not min(start, now) <= at < start + limit.micros:
        return state
    return start << BITS | used - cost if used > cost else EMPTY


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    used, start = count(state, now, limit), state >> BITS
    if not used or start >= now + limit.micros:
        start = now
    return start << BITS | max(used, min(used + cost, limit.owes))


debt = count

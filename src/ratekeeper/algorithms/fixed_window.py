"""Fixed window: a counter that starts again at every multiple of the period.

The state is one number: the index of the window in the high bits, the count in the low ``BITS``.

Law: at most ``count`` is admitted in a window, so up to twice that across a boundary; over any interval
of length T at most ``count * (ceil(T / period) + 1)``.  No clock, no I/O; whole microseconds.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("5/second fixed_window")
>>> state, allowed = decide(EMPTY, 900_000, limit, 5)
>>> allowed, remaining(state, 900_000, limit), retry_after(state, 900_000, limit, 1)
(True, 0, 100000)
>>> decide(state, 1_000_000, limit, 5)[1]  # the next window: ten within 100 ms
True
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0
BITS = 52
MASK = (1 << BITS) - 1


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    window = now // limit.micros
    stored = state >> BITS
    used = 0
    if stored >= window:
        used = state & MASK
        if stored > window:
            if stored == window + 1:  # the clock stepped back over the edge: the later window stays the current one
                window = stored
            else:  # further than one period: what was used counts in the present window
                state = window << BITS | used
    used += cost
    if used > limit.count:
        return state, False
    return window << BITS | used, True


def count(state: int, now: int, limit: Limit) -> int:
    return state & MASK if state >> BITS >= now // limit.micros else 0


def until_end(state: int, now: int, limit: Limit) -> int:
    """Microseconds until the current window ends: the stored one, if it is the next on the clock."""
    left = limit.micros - now % limit.micros
    return left + limit.micros if state >> BITS == now // limit.micros + 1 else left


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
    present, used = now // limit.micros, count(state, now, limit)
    window = present + 1 if state >> BITS == present + 1 else present
    if not used or not present <= at // limit.micros <= window:
        return state
    return window << BITS | used - cost if used > cost else EMPTY


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    present, used = now // limit.micros, count(state, now, limit)
    window = present + 1 if state >> BITS == present + 1 else present
    return window << BITS | max(used, min(used + cost, limit.owes))


debt = count

"""Calendar window: a counter that starts again at every midnight, Monday, first of a month or of a year of a zone.

The state is one number: the index of the window in the high bits, the count in the low ``BITS``.  Where windows begin
is ``limit.calendar``'s to know: days have 23, 24 or 25 hours, and months 28 to 31 days.

Law: at most ``count`` is admitted in a window.  No clock, no time zones, no I/O; whole microseconds since 1970.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("5/day calendar Europe/Berlin")
>>> evening = 1_774_735_200_000_000  # 2026-03-28 23:00 in Berlin, where the next day has 23 hours
>>> state, allowed = decide(EMPTY, evening, limit, 5)
>>> allowed, remaining(state, evening, limit), retry_after(state, evening, limit, 1) // 1_000_000
(True, 0, 3600)
>>> state, allowed = decide(state, evening + 3_600_000_000, limit, 5)
>>> allowed, reset_after(state, evening + 3_600_000_000, limit) // 3_600_000_000
(True, 23)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0
BITS = 52
MASK = (1 << BITS) - 1


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    window = limit.calendar.index(now)
    stored = state >> BITS
    used = 0
    if stored >= window:
        used = state & MASK
        if stored > window:
            if stored == window + 1:  # the clock stepped back over the edge: the later window stays the current one
                window = stored
            else:  # further than one window: what was used counts in the present one
                state = window << BITS | used
    used += cost
    if used > limit.count:
        return state, False
    return window << BITS | used, True


def count(state: int, now: int, limit: Limit) -> int:
    return state & MASK if state >> BITS >= limit.calendar.index(now) else 0


def until_end(state: int, now: int, limit: Limit) -> int:
    """Microseconds until the current window ends: the stored one, if it is the next on the clock."""
    window = limit.calendar.index(now)
    return limit.calendar.start(window + (2 if state >> BITS == window + 1 else 1)) - now


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
    present, used = limit.calendar.index(now), count(state, now, limit)
    window = present + 1 if state >> BITS == present + 1 else present
    if not used or not present <= limit.calendar.index(at) <= window:
        return state
    return window << BITS | used - cost if used > cost else EMPTY


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    present, used = limit.calendar.index(now), count(state, now, limit)
    window = present + 1 if state >> BITS == present + 1 else present
    return window << BITS | max(used, min(used + cost, limit.owes))


debt = count

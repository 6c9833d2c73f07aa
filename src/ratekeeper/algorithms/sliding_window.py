"""Sliding window: a few counters, the oldest weighted by how much of it still overlaps the window.

The period is cut into ``slices`` equal parts (1 by default: the classic two counters).  Counted are the
current slice, the ``slices - 1`` before it, and of the next older one the share that the window, ending
now, still covers.  The weight is exact: no rounding, no floor.

If the limit was lowered, that older slice counts as if the new limit had been used up in it, no more:
nobody waits longer than a client that has just used up the new limit.  A debt of the limit comes on top.

The state is one number of ``FIELD``-bit digits: the index of the newest slice, then the counters, newest
in the lowest digit, so that time passing is a shift.

Law: at most ``count * (1 + T / period)`` in any interval of length T, and at most ``count`` in any of
length ``period * (slices - 1) / slices``.  No clock, no I/O; a position in time is whole: now * slices.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("50/minute sliding_window")
>>> state, _ = decide(EMPTY, 0, limit, 42)
>>> state, _ = decide(state, 75_000_000, limit, 18)  # 42 * 0.75 + 18 = 49.5
>>> remaining(state, 75_000_000, limit), decide(state, 75_000_000, limit, 1)[1]
(0, False)
>>> retry_after(state, 75_000_000, limit, 1)  # 42 * w + 19 = 50 at w = 31/42
714286
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0
FIELD = 52
MASK = (1 << FIELD) - 1


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    slices = limit.slices
    width = limit.micros
    bits = FIELD * slices
    top = bits + FIELD
    position = now * slices
    newest = position // width
    counters = state & ((1 << top) - 1)
    passed = newest - (state >> top)
    if passed > 0:
        counters = counters << FIELD * passed & ((1 << top) - 1) if passed <= slices else 0
    elif passed < 0:
        if passed >= -slices:  # the clock stepped back by one period at most: it is taken to be where that slice began
            newest -= passed
            position = newest * width
        else:  # all that was counted counts in the present slice
            counters = min(limit.count, counters % MASK)
            state = newest << top | counters
    oldest = counters >> bits
    # The sum of a number's digits in base MASK + 1 is that number modulo MASK.
    room = limit.count - cost - (counters - (oldest << bits)) % MASK
    if oldest > limit.owes:  # the limit was lowered: nobody waits for more than the new limit
        oldest = limit.owes
    if room < 0 or (oldest and oldest * ((newest + 1) * width - position) > room * width):
        return state, False
    return newest << top | counters + cost, True


def unpack(state: int, now: int, limit: Limit) -> tuple[int, list[int]]:
    """The index of the current slice, and the counters from the newest to the oldest."""
    newest = now * limit.slices // limit.micros
    stored = state >> FIELD * (limit.slices + 1)
    counters = [state >> FIELD * age & MASK for age in range(limit.slices + 1)]
    if stored > newest + limit.slices:
        return newest, [min(limit.count, sum(counters))] + [0] * limit.slices
    if stored > newest:
        return stored, counters
    passed = min(newest - stored, len(counters))
    return newest, [0] * passed + counters[: len(counters) - passed]


def weighed(state: int, now: int, limit: Limit) -> int:
    """What counts at ``now``, in 1/period of a unit."""
    newest, counters = unpack(state, now, limit)
    position = max(now * limit.slices, newest * limit.micros)
    return sum(counters[:-1]) * limit.micros + min(counters[-1], limit.owes) * ((newest + 1) * limit.micros - position)


def remaining(state: int, now: int, limit: Limit) -> int:
    return max(0, limit.count - -(-weighed(state, now, limit) // limit.micros))


def retry_after(state: int, now: int, limit: Limit, cost: int) -> int | None:
    if cost > limit.count:
        return None
    newest, counters = unpack(state, now, limit)
    start = position = max(now * limit.slices, newest * limit.micros)
    while True:
        oldest, room = min(counters[-1], limit.owes), limit.count - cost - sum(counters[:-1])
        if room >= 0:  # the oldest may weigh room / oldest
            enough = (newest + 1) * limit.micros - (room * limit.micros // oldest if oldest else limit.micros)
            enough = max(start, enough)
            return -(-enough // limit.slices) - now if enough > position else 0
        newest, counters = newest + 1, [0, *counters[:-1]]
        start = newest * limit.micros


def reset_after(state: int, now: int, limit: Limit) -> int:
    newest, counters = unpack(state, now, limit)
    for age, counter in enumerate(counters):
        if counter:
            return -(-(newest - age + limit.slices + 1) * limit.micros // limit.slices) - now
    return 0


def delay(state: int, now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: int, now: int, limit: Limit, cost: int, at: int) -> int:
    """Give ``cost`` back, from the slice of the instant ``at`` and then from older ones."""
    newest, counters = unpack(state, now, limit)
    then = at * limit.slices // limit.micros
    # What was taken at or after the present slice, though the clock stepped back, was counted in the newest.
    for age in range(newest - then if then < now * limit.slices // limit.micros else 0, len(counters)):
        back = min(cost, counters[age])
        counters[age] -= back
        cost -= back
    return packed(newest, counters) if any(counters) else EMPTY


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    newest, counters = unpack(state, now, limit)
    room = limit.owes - -(-weighed(state, now, limit) // limit.micros)
    counters[0] += min(cost, max(0, room))
    return packed(newest, counters) if any(counters) else EMPTY


def packed(newest: int, counters: list[int]) -> int:
    state = newest
    for counter in reversed(counters):
        state = state << FIELD | counter
    return state


debt = weighed

"""GCRA, the generic cell rate algorithm: one stored instant decides.

The state is the *theoretical arrival time*, TAT: the instant at which everything admitted so far
will have drained.  Admit when the new TAT lies at most one full burst ahead of now.

Law: in any interval of length T at most ``burst + T / interval`` is admitted.
No clock, no I/O.  Instants are whole microseconds outside.  Inside, one microsecond is ``limit.drain`` *ticks* and one
unit of cost is ``limit.unit`` ticks, both whole, so nothing is rounded.

A state is the TAT in microseconds, and behind it, in ``FRACTION`` bits, the ticks left over.  That instant means the
same at every rate: a key that has used four fifths of its burst has still done so after the count has changed.  Only
the ticks left over are then those of another rate; they count as less than a microsecond.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("10/second burst 2")  # one per 100,000 microseconds
>>> state, allowed = decide(EMPTY, 0, limit, 2)  # the whole burst at once
>>> allowed, remaining(state, 0, limit), reset_after(state, 0, limit)
(True, 0, 200000)
>>> decide(state, 99_999, limit, 1) == (state, False), retry_after(state, 99_999, limit, 1)
(True, 1)
>>> decide(state, 100_000, limit, 1)[1]
True

ITU-T I.371 (virtual scheduling); ATM Forum TM 4.0, section 4.4.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0
FRACTION = 26  # bits: a microsecond has 2^26 ticks at most
TICKS = (1 << FRACTION) - 1
MARK = 1 << 52 + FRACTION  # 2^52 microseconds, after any clock: added to a state that owes more than a check can take


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    drain = limit.drain
    tat = state >> FRACTION
    if drain == 1:  # no ticks are left over
        tat = (tat if tat > now else now) + cost * limit.unit
        return (tat << FRACTION, True) if tat <= now + limit.full else beyond(state, now, limit, cost)
    ticks = cost * limit.unit
    if tat >= now:
        rest = state & TICKS
        ticks += (tat - now) * drain + (rest if rest < drain else drain - 1)
    if ticks > limit.full:
        return beyond(state, now, limit, cost)
    return now + ticks // drain << FRACTION | ticks % drain, True


def beyond(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    """Decide where the cost did not fit: a refusal leaves the state as it is, unless it is above the ceiling."""
    if state < MARK:
        if ticks_ahead(state, now, limit) > limit.ceiling:  # the clock stepped back far, or the limit was changed
            return instant(limit.ceiling, now, limit), False
        return state, False
    tat = ticks_ahead(state - MARK, now, limit) + cost * limit.unit  # in debt, now or earlier
    return (instant(tat, now, limit), True) if tat <= limit.full else (state, False)


def ticks_ahead(state: int, now: int, limit: Limit) -> int:
    """The ticks from ``now`` to a state; 0 if it has passed."""
    ahead = state - (now << FRACTION)
    return (ahead >> FRACTION) * limit.drain + min(ahead & TICKS, limit.drain - 1) if ahead > 0 else 0


def instant(owed: int, now: int, limit: Limit) -> int:
    """The state that lies so many ticks after ``now``."""
    return now + owed // limit.drain << FRACTION | owed % limit.drain


def backlog(state: int, now: int, limit: Limit) -> int:
    """Count the ticks that have yet to drain: 0 is fully recovered, ``limit.full`` or more is exhausted."""
    if state >= MARK:
        return ticks_ahead(state - MARK, now, limit)
    owed = ticks_ahead(state, now, limit)
    return owed if owed <= limit.ceiling else limit.ceiling


def owing(owed: int, now: int, limit: Limit) -> int:
    """The state that owes so many ticks at ``now``."""
    if owed <= limit.ceiling:
        return instant(owed, now, limit) if owed > 0 else EMPTY
    return MARK + min(instant(owed, now, limit), MARK - (1 << FRACTION) + limit.drain - 1)


def remaining(state: int, now: int, limit: Limit) -> int:
    return max(0, limit.full - backlog(state, now, limit)) // limit.unit


def retry_after(state: int, now: int, limit: Limit, cost: int) -> int | None:
    if cost > limit.capacity:
        return None
    excess = backlog(state, now, limit) + cost * limit.unit - limit.full
    return max(0, -(-excess // limit.drain))


def reset_after(state: int, now: int, limit: Limit) -> int:
    return -(-backlog(state, now, limit) // limit.drain)


def delay(state: int, now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: int, now: int, limit: Limit, cost: int, at: int) -> int:
    return owing(backlog(state, now, limit) - cost * limit.unit, now, limit)


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    owed = backlog(state, now, limit)
    return owing(max(owed, min(owed + cost * limit.unit, limit.owes * limit.unit)), now, limit)


debt = backlog

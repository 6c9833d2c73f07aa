"""GCRA, the generic cell rate algorithm: one stored instant decides.

The state is the *theoretical arrival time*, TAT: the instant at which everything admitted so far
will have drained.  Admit when the new TAT lies at most one full burst ahead of now.

Law: in any interval of length T at most ``burst + T / interval`` is admitted.
No clock, no I/O.  Instants are whole microseconds outside, *ticks* inside: one microsecond is
``limit.drain`` ticks and one unit of cost is ``limit.unit`` ticks, both whole, so nothing is rounded.

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
MARK = 1 << 52  # microseconds, later than any clock: added to a state that owes more than a check can take


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    now *= limit.drain
    tat = (state if state > now else now) + cost * limit.unit
    if tat > now + limit.full:
        if state > now + limit.ceiling:
            return beyond(state, now, limit, cost)
        return state, False
    return tat, True


def beyond(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    """Decide on a state above the ceiling; ``now`` is in ticks."""
    if state < MARK * limit.drain:  # the clock stepped back far, or the burst was lowered
        return now + limit.ceiling, False
    tat = max(state - MARK * limit.drain, now) + cost * limit.unit  # in debt, now or earlier
    return (tat, True) if tat <= now + limit.full else (state, False)


def backlog(state: int, now: int, limit: Limit) -> int:
    """Count the ticks that have yet to drain: 0 is fully recovered, ``limit.full`` or more is exhausted."""
    owed = state - now * limit.drain
    if owed > limit.ceiling:
        owed = owed - MARK * limit.drain if state >= MARK * limit.drain else limit.ceiling
    return owed if owed > 0 else 0


def owing(owed: int, now: int, limit: Limit) -> int:
    """The state that owes so many ticks at ``now``."""
    if owed <= limit.ceiling:
        return now * limit.drain + owed if owed > 0 else EMPTY
    return MARK * limit.drain + min(now * limit.drain + owed, MARK * limit.drain - 1)


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

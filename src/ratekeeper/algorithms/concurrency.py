"""Concurrency: a number of calls at once.  An admitted call holds a lease, and gives it back when it is done.

The state has three tuples: the instants at which the leases in force end, earliest first; the id of each, a number
(0: nobody can name it); and the leases that were withdrawn, as pairs of an instant and an id.  A lease ends when it is
given back, or at its instant if nobody renews it: one period after it was taken at the latest.

Law: never more than ``count`` leases in force.  ``hold`` and ``give_back`` name a lease by its id, so a call that is
repeated changes nothing, and ending one lease never ends another.  A withdrawn id cannot be held until its note ends: a
request that arrives late is recognised.  No clock, no I/O; whole microseconds.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("2 concurrent for 30 seconds")
>>> state, _ = decide(EMPTY, 0, limit, 1)
>>> state, _ = hold(state, 5_000_000, limit, 1, lease=7, lasts=15_000_000)
>>> state
((20000000, 30000000), (7, 0), ())
>>> decide(state, 6_000_000, limit, 1)[1], retry_after(state, 6_000_000, limit, 1)  # at worst, if nobody gives back
(False, 14000000)
>>> state, _ = hold(state, 10_000_000, limit, 1, lease=7, lasts=15_000_000)  # renewed
>>> give_back(state, 11_000_000, limit, 0, lease=7)
((30000000,), (0,), ())
"""

from __future__ import annotations

from _bisect import bisect_right

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

    State = tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]

EMPTY: State = ((), (), ())
NOBODY = 0  # the id of a lease that nobody can renew or give back
MOST_NOTES = 64  # of withdrawn leases on one key: the oldest are dropped


def decide(state: State, now: int, limit: Limit, cost: int) -> tuple[State, bool]:
    """Take ``cost`` leases for a whole period."""
    return hold(state, now, limit, cost, NOBODY, limit.micros)


def hold(state: State, now: int, limit: Limit, cost: int, lease: int, lasts: int) -> tuple[State, bool]:
    """Let ``lease`` have ``cost`` places until ``lasts`` from now, if they fit: to take it, and to renew it."""
    state = mended(state, now, limit)
    ends, ids, notes = state
    if lease and any(withdrawn == lease and until > now for until, withdrawn in notes):
        return state, False
    gone = bisect_right(ends, now)
    others = [place for place in range(gone, len(ends)) if not lease or ids[place] != lease]
    if len(others) + cost > limit.count:
        return state, False
    until = now + min(lasts, limit.micros)
    kept = [ends[place] for place in others]
    at = bisect_right(kept, until)
    kept_ids = [ids[place] for place in others]
    return (
        (*kept[:at], *(until,) * cost, *kept[at:]),
        (*kept_ids[:at], *(lease,) * cost, *kept_ids[at:]),
        notes,
    ), True


def give_back(state: State, now: int, limit: Limit, cost: int, lease: int, noted_for: int = 0) -> State:
    """Let ``lease`` keep at most ``cost`` places; with ``noted_for``, withdraw it: it cannot be held for that long."""
    ends, ids, notes = state
    mine = [place for place, each in enumerate(ids) if each == lease]
    ended = set(mine[: max(0, len(mine) - cost)]) if lease else set()
    if ended:
        ends = tuple([end for place, end in enumerate(ends) if place not in ended])
        ids = tuple([each for place, each in enumerate(ids) if place not in ended])
    if noted_for and lease:
        kept = [(until, each) for until, each in notes if until > now and each != lease]
        notes = (*kept[-(MOST_NOTES - 1) :], (now + noted_for, lease))
    return state if ends is state[0] and notes is state[2] else (ends, ids, notes)


def mended(state: State, now: int, limit: Limit) -> State:
    """The state without instants that the clock, which stepped back, or a shorter period makes impossible."""
    ends, ids, notes = state
    latest = now + limit.micros
    if not ends or ends[-1] <= latest:
        return state
    return tuple([min(end, latest) for end in ends]), ids, notes


def used(state: State, now: int, limit: Limit) -> int:
    return len(state[0]) - bisect_right(state[0], now)


def remaining(state: State, now: int, limit: Limit) -> int:
    return max(0, limit.count - used(state, now, limit))


def retry_after(state: State, now: int, limit: Limit, cost: int) -> int | None:
    if cost > limit.count:
        return None
    in_force = used(state, now, limit)
    excess = in_force + cost - limit.count
    if excess <= 0:
        return 0
    ends = state[0]
    return min(ends[len(ends) - in_force + excess - 1], now + limit.micros) - now


def reset_after(state: State, now: int, limit: Limit) -> int:
    return min(state[0][-1], now + limit.micros) - now if used(state, now, limit) else 0


def delay(state: State, now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: State, now: int, limit: Limit, cost: int, at: int) -> State:
    """End ``cost`` leases that nobody can name, of those taken exactly ``at`` that instant."""
    ends, ids, notes = state
    taken_then = [place for place, end in enumerate(ends) if end == at + limit.micros and not ids[place]]
    ended = set(taken_then[:cost])
    if not ended:
        return state
    return (
        tuple([end for place, end in enumerate(ends) if place not in ended]),
        tuple([each for place, each in enumerate(ids) if place not in ended]),
        notes,
    )


def debit(state: State, now: int, limit: Limit, cost: int) -> State:
    """Take the places that are free, up to ``cost``: nobody can hold a place that does not exist."""
    free = min(cost, remaining(state, now, limit))
    return decide(state, now, limit, free)[0] if free else state


debt = used

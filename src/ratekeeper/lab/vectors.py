"""The figures of measure.py for many calls at once, by numpy where it is installed: the same numbers, sooner.

For one limit and calls that cost 1 each.  All keys stand on one axis: the calls of a key have a stretch of it to
themselves, longer than all of the time, so that a search in one sorted array never leaves its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ratekeeper.lab.measure import Calls, Judged

FEW = 5_000  # calls for which an import would take longer than the work
MOST = 1 << 62

Vector = Any  # numpy.ndarray


def numpy_for(calls: int) -> Any:
    """The module, if it is there and worth it; else None."""
    if calls < FEW:
        return None
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def judge(
    np: Any, calls: Calls, allowed: bytearray, clients: int, shared: bool, limit: tuple[int, int], end: int
) -> Judged | None:
    """What ``measure.judge_units`` says; None if the axis would be too long."""
    from ratekeeper.lab.measure import Judged

    count, period = limit
    times, who, passed = columns(np, calls, allowed)
    stretch = int(times.max(initial=0)) + period + 1
    if stretch * (clients + 1) > MOST:
        return None
    # Stable, so that the calls of a client stay in the order of time; numbers of two bytes are sorted fastest.
    order = np.argsort(who.astype(np.uint16) if clients < 1 << 16 else who, kind="stable")
    axis = (who.astype(np.int64) * stretch + times)[order]
    passed_in_order = passed[order]
    admitted, refused = axis[passed_in_order], axis[~passed_in_order]
    following = np.searchsorted(admitted, refused, "right")
    ends = np.append(admitted, MOST)[following]  # the next admission, if it is of the same client
    own_end = refused // stretch * stretch + end
    waits = np.where(ends // stretch == refused // stretch, ends, own_end) - refused
    if shared:
        admitted, refused = times[passed], times[~passed]
        following = np.searchsorted(admitted, refused, "right")
    within = np.arange(1, len(admitted) + 1) - np.searchsorted(admitted, admitted - period, "right")
    full = following - np.searchsorted(admitted, refused - period, "right")
    return Judged(
        wrongly_admitted=int(np.count_nonzero(within > count)),
        wrongly_refused=int(np.count_nonzero(full < count)),
        worst=[int(within.max(initial=0))],
        shut_out=int(waits.max(initial=0)),
    )


def columns(np: Any, calls: Calls, allowed: bytearray) -> tuple[Vector, Vector, Vector]:
    return np.asarray(calls.times, np.int64), np.asarray(calls.who), np.frombuffer(allowed, np.bool_)


def counts_of(np: Any, who: Any, allowed: bytearray, clients: int) -> tuple[list[int], list[int]]:
    """How many calls of each client were admitted, and how many refused."""
    numbers, passed = np.asarray(who, np.int64), np.frombuffer(allowed, np.bool_)
    asked = np.bincount(numbers, minlength=clients)
    admitted = np.bincount(numbers[passed], minlength=clients)
    return admitted.tolist(), (asked - admitted).tolist()


def picked(np: Any, values: Any, flags: bytearray) -> Vector:
    """The values that are flagged."""
    return np.asarray(values, np.int64)[np.frombuffer(flags, np.bool_)]


def longest(np: Any, times: Any, turns: Any) -> int:
    """The longest way from a time to its turn."""
    return int((np.asarray(turns, np.int64) - np.asarray(times, np.int64)).max(initial=0))


def worst_of_keys(np: Any, instants: Any, who: Any, allowed: bytearray, clients: int, length: int) -> int | None:
    """The most that any one client had within any stretch of that length; None if the axis would be too long."""
    times, numbers, passed = np.asarray(instants, np.int64), np.asarray(who, np.int64), np.frombuffer(allowed, np.bool_)
    stretch = int(times.max(initial=0)) + length + 1
    if stretch * (clients + 1) > MOST:
        return None
    return most_within(np, np.sort((numbers * stretch + times)[passed], kind="stable"), length)


def most_within(np: Any, times: Any, length: int) -> int:
    """The most that came within any stretch of that length; ``times`` in order."""
    instants = np.asarray(times, np.int64)
    before = np.searchsorted(instants, instants - length, "right")
    return int((np.arange(1, len(instants) + 1) - before).max(initial=0))

"""Concurrency: a number of calls at once.  An admitted call holds a lease, and gives it back when it is done.

The state is the tuple of the instants at which the leases in force were taken, oldest first.  A lease that is not given
back, because its holder was killed, ends by itself one period after it was taken: a limit's period is that time.

Law: never more than ``count`` leases in force.  A lease is identified by its instant, so giving back one that has ended
does not end another.  No clock, no I/O; whole microseconds.  All but ``refund`` is the sliding log's.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("2 concurrent for 30 seconds")
>>> state, _ = decide(EMPTY, 0, limit, 1)
>>> state, _ = decide(state, 5_000_000, limit, 1)
>>> decide(state, 6_000_000, limit, 1)[1], retry_after(state, 6_000_000, limit, 1)  # at worst, if nobody gives back
(False, 24000000)
>>> state = refund(state, 6_000_000, limit, 1, 5_000_000)
>>> decide(state, 6_000_000, limit, 1)
((0, 6000000), True)
"""

from __future__ import annotations

from _bisect import bisect_left, bisect_right

from ratekeeper.algorithms import sliding_log
from ratekeeper.algorithms.sliding_log import EMPTY, debt, decide, delay, remaining, reset_after, retry_after, used

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

__all__ = ["EMPTY", "debt", "decide", "delay", "refund", "remaining", "reset_after", "retry_after", "used"]


def refund(state: tuple[int, ...], now: int, limit: Limit, cost: int, at: int) -> tuple[int, ...]:
    """End ``cost`` leases, of those taken exactly ``at`` that instant."""
    taken_then = bisect_right(state, at) - bisect_left(state, at)
    return sliding_log.refund(state, now, limit, min(cost, taken_then), at)

"""Leaky bucket, as a queue: what is admitted leaves at a constant rate, one after the other.

The state is the instant at which the queue will be empty.  A call that fits is admitted with a
``delay``, the time until its turn; a call that does not fit into the ``burst`` places is refused.

Law: turns are at least one interval apart, so in any interval of length T at most
``T / interval + 1`` units leave, however they came.  No clock, no I/O; ticks as in ``gcra.py``.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("10/second burst 3 leaky_bucket")
>>> state, turns = EMPTY, []
>>> for _ in range(4):
...     state, allowed = decide(state, 0, limit, 1)
...     turns.append(delay(state, 0, limit, 1) if allowed else "refused")
>>> turns
[0, 100000, 200000, 'refused']
"""

from __future__ import annotations

from ratekeeper.algorithms.gcra import (
    EMPTY,
    FRACTION,
    TICKS,
    backlog,
    beyond,
    debit,
    debt,
    instant,
    refund,
    remaining,
    reset_after,
    retry_after,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

__all__ = ["EMPTY", "backlog", "debit", "debt", "decide", "delay", "refund", "remaining", "reset_after", "retry_after"]


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    drain = limit.drain
    empty_at = state >> FRACTION
    queued = cost * limit.unit
    if empty_at >= now:
        rest = state & TICKS
        queued += (empty_at - now) * drain + (rest if rest < drain else drain - 1)
    if queued > limit.full:
        return beyond(state, now, limit, cost)
    return (now + queued << FRACTION if drain == 1 else instant(queued, now, limit)), True


def delay(state: int, now: int, limit: Limit, cost: int) -> int:
    """Microseconds until the turn of a call of ``cost`` that left the queue in ``state``."""
    return max(0, -((cost * limit.unit - backlog(state, now, limit)) // limit.drain))

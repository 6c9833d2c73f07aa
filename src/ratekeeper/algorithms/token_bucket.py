"""Token bucket: it holds ``burst`` tokens and refills at a steady rate.

The state is the instant at which the bucket will be full again; the tokens in it now follow from that,
so one number is stored, nothing is refilled by a timer and no fraction is ever lost.

Law: in any interval of length T at most ``burst + rate * T`` is admitted.  Decision for decision it is
GCRA, seen from the other end.  No clock, no I/O; ticks as in ``gcra.py``.

>>> from ratekeeper import Limit
>>> limit = Limit.parse("10/second burst 20 token_bucket")
>>> state, allowed = decide(EMPTY, 0, limit, 15)
>>> allowed, remaining(state, 0, limit)
(True, 5)
>>> decide(state, 0, limit, 6)[1], retry_after(state, 0, limit, 6)
(False, 100000)
>>> remaining(state, 1_000_000, limit)  # one second later: ten more
15
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
    delay,
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
    full_at = state >> FRACTION
    missing = cost * limit.unit
    if full_at >= now:
        rest = state & TICKS
        missing += (full_at - now) * drain + (rest if rest < drain else drain - 1)
    if missing > limit.full:  # fewer tokens than none
        return beyond(state, now, limit, cost)
    return (now + missing << FRACTION if drain == 1 else instant(missing, now, limit)), True

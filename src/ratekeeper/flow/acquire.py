"""``acquire``: wait for a turn, first come first served; refuse at once if the turn would come too late.  No I/O."""

from __future__ import annotations

from ratekeeper.decision import Decision
from ratekeeper.errors import Closed, StoreUnavailable
from ratekeeper.flow.effects import Ask, Sleep, Turn
from ratekeeper.flow.queue import predict_wait
from ratekeeper.flow.settle import ask, end, give_back, hold
from ratekeeper.limit import empty_state
from ratekeeper.units import SECOND

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ratekeeper.check import Check, Plan
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.flow.lease_renewal import LeaseRenewer
    from ratekeeper.flow.queue import WaitQueue


# Microseconds between two attempts while a store without a fallback does not answer: the last is repeated.
OUTAGE_PAUSES = (20_000, 50_000, 100_000, 250_000)
# Microseconds between two attempts to take a lease that another call may have given back.
SHORTEST_RETRY = 1_000
LONGEST_RETRY = 32_000


def acquire(
    queue: WaitQueue,
    check: Check,
    patience: int | None,
    clock: Clock,
    priority: int = 0,
    renewer: LeaseRenewer | None = None,
) -> Flow[Decision]:
    """Wait for a turn on one check: see ``acquire_plan``."""
    (decision,) = yield from acquire_plan(queue, check.key, (check,), patience, clock, priority, renewer)
    return decision


def acquire_plan(
    queue: WaitQueue,
    key: Hashable,
    plan: Plan,
    patience: int | None,
    clock: Clock,
    priority: int = 0,
    renewer: LeaseRenewer | None = None,
) -> Flow[tuple[Decision, ...]]:
    """Wait for a turn in the queue of ``key``; refuse at once if it would come after ``patience`` microseconds.

    A call that gives up or is cancelled leaves the queue.  If a leaky bucket had admitted it, it gives that back.
    """
    began = clock.nanos() // 1000
    waiter = queue.join(key, tuple([check.cost for check in plan]), priority)
    served = False
    is_leased = any(check.lease for check in plan)
    try:
        retry, outage = SHORTEST_RETRY, 0
        wait: int | None = 0 if is_possible(plan) else None
        if wait is not None and patience is not None and not any(check.limit.is_leased for check in plan):
            try:
                instants, states = yield Ask("states", plan)
            except StoreUnavailable:
                pass  # without states there is no prediction: wait in the queue, and check
            else:
                wait = predict_wait(plan, states, instants, queue.ahead(waiter), waiter)
        if wait is None or (patience is not None and wait > patience):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, wait)
        if not queue.is_first(waiter) and not (yield Turn(waiter, patience)):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, 0)
        while True:
            if queue.closed:
                raise Closed(queue.closed)
            try:
                decisions = yield from hold(plan, renewer) if is_leased else ask("check", plan)
            except StoreUnavailable:  # and there is no fallback
                pause = OUTAGE_PAUSES[min(outage, len(OUTAGE_PAUSES) - 1)]
                outage += 1
                if patience is not None and clock.nanos() // 1000 + pause > began + patience:
                    raise
                yield Sleep(pause)
                continue
            left = None if patience is None else patience - (clock.nanos() // 1000 - began)
            if patience == 0:  # a caller that does not wait: the time of the answer itself is no wait
                left = 0
            allowed = all(decisions)
            wait = longest([decision.delay if allowed else decision.retry_after for decision in decisions])
            if wait and not allowed:
                wait, retry = next_attempt(plan, decisions, wait, retry, left)
            is_denied = any(decision.reason.startswith("deny") for decision in decisions)
            if wait is None or (left is not None and wait > left) or is_denied:
                if allowed:  # too late: the turn in a leaky bucket, or the answer of the store
                    yield from undo(plan, decisions, renewer)
                    return postponed(decisions, wait)
                return decisions
            if allowed:
                served = True
                break
            yield Sleep(wait)
    finally:
        queue.leave(waiter, served)
    if wait:
        try:
            yield Sleep(wait)
        except BaseException:
            yield from undo(plan, decisions, renewer)
            raise
        return tuple([Decision(True, each.limit, each.remaining, 0.0, each.reset_after, 0.0) for each in decisions])
    return decisions


def undo(plan: Plan, decisions: tuple[Decision, ...], renewer: LeaseRenewer | None) -> Flow[None]:
    """Give back what a plan took."""
    rates: dict[int, list[tuple[Check, Decision]]] = {}  # by the instant of the decision: limits follow two clocks
    for check, decision in zip(plan, decisions, strict=True):
        if not check.lease:
            rates.setdefault(decision.at, []).append((check, decision))
    for group in rates.values():
        yield from give_back(tuple([check for check, _ in group]), group[0][1])
    for check, decision in zip(plan, decisions, strict=True):
        if check.lease:
            yield from end(check, decision, renewer)  # type: ignore[arg-type]


def is_possible(plan: Plan) -> bool:
    """Whether every cost could pass its limit if nothing of it were used."""
    for check in plan:
        limit, cost = check.limit, check.cost
        if cost > 1 and limit.rule.retry_after(empty_state(limit), 0, limit, cost) is None:
            return False
    return True


def next_attempt(
    plan: Plan, decisions: tuple[Decision, ...], wait: int, retry: int, left: int | None
) -> tuple[int, int]:
    """How long to wait for the next attempt, and ``retry`` for the one after it.

    A lease may be given back at any time, so attempts at one come early, back off to LONGEST_RETRY, and the last is
    made at the deadline.  Limits without leases are worth another attempt only after ``wait``.
    """
    rates = [each.retry_after for check, each in zip(plan, decisions, strict=True) if not check.limit.is_leased]
    if len(rates) == len(plan):
        return wait, retry
    soon = max(longest(rates) or 0, min(wait, retry))
    if left is not None and 0 < left < soon:
        soon = left
    return soon, min(2 * retry, LONGEST_RETRY)


def postponed(decisions: tuple[Decision, ...], wait: int | None) -> tuple[Decision, ...]:
    """The decisions as refusals: the turn comes in ``wait`` microseconds, which is too late; None: never."""
    refusals = []
    for decision in decisions:
        retry_after = None if wait is None else max(wait / SECOND, decision.retry_after or 0.0)
        refusals.append(Decision(False, decision.limit, decision.remaining, retry_after, decision.reset_after, 0.0))
    return tuple(refusals)


def longest(waits: list[float | None]) -> int | None:
    """The longest of ``waits`` in seconds, as microseconds; None if one of them never ends."""
    micros = 0
    for wait in waits:
        if wait is None:
            return None
        micros = max(micros, round(wait * SECOND))
    return micros

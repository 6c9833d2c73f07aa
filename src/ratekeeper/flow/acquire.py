"""``acquire``: wait for a turn, first come first served; refuse at once if the turn would come too late.  No I/O."""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import Closed, StoreUnavailable
from ratekeeper.flow.effects import Ask, Sleep, Turn
from ratekeeper.flow.queue import WaitQueue, foresee
from ratekeeper.flow.settle import ask, give_back
from ratekeeper.limit import empty_state
from ratekeeper.units import SECOND

TYPE_CHECKING = False

if TYPE_CHECKING:
    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.flow.queue import Line


# Microseconds between two looks for a lease that was given back.
SHORTEST_LOOK = 1_000
LONGEST_LOOK = 32_000


def acquire(lines: WaitQueue, check: Check, patience: int | None, clock: Clock, priority: int = 0) -> Flow[Decision]:
    """Wait for one's turn on one check: see ``acquire_plan``."""
    (decision,) = yield from acquire_plan(lines, check.key, (check,), patience, clock, priority)
    return decision


def acquire_plan(
    lines: WaitQueue, line: Line, plan: Plan, patience: int | None, clock: Clock, priority: int = 0
) -> Flow[tuple[Decision, ...]]:
    """Wait for one's turn, first come first served in each line; refused at once if it would come too late.

    Whoever gives up or is cancelled leaves the line and, if it had been admitted to a queue, gives that back.
    """
    began = clock.nanos() // 1000
    ticket = lines.join(line, tuple([check.cost for check in plan]), priority)
    served = False
    try:
        look = SHORTEST_LOOK
        wait: int | None = 0 if is_possible(plan) else None
        if wait is not None and patience is not None and not any(check.limit.is_leased for check in plan):
            try:
                now, states = yield Ask("states", plan)
            except StoreUnavailable:
                pass  # nothing can be foreseen: wait in line, and see
            else:
                wait = foresee(plan, states, now, lines.ahead(ticket), ticket)
        if wait is None or (patience is not None and wait > patience):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, wait)
        if not lines.is_first(ticket) and not (yield Turn(ticket, patience)):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, 0)
        while True:
            if lines.closed:
                raise Closed(lines.closed)
            decisions = yield from ask("check", plan)
            left = None if patience is None else patience - (clock.nanos() // 1000 - began)
            allowed = all(decisions)
            wait = longest([one.delay if allowed else one.retry_after for one in decisions])
            if wait and not allowed:
                wait, look = sooner(plan, decisions, wait, look, left)
            is_denied = any(one.reason.startswith("deny") for one in decisions)
            if wait is None or (left is not None and wait > left) or is_denied:
                if allowed:  # admitted to a queue, but its turn comes too late
                    yield from give_back(plan, decisions[0])
                    return postponed(decisions, wait)
                return decisions
            if allowed:
                served = True
                break
            yield Sleep(wait)
    finally:
        lines.leave(ticket, served)
    if wait:
        try:
            yield Sleep(wait)
        except BaseException:
            yield from give_back(plan, decisions[0])
            raise
        return tuple([Decision(True, one.limit, one.remaining, 0.0, one.reset_after, 0.0) for one in decisions])
    return decisions


def is_possible(plan: Plan) -> bool:
    """Whether every cost could pass a limit that nobody has used."""
    for check in plan:
        limit, cost = check.limit, check.cost
        if cost > 1 and limit.rule.retry_after(empty_state(limit), 0, limit, cost) is None:
            return False
    return True


def sooner(plan: Plan, decisions: tuple[Decision, ...], wait: int, look: int, left: int | None) -> tuple[int, int]:
    """When to ask again, where leases are what is missing: soon, at the deadline at last, then ever less often."""
    rates = [one.retry_after for check, one in zip(plan, decisions, strict=True) if not check.limit.is_leased]
    if len(rates) == len(plan):
        return wait, look
    soon = max(longest(rates) or 0, min(wait, look))
    if left is not None and 0 < left < soon:
        soon = left
    return soon, min(2 * look, LONGEST_LOOK)


def postponed(decisions: tuple[Decision, ...], wait: int | None) -> tuple[Decision, ...]:
    """Refusals, because the turn comes in ``wait`` microseconds and nobody waits that long."""
    found = []
    for one in decisions:
        told = None if wait is None else max(wait / SECOND, one.retry_after or 0.0)
        found.append(Decision(False, one.limit, one.remaining, told, one.reset_after, 0.0))
    return tuple(found)


def longest(seconds: list[float | None]) -> int | None:
    """The longest wait in microseconds; None if one of them never ends."""
    found = 0
    for one in seconds:
        if one is None:
            return None
        found = max(found, round(one * SECOND))
    return found

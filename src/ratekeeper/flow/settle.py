"""Ask the store with its fallback, give back what was taken, settle a reservation, renew a lease.  No I/O."""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.effects import Ask
from ratekeeper.limit import MOST_LEASES, doubled

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.flow.effects import Flow


def ask(operation: str, plan: Plan, *arguments: object) -> Flow[Any]:
    """Ask the store; where it cannot answer, what ``on_store_error`` says answers in its place."""
    try:
        return (yield Ask(operation, plan, *arguments))
    except StoreUnavailable as error:
        if operation == "refund":  # of what the store took: nothing to give back here
            operation, arguments = "peek", ()
        return (yield Ask("stand_in", operation, error, plan, *arguments))


def give_back(plan: Plan, decision: Decision) -> Flow[Any]:
    """Give back what ``decision`` took, to whoever took it."""
    if decision.reason:
        return (yield Ask("stand_in", "refund", None, plan, decision.at))
    return (yield from ask("refund", plan, decision.at))


def settle(check: Check, reserved: Decision, actual: int) -> Flow[Decision]:
    """Charge or give back the difference between what was reserved and what was used."""
    if actual < check.cost:
        (decision,) = yield from give_back((of_cost(check, check.cost - actual),), reserved)
    elif actual > check.cost:
        (decision,) = yield from ask("take", (of_cost(check, actual - check.cost),))
    else:
        (decision,) = yield from ask("peek", (check,))
    return decision


def renew(check: Check, held: Decision, has_room: bool = True) -> Flow[Decision]:
    """Let the lease of ``held`` begin anew; refused if it had ended and others have its place.

    The new lease is taken beside the old one, under a limit that has room for both, and then the old one is ended: in
    between others meet one lease too many, never one too few.  Where there is no room the old one is ended first.
    """
    limit: Any = check.limit
    if not has_room or 2 * limit.count > MOST_LEASES:
        yield from give_back((check,), held)
        (fresh,) = yield from ask("check", (check,))
        return fresh
    wide = Check(check.space, check.key, doubled(limit), check.cost, check.on_store_error)
    (fresh,) = yield from ask("check", (wide,))
    # A store that went away or came back meanwhile has other instants: there is nothing to be renewed in it.
    in_force = bool(fresh.reason) == bool(held.reason) and fresh.at - held.at < limit.micros
    if not fresh:
        return held if in_force else fresh
    if in_force:
        yield from give_back((check,), held)
        return fresh
    yield from give_back((wide,), fresh)
    (fresh,) = yield from ask("check", (check,))
    return fresh


def of_cost(check: Check, cost: int) -> Check:
    return Check(check.space, check.key, check.limit, cost, check.on_store_error)

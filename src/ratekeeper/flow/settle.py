"""Ask the store with its fallback, give back what was taken, settle a reservation, renew a lease.  No I/O."""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.effects import Ask
from ratekeeper.limit import MOST_LEASES, doubled

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow


def ask(operation: str, plan: Plan, *arguments: object) -> Flow[Any]:
    """Ask the store; if it is unavailable, ask its fallback."""
    try:
        return (yield Ask(operation, plan, *arguments))
    except StoreUnavailable as error:
        if operation == "refund":  # the store took it, so the fallback has nothing to give back
            operation, arguments = "peek", ()
        return (yield Ask("fall_back", operation, error, plan, *arguments))


def give_back(plan: Plan, decision: Decision) -> Flow[Any]:
    """Give back what ``decision`` took, to the store or to the fallback: the one that made the decision."""
    if decision.reason:
        return (yield Ask("fall_back", "refund", None, plan, decision.at))
    return (yield from ask("refund", plan, decision.at))


def settle(check: Check, reserved: Decision, actual: int) -> Flow[Decision]:
    """Charge or give back the difference between what was reserved and what was used."""
    if actual < check.cost:
        (decision,) = yield from give_back((with_cost(check, check.cost - actual),), reserved)
    elif actual > check.cost:
        (decision,) = yield from ask("take", (with_cost(check, actual - check.cost),))
    else:
        (decision,) = yield from ask("peek", (check,))
    return decision


def renew(check: Check, lease: Decision, has_room: bool = True) -> Flow[Decision]:
    """Restart the period of ``lease``; refused if it had ended and others have taken its place.

    The new lease is taken beside the old one, under a limit that has room for both, and then the old one is ended.
    In between other callers see one lease too many, never one too few.  If the store has no room for such a limit, the
    old lease is ended first.
    """
    limit: Any = check.limit
    if not has_room or 2 * limit.count > MOST_LEASES:
        yield from give_back((check,), lease)
        (renewed,) = yield from ask("check", (check,))
        return renewed
    wide = Check(check.space, check.key, doubled(limit), check.cost, check.on_store_error)
    (renewed,) = yield from ask("check", (wide,))
    # If the store failed or recovered since, the other one decided, whose clock is another: it does not have the lease.
    in_force = bool(renewed.reason) == bool(lease.reason) and renewed.at - lease.at < limit.micros
    if not renewed:
        return lease if in_force else renewed
    if in_force:
        yield from give_back((check,), lease)
        return renewed
    yield from give_back((wide,), renewed)
    (renewed,) = yield from ask("check", (check,))
    return renewed


def with_cost(check: Check, cost: int) -> Check:
    return Check(check.space, check.key, check.limit, cost, check.on_store_error)

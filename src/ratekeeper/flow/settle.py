"""Ask the store with its fallback, give back what was taken, settle a reservation; take, renew and end leases.  No I/O.

A lease that was asked for and is not held is always withdrawn: after an error, a cancellation, or no answer in time.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.effects import Ask

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.check import LeaseCheck, Plan
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.flow.lease_renewal import LeaseRenewer


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


def settle(check: Check, reserved: Decision, actual: int, renewer: LeaseRenewer | None = None) -> Flow[Decision]:
    """Charge or give back the difference between what was reserved and what was used."""
    if check.lease and actual < check.cost:
        return (yield from end(check, reserved, renewer, actual))  # type: ignore[arg-type]
    if actual < check.cost:
        (decision,) = yield from give_back((with_cost(check, check.cost - actual),), reserved)
    elif actual > check.cost:
        (decision,) = yield from ask("debit", (with_cost(check, actual - check.cost),))
    else:
        (decision,) = yield from ask("peek", (check,))
    return decision


def hold(plan: Plan, renewer: LeaseRenewer | None, *, keep: bool = True) -> Flow[tuple[Decision, ...]]:
    """Check a plan with leases, all or nothing.  The renewer renews what the store gave, if ``keep`` says so."""
    leases: Any = [check for check in plan if check.lease]
    try:
        decisions = yield Ask("check", plan)
    except StoreUnavailable as error:
        if error.charged is not False or len(plan) > 1:  # a part of the plan may have been taken
            withdraw(leases, renewer)
        return (yield Ask("fall_back", "check", error, plan))
    except BaseException as error:  # cancelled, interrupted: the store may have been asked
        if renewer is None and not isinstance(error, GeneratorExit):
            yield Ask("end_leases", tuple([lease.having(0, 0) for lease in leases]))
        withdraw(leases, renewer)
        raise
    if keep and renewer is not None and all(decisions):
        for lease in leases:
            renewer.keep(lease)
    return decisions


def end(
    lease: LeaseCheck,
    decision: Decision,
    renewer: LeaseRenewer | None,
    kept: int = 0,
    *,
    is_kept_elsewhere: bool = False,
) -> Flow[Decision]:
    """Give back all places of a lease but ``kept``; if the store is away, the renewer does it later.

    A lease that ``is_kept_elsewhere`` is renewed by its holder, on any worker: a renewal may always be under way.
    """
    if decision.reason:
        (answer,) = yield Ask("fall_back", "end_leases", None, (lease.having(kept, 0),))
        return answer
    is_unsure = (renewer is not None and renewer.drop(lease)) or is_kept_elsewhere
    if renewer is not None and kept and lease.lasts and not is_kept_elsewhere:
        renewer.keep(lease.having(kept, lease.lasts))
    try:
        (answer,) = yield Ask("end_leases", (lease.having(kept, lease.lasts if is_unsure and not kept else 0),))
    except StoreUnavailable as error:
        if not kept:
            withdraw([lease], renewer)
        try:
            (answer,) = yield Ask("fall_back", "peek", error, (lease,))
        except StoreUnavailable:  # shared memory has no fallback
            if kept or renewer is None:
                raise
            answer = decision  # the holder has left: the renewer gives the place back
    except BaseException:
        if not kept:
            withdraw([lease], renewer)
        raise
    return answer


def renew(lease: LeaseCheck, decision: Decision, renewer: LeaseRenewer | None) -> Flow[tuple[LeaseCheck, Decision]]:
    """Restart the period of a lease; refused if it had ended and others have taken its place.

    Returns the lease too: one that the fallback gave has another id on the store, where its own may be withdrawn.
    """
    asked = lease.renamed() if decision.reason else lease
    for_ever = renewer is not None and renewer.is_for_ever(lease)
    (renewed,) = yield from hold((asked,), renewer)
    if decision.reason:  # given by the fallback, and held once, whoever has it now
        yield Ask("fall_back", "end_leases", None, (lease.having(0, 0),))
    elif renewed.reason:
        withdraw([lease], renewer)
    if for_ever and renewed and not renewed.reason:
        renewer.keep_for_ever(asked)  # type: ignore[union-attr]
    if not renewed and renewer is not None:
        renewer.drop(asked)
    return asked, renewed


def withdraw(leases: list[LeaseCheck], renewer: LeaseRenewer | None) -> None:
    if renewer is not None:
        renewer.withdraw(leases)


def with_cost(check: Check, cost: int) -> Check:
    return Check(check.space, check.key, check.limit, cost, check.on_store_error)

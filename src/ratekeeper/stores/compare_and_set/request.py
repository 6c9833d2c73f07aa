"""Decides requests on states that were read: the pure rules, for several callers at once.  No clock, no I/O.

All requests of a batch are decided one after the other on the same states, so one compare-and-set answers all of them.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.decision import Decision, new_decision
from ratekeeper.limit import LimitSet, empty_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.limit import State
    from ratekeeper.stores.compare_and_set.record import StoredLimit, StoredLimits

    States = dict[str, State]  # by the name of their record
    Alter = Callable[[State, int, Check], State]

READS = ("peek", "states")  # they change nothing


class RecordRequest:
    """One operation on a plan, and the caller that waits for its answer."""

    __slots__ = ("at", "costs", "future", "is_sent", "names", "operation", "plan", "seed", "stored", "until")

    def __init__(
        self,
        operation: str,
        plan: Plan,
        limits: StoredLimits,
        at: int | None = None,
        costs: Sequence[int] = (),
    ) -> None:
        self.operation = operation
        self.plan = plan
        self.at = at
        self.costs = costs  # of a charge: for each limit of the only check by itself
        self.stored: list[StoredLimit] = [limits.layout(check.space, check.limit) for check in plan]
        self.names = [stored.name(check.key) for stored, check in zip(self.stored, plan, strict=True)]
        self.future: Any = None
        self.is_sent = False  # a backend may have been asked to change something for it
        self.seed: Any = None  # the record as it was read a moment ago
        self.until = 0.0  # seconds of the monotonic clock: when the caller gives up

    @property
    def records(self) -> tuple[str, ...]:
        """The names of its records, each once and in order."""
        return tuple(sorted({name for name in self.names if name}))

    def part(self, name: str) -> tuple[list[int], Plan]:
        """The checks on one record, and their places in the plan."""
        places = [place for place, each in enumerate(self.names) if each == name]
        return places, tuple([self.plan[place] for place in places])


def answer(request: RecordRequest, states: States, now: int) -> Any:
    """Decide a request on ``states``, and change them as it demands; every name of the request must be in them."""
    operation = request.operation
    if operation in ("check", "peek"):
        return decide_plan(request.plan, request.names, states, now, is_peek=operation == "peek")
    if operation == "states":
        return (now,) * len(request.plan), tuple([states[name] for name in request.names])
    if operation == "renew":
        return tuple(
            [
                decide_plan((check,), [name], states, now)[0]
                for check, name in zip(request.plan, request.names, strict=True)
            ]
        )
    alter = alteration(request)
    decisions = []
    for check, name in zip(request.plan, request.names, strict=True):
        states[name] = state = alter(states[name], now, check)
        decisions.append(new_decision(Decision, (True, check.limit, state, now, 0)))
    return None if operation == "reset" else tuple(decisions)


def decide_plan(
    plan: Plan, names: Sequence[str], states: States, now: int, *, is_peek: bool = False
) -> tuple[Decision, ...]:
    """Take every cost of the plan, or none."""
    after: States = {}  # a key that is twice in a plan pays twice
    rows = []
    fits = True
    for check, name in zip(plan, names, strict=True):
        state = after.get(name, states[name])
        new, allowed = (
            hold(state, now, check) if check.lease else check.limit.rule.decide(state, now, check.limit, check.cost)
        )
        after[name] = new
        fits = fits and allowed
        rows.append((check, name, state, new, allowed))
    if fits and not is_peek:
        states.update(after)
        return tuple(
            [new_decision(Decision, (True, check.limit, new, now, check.cost)) for check, _, _, new, _ in rows]
        )
    decisions = tuple(
        [
            new_decision(Decision, (allowed, check.limit, state, now, 0 if allowed else check.cost))
            for check, _, state, _, allowed in rows
        ]
    )
    if not is_peek:  # only a state from the future, or above a lowered limit, is written on a refusal
        for _, name, state, new, allowed in rows:
            if not allowed and new is not state and state is states[name]:
                states[name] = new
    return decisions


def alteration(request: RecordRequest) -> Alter:
    """How the operation of a request changes the state of one check."""
    operation, at, costs = request.operation, request.at, request.costs

    def refund(state: State, now: int, check: Check) -> State:
        return check.limit.rule.refund(state, now, check.limit, check.cost, now if at is None else at)

    def charge(state: State, now: int, check: Check) -> State:
        limit = check.limit
        if not isinstance(limit, LimitSet):
            return take(state, now, Check(check.space, check.key, limit, costs[0]))
        return tuple(
            [
                take(part_state, now, Check(check.space, check.key, part, cost))
                for part_state, part, cost in zip(state, limit.limits, costs, strict=True)
            ]
        )

    changes: dict[str, Alter] = {
        "take": take,
        "debit": debit,
        "refund": refund,
        "end_leases": end_lease,
        "reset": reset,
        "charge": charge,
        "mend": mend,
    }
    return changes[operation]


def hold(state: State, now: int, check: Check) -> tuple[State, bool]:
    limit: Any = check.limit
    new, held = limit.rule.hold(state, now, limit, check.cost, check.lease, check.lasts or limit.micros)
    return new, bool(held)


def mend(state: State, now: int, check: Check) -> State:
    """The state as a refusal leaves it: another one if it is from the future, or above a lowered limit."""
    limit = check.limit
    new, allowed = hold(state, now, check) if check.lease else limit.rule.decide(state, now, limit, check.cost)
    return state if allowed else new


def take(state: State, now: int, check: Check) -> State:
    limit = check.limit
    there = min(check.cost, limit.rule.remaining(state, now, limit))
    return limit.rule.decide(state, now, limit, there)[0] if there > 0 else state


def debit(state: State, now: int, check: Check) -> State:
    return check.limit.rule.debit(state, now, check.limit, check.cost)


def end_lease(state: State, now: int, check: Check) -> State:
    limit: Any = check.limit
    return limit.rule.give_back(state, now, limit, check.cost, check.lease, check.lasts)


def reset(state: State, now: int, check: Check) -> State:
    return empty_state(check.limit)

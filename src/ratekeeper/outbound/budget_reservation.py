"""One reservation of a budget: what it takes, what it adds while a stream goes on, and what it settles, as flows.

``budget.py`` has its two faces, for threads and for event loops.  Law: what is admitted is charged at every level of
the budget, or at none; no settlement changes a reservation twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ratekeeper.decision import binding, longest_wait
from ratekeeper.errors import AlreadySettled
from ratekeeper.flow.acquire import acquire_plan, postponed
from ratekeeper.flow.effects import Sleep
from ratekeeper.flow.settle import ask, give_back
from ratekeeper.keys import encode
from ratekeeper.outbound.delivery import TooLate, patience_of, unless_unavailable
from ratekeeper.outbound.learned import parts_of
from ratekeeper.outbound.outage import counted, debit
from ratekeeper.outbound.retry import is_refusal

if TYPE_CHECKING:
    from ratekeeper.check import Check, Plan
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.keys import Key
    from ratekeeper.outbound.budget import BudgetLevel
    from ratekeeper.outbound.response_limits import ServerLimits
    from ratekeeper.units import Seconds

ADVICE = "Pass a longer timeout to reserve(), or reserve less."


def unit_of(check: Check) -> str:
    """The unit that a check of a budget counts."""
    return check.space.rpartition(" ")[2]


class UnitReservation:
    """The units of one reservation: reserved, charged and used.  Its changes are flows."""

    def __init__(
        self, level: BudgetLevel, key: Key | None, timeout: Seconds | None, priority: int, costs: dict[str, int]
    ) -> None:
        self.used: dict[str, int] = {}
        self._level = level
        self._key = key
        self._patience = patience_of(timeout, "timeout")
        self._priority = priority
        self._reserved = level.reservation_costs(costs)
        self._charged = dict(self._reserved)
        self._plan = level.plan(self._reserved, key)
        self._parts = parts_of(self._plan, [unit_of(check) for check in self._plan])
        self._sent_under: dict[str | bytes, int] = {}  # the shares of the limits that it was admitted under
        self._admitted_at = 0
        self._decisions: tuple[Decision, ...] = ()
        self._settled = True  # nothing is reserved yet

    def __bool__(self) -> bool:
        return bool(self._decisions) and all(self._decisions)

    @property
    def retry_after(self) -> float | None:
        """Seconds until the reservation would fit: 0.0 if it did, None if it never can."""
        return longest_wait(self._decisions)

    def _reserve(self) -> Flow[None]:
        level, shares, parts = self._level, self._level.shares, self._parts
        store, clock = level.runner.store, level.runner.store.clock
        until = None if self._patience is None else clock.nanos() // 1000 + self._patience
        while True:
            if shares.is_due(parts):
                yield from shares.refresh(parts)
            pause = shares.pause()
            if pause:
                if until is None or clock.nanos() // 1000 + pause > until:
                    self._decisions = postponed((yield from ask("peek", self._plan)), pause)
                    return
                yield Sleep(pause)
                continue
            plan, self._charged, self._sent_under = self._plan, dict(self._reserved), shares.under(parts)
            if self._sent_under:
                self._charged = shares.fitting(self._reserved, parts)
                plan = shares.apply(level.plan(self._charged, self._key), parts)
            self._decisions = yield from counted(store, plan, partial(self._acquire, plan, until))
            if not all(self._decisions) or not shares.are_below(self._sent_under, parts):
                break
            yield from give_back(plan, self._decisions[0])  # the provider asked for less while this one waited
        self._admitted_at = clock.nanos() // 1000
        self._settled = not all(self._decisions)

    def _acquire(self, plan: Plan, until: int | None) -> Flow[tuple[Decision, ...]]:
        if until is None:
            return ask("check", plan)
        level = self._level
        clock = level.runner.store.clock
        spaces = tuple([check.space for check in plan])  # a queue predicts turns of plans with the same limits
        queue_key = level.path, encode(level.key if self._key is None else self._key), spaces
        patience = max(0, until - clock.nanos() // 1000)
        return acquire_plan(level.runner.queue, queue_key, plan, patience, clock, self._priority)

    def _learn(self, limits: ServerLimits, status: int) -> Flow[None]:
        """Adjust the budget to what a response says.  If that does not say which limit refused, the highest slow down.

        A store that does not answer loses it: the next response says it again.
        """
        level = self._level
        age = level.runner.store.clock.nanos() // 1000 - self._admitted_at
        left = {check.space: each.remaining for check, each in zip(self._plan, self._decisions, strict=False)}
        top = level.top.path
        everybody = [part for part in self._parts if part.check.space == f"{top} {part.unit}"]
        adjusting = level.shares.adjust(
            self._parts, limits, is_refusal(status, limits), age, self._sent_under, left, everybody or self._parts
        )
        yield from unless_unavailable(adjusting, None)

    def _require(self) -> None:
        if not self:
            raise TooLate(binding(self._decisions), self._level.path, ADVICE)

    def _add(self, amounts: dict[str, int]) -> Flow[None]:
        """Count usage; charge at once the part that exceeds the reservation."""
        self._expect_open()
        excess: dict[str, int] = {}
        for unit, amount in self._level.checked(amounts, least=0).items():
            self.used[unit] = self.used.get(unit, 0) + amount
            if self.used[unit] > self._charged.get(unit, 0):
                excess[unit] = self.used[unit] - self._charged.get(unit, 0)
                self._charged[unit] = self.used[unit]
        if excess:
            yield from debit(self._level.plan(excess, self._key), self._level.runner.store.clock)

    def _settle(self, actual: dict[str, int]) -> Flow[None]:
        """Refund or charge, unit by unit, the difference between the charged and the used amount."""
        self._expect_open()
        self._settled = True
        used = {**self.used, **self._level.checked(actual, least=0)}
        unused = {unit: self._charged.get(unit, 0) - amount for unit, amount in used.items()}
        refund = self._level.plan({unit: amount for unit, amount in unused.items() if amount > 0}, self._key)
        excess = self._level.plan({unit: -amount for unit, amount in unused.items() if amount < 0}, self._key)
        if refund:
            yield from give_back(refund, self._decisions[0])
        if excess:
            yield from debit(excess, self._level.runner.store.clock)

    def _leave(self, failed: bool) -> Flow[None]:
        """At the end of a block, charge the usage that was added; without any, an exception refunds everything."""
        if not self._settled and (failed or self.used):
            actual = {unit: self.used.get(unit, 0) for unit in self._reserved}
            if self.used:  # part of an answer came, so the request was made
                actual["requests"] = self._charged.get("requests", 0)
            yield from self._settle({unit: amount for unit, amount in actual.items() if unit in self._charged})

    def _expect_open(self) -> None:
        if self._settled:
            why = "it was settled already" if self else "it was refused: there is nothing to settle"
            raise AlreadySettled(f"{self._level.path}: expected a reservation that is open, but {why}.")

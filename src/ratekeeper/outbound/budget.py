"""Budgets for what is known only afterwards: requests and tokens a minute, taken together, settled when the bill comes.

>>> from ratekeeper.outbound import Budget
>>> from ratekeeper.testing import FakeClock
>>> budget = Budget(requests="60/minute", tokens="10000/minute", clock=FakeClock())
>>> with budget.reserve(tokens=4000) as spending:  # an estimate
...     spending.settle(tokens=1500)  # what the answer says was used
>>> budget.left()
{'requests': 59, 'tokens': 8500}

A budget may be a child of another: a team's within its organisation's, a model's within an account's.  All levels are
taken together, all or nothing.  Law: a refusal takes nothing at any level; what is settled is charged at every level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check, whole_cost
from ratekeeper.decision import binding, longest_wait
from ratekeeper.errors import AlreadySettled, InvalidCost, InvalidInput, did_you_mean, shown
from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask, give_back
from ratekeeper.keys import encode
from ratekeeper.limit import parse_limits
from ratekeeper.outbound.delivery import TooLate, patience_of
from ratekeeper.outbound.limits import expect_rate
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.keys import Key
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds


class Purse:
    """What both budgets are made of: limits by unit, a key, and perhaps a parent."""

    asynchronous = False

    def __init__(
        self,
        *,
        name: str = "budget",
        key: Key = "all",
        store: str | Store = "memory://",
        clock: Clock | None = None,
        parent: Purse | None = None,
        **limits: Limits,
    ) -> None:
        if not limits:
            raise InvalidInput(
                "budget: expected a limit for at least one unit, such as tokens='10000/minute', got none."
            )
        encode(key)
        self.name = name
        self.key = key
        self.limits = {unit: parse_limits(limit) for unit, limit in limits.items()}
        for unit, limit in self.limits.items():
            expect_rate(unit, limit)
        self.parent = parent
        self.owned: Any = None
        self.store: Any
        self.lines: WaitQueue = WaitQueue() if parent is None else parent.lines
        if parent is not None:
            self.store = parent.store
        elif isinstance(store, str):
            self.store = self.owned = open_store(store, clock=clock, asynchronous=self.asynchronous)
        else:
            expect_store(store)
            self.store = store

    def units(self) -> list[str]:
        """Every unit that is limited here or above."""
        above = [] if self.parent is None else self.parent.units()
        return list(dict.fromkeys([*above, *self.limits]))

    def costs(self, given: dict[str, int], least: int = 1) -> dict[str, int]:
        """What is asked for of each unit, checked; a request counts as one unless it says otherwise."""
        known = self.units()
        for unit, cost in given.items():
            if unit not in known:
                raise InvalidCost(
                    f"{unit}: expected a unit of this budget ({', '.join(known)}), got {shown(unit)}."
                    f"{did_you_mean(unit, known)}"
                )
            whole_cost(cost, least)
        return given

    def plan(self, costs: dict[str, int], key: Key | None) -> Plan:
        """The checks of all levels, the highest first."""
        above = () if self.parent is None else self.parent.plan(costs, None)
        who = encode(self.key if key is None else key)
        own = [
            Check(f"{self.path()} {unit}", who, limit, costs[unit])
            for unit, limit in self.limits.items()
            if costs.get(unit)
        ]
        return (*above, *own)

    def path(self) -> str:
        return self.name if self.parent is None else f"{self.parent.path()}/{self.name}"

    def taking(
        self, key: Key | None, timeout: Seconds | None, priority: int, given: dict[str, int]
    ) -> tuple[dict[str, int], Plan, Flow[tuple[Decision, ...]]]:
        costs = self.costs({"requests": 1, **given} if "requests" in self.units() else given)
        plan = self.plan(costs, key)
        if timeout is None:
            return costs, plan, ask("check", plan)
        line = self.path(), encode(self.key if key is None else key)
        patience = patience_of(timeout)
        return costs, plan, acquire_plan(self.lines, line, plan, patience, self.store.clock, priority)

    def looking(self, key: Key | None) -> Flow[dict[str, int]]:
        costs = dict.fromkeys(self.units(), 1)
        plan = self.plan(costs, key)
        decisions = yield from ask("peek", plan)
        left: dict[str, int] = {}
        for check, decision in zip(plan, decisions, strict=True):
            unit = check.space.rpartition(" ")[2]
            left[unit] = min(left.get(unit, decision.remaining), decision.remaining)
        return {unit: left[unit] for unit in costs}


class Spending:
    """What was reserved: settle it for what was really used, at once or as it comes."""

    def __init__(self, purse: Purse, key: Key | None, costs: dict[str, int], plan: Plan) -> None:
        self.purse = purse
        self.key = key
        self.reserved = dict(costs)
        self.charged = dict(costs)
        self.used: dict[str, int] = {}
        self.plan = plan
        self.decisions: tuple[Decision, ...] = ()
        self.settled = True  # nothing is taken yet

    def taken(self, decisions: tuple[Decision, ...]) -> None:
        self.decisions = decisions
        self.settled = not all(decisions)

    def __bool__(self) -> bool:
        return bool(self.decisions) and all(self.decisions)

    @property
    def retry_after(self) -> float | None:
        """Seconds until it would fit: 0.0 if it did, None if it never can."""
        return longest_wait(self.decisions)

    def required(self) -> None:
        if not self:
            raise TooLate(binding(self.decisions), self.purse.path())

    def adding(self, given: dict[str, int]) -> Flow[None]:
        """Count what came; whatever goes beyond the reservation is charged at once."""
        self.open()
        more: dict[str, int] = {}
        for unit, amount in self.purse.costs(given, least=0).items():
            self.used[unit] = self.used.get(unit, 0) + amount
            if self.used[unit] > self.charged.get(unit, 0):
                more[unit] = self.used[unit] - self.charged.get(unit, 0)
                self.charged[unit] = self.used[unit]
        if more:
            yield from ask("take", self.purse.plan(more, self.key))

    def settling(self, given: dict[str, int]) -> Flow[None]:
        """Charge or give back, unit by unit, the difference between what was charged and what was used."""
        self.open()
        self.settled = True
        actual = {**self.used, **self.purse.costs(given, least=0)}
        less = {unit: self.charged.get(unit, 0) - amount for unit, amount in actual.items()}
        back = self.purse.plan({unit: amount for unit, amount in less.items() if amount > 0}, self.key)
        more = self.purse.plan({unit: -amount for unit, amount in less.items() if amount < 0}, self.key)
        if back:
            yield from give_back(back, self.decisions[0])
        if more:
            yield from ask("take", more)

    def leaving(self, failed: bool) -> Flow[None]:
        """At the end of a block: what was counted is charged; without a count an exception gives all back."""
        if not self.settled and (failed or self.used):
            unspent = {unit: self.used.get(unit, 0) for unit in self.reserved}
            if self.used:  # something came back, so the request was made
                unspent["requests"] = self.charged.get("requests", 0)
            yield from self.settling({unit: amount for unit, amount in unspent.items() if unit in self.charged})

    def open(self) -> None:
        if self.settled:
            why = "it was settled already" if self else "it was refused: there is nothing to settle"
            raise AlreadySettled(f"{self.purse.path()}: expected a reservation that is open, but {why}.")


class Budget(Purse):
    """Limits by unit, taken together: ``Budget(requests="60/minute", tokens="10000/minute")``.

    ``key`` is who spends, by default everybody together; ``parent`` is the budget that this one is within.
    """

    def child(self, name: str, *, key: Key = "all", **limits: Limits) -> Budget:
        """A budget within this one, on the same store: all that it spends is spent here too."""
        return Budget(name=name, key=key, parent=self, **limits)  # type: ignore[arg-type]

    def reserve(
        self, key: Key | None = None, *, timeout: Seconds | None = None, priority: int = 0, **costs: int
    ) -> BudgetReservation:
        """Take an estimate, waiting up to ``timeout`` seconds; settle it later.  A block raises TooLate if refused."""
        asked, plan, flow = self.taking(key, timeout, priority, costs)
        held = BudgetReservation(self, key, asked, plan)
        held.taken(drive(flow, self.store, self.store.clock, self.lines))
        return held

    def left(self, key: Key | None = None) -> dict[str, int]:
        """What is left of each unit, here and above."""
        return drive(self.looking(key), self.store, self.store.clock, self.lines)

    def close(self) -> None:
        """Let go of the store, if this budget opened it."""
        if self.owned is not None:
            self.owned.close()


class BudgetReservation(Spending):
    """A reservation of a Budget."""

    def add(self, **amounts: int) -> None:
        """Count what has come so far, as a stream goes on."""
        self.run(self.adding(amounts))

    def settle(self, **actual: int) -> None:
        """Charge what was used; units that are not named were used as counted, or else as reserved."""
        self.run(self.settling(actual))

    def run(self, flow: Flow[None]) -> None:
        drive(flow, self.purse.store, self.purse.store.clock, self.purse.lines)

    def __enter__(self) -> BudgetReservation:
        self.required()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.run(self.leaving(kind is not None))


class AsyncBudget(Purse):
    """Budget for an event loop: the same methods, to be awaited."""

    asynchronous = True

    def child(self, name: str, *, key: Key = "all", **limits: Limits) -> AsyncBudget:
        """A budget within this one, on the same store: all that it spends is spent here too."""
        return AsyncBudget(name=name, key=key, parent=self, **limits)  # type: ignore[arg-type]

    def reserve(
        self, key: Key | None = None, *, timeout: Seconds | None = None, priority: int = 0, **costs: int
    ) -> AsyncBudgetReservation:
        """Take an estimate, waiting up to ``timeout`` seconds: ``async with``, or await it."""
        asked, plan, flow = self.taking(key, timeout, priority, costs)
        return AsyncBudgetReservation(self, key, asked, plan, flow)

    async def left(self, key: Key | None = None) -> dict[str, int]:
        """What is left of each unit, here and above."""
        return await adrive(self.looking(key), self.store, self.store.clock, self.lines)

    async def close(self) -> None:
        """Let go of the store, if this budget opened it."""
        if self.owned is not None:
            closing = self.owned.close()
            if closing is not None:
                await closing


class AsyncBudgetReservation(Spending):
    """A reservation of an AsyncBudget."""

    def __init__(
        self, purse: Purse, key: Key | None, costs: dict[str, int], plan: Plan, flow: Flow[tuple[Decision, ...]]
    ) -> None:
        super().__init__(purse, key, costs, plan)
        self.flow = flow

    async def take(self) -> AsyncBudgetReservation:
        self.taken(await adrive(self.flow, self.purse.store, self.purse.store.clock, self.purse.lines))
        return self

    def __await__(self) -> Generator[Any, None, AsyncBudgetReservation]:
        return self.take().__await__()

    async def add(self, **amounts: int) -> None:
        """Count what has come so far, as a stream goes on."""
        await self.run(self.adding(amounts))

    async def settle(self, **actual: int) -> None:
        """Charge what was used; units that are not named were used as counted, or else as reserved."""
        await self.run(self.settling(actual))

    async def run(self, flow: Flow[None]) -> None:
        await adrive(flow, self.purse.store, self.purse.store.clock, self.purse.lines)

    async def __aenter__(self) -> AsyncBudgetReservation:
        await self.take()
        self.required()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self.run(self.leaving(kind is not None))

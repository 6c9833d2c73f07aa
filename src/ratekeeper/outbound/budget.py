"""Budgets for costs that are known only afterwards: requests and tokens per minute, reserved together, settled later.

>>> from ratekeeper.outbound import Budget
>>> from ratekeeper.testing import FakeClock
>>> budget = Budget(requests="60/minute", tokens="10000/minute", clock=FakeClock())
>>> with budget.reserve(tokens=4000) as spending:  # an estimate
...     spending.settle(tokens=1500)  # the usage that the answer reports
>>> budget.left()
{'requests': 59, 'tokens': 8500}

A budget may have a parent: a team's budget within its organisation's, a model's within an account's.  A reservation
takes all levels together, or none.  Law: a refusal takes nothing at any level; a settlement is charged at every
level, all of it: a budget may be in debt, and recovers in time.
"""

from __future__ import annotations

from time import time
from typing import TYPE_CHECKING, Any

from ratekeeper.awaitable import awaited, refuse_use
from ratekeeper.check import Check, to_cost
from ratekeeper.errors import InvalidCost, InvalidInput, InvalidLimit, did_you_mean, shown
from ratekeeper.flow.run import AsyncFlowRunner, FlowRunner
from ratekeeper.flow.settle import ask
from ratekeeper.keys import encode
from ratekeeper.outbound.budget_reservation import UnitReservation, unit_of
from ratekeeper.outbound.cooldown import cooldowns_of
from ratekeeper.outbound.delivery import patience_of
from ratekeeper.outbound.learned import Shares, parts_of
from ratekeeper.outbound.limits import expect_rate, provider_limit
from ratekeeper.outbound.outage import open_outbound
from ratekeeper.outbound.response_limits import pairs_of, read
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.response_limits import Headers
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

OPTIONS = ("name", "key", "store", "clock", "parent", "margin")
WORDS = {
    "rpm": ("requests", "minute"),
    "rpd": ("requests", "day"),
    "tpm": ("tokens", "minute"),
    "tpd": ("tokens", "day"),
}


class BudgetLevel:
    """One level of a budget: a limit for each unit, the key that it is counted under, and the level above."""

    def __init__(
        self,
        name: str,
        key: Key,
        limits: dict[str, Limits | int],
        store: str | Store,
        clock: Clock | None,
        parent: Budget | AsyncBudget | None,
        asynchronous: bool,
        margin: Seconds | None = None,
    ) -> None:
        by_unit = in_words(limits)
        if not by_unit:
            raise InvalidInput(
                "budget: expected a limit for at least one unit, such as tokens='10000/minute', got none."
            )
        if not isinstance(parent, (Budget, AsyncBudget, type(None))):
            raise InvalidInput(f"parent: expected a Budget, got {shown(parent)}.")
        encode(key)
        self.key = key
        owner = "AsyncBudget" if asynchronous else "Budget"
        micros = patience_of(margin, "margin")
        self.limits = {unit: unit_limit(owner, unit, limit, micros) for unit, limit in by_unit.items()}
        self.parent: BudgetLevel | None = None if parent is None else parent._level
        self.path: str = name if self.parent is None else f"{self.parent.path}/{name}"
        self.owned_store: Any = None
        if self.parent is not None:
            store = self.parent.runner.store
        elif isinstance(store, str):
            store = self.owned_store = open_outbound(store, clock, asynchronous)
        expect_store(store)
        self.runner: Any = AsyncFlowRunner(store) if asynchronous else FlowRunner(store)
        if self.parent is not None:
            self.runner.queue = self.parent.runner.queue
        self.shares: Shares
        if self.parent is not None:
            self.shares = self.parent.shares
        else:
            self.shares = Shares(cooldowns_of(self.runner.store, f"{name} learned"), name, holds=True)

    @property
    def top(self) -> BudgetLevel:
        """The highest level: the account of the provider."""
        return self if self.parent is None else self.parent.top

    def units(self) -> list[str]:
        """Every unit that has a limit here or above."""
        above = [] if self.parent is None else self.parent.units()
        return list(dict.fromkeys([*above, *self.limits]))

    def checked(self, costs: dict[str, int], least: int = 1) -> dict[str, int]:
        """``costs``, if every unit has a limit and every cost is a whole number of at least ``least``."""
        units = self.units()
        for unit, cost in costs.items():
            if unit not in units:
                advice = " Write timeout: how long to wait." if unit == "max_wait" else did_you_mean(unit, units)
                raise InvalidCost(
                    f"{unit}: expected a unit of this budget ({', '.join(units)}), got {shown(unit)}.{advice}"
                )
            to_cost(cost, least)
        return costs

    def plan(self, costs: dict[str, int], key: Key | None) -> Plan:
        """The checks of all levels, the highest first."""
        above = () if self.parent is None else self.parent.plan(costs, None)
        encoded = encode(self.key if key is None else key)
        checks = [
            Check(f"{self.path} {unit}", encoded, limit, costs[unit])
            for unit, limit in self.limits.items()
            if costs.get(unit)
        ]
        return (*above, *checks)

    def reservation_costs(self, costs: dict[str, int]) -> dict[str, int]:
        """The costs of a reservation, checked; it counts as one request unless ``costs`` says otherwise."""
        return self.checked({"requests": 1, **costs} if "requests" in self.units() else costs)

    def left(self, key: Key | None) -> Flow[dict[str, int]]:
        units = self.units()
        plan = self.plan(dict.fromkeys(units, 1), key)
        parts = parts_of(plan, [unit_of(check) for check in plan])
        if self.shares.is_due(parts):
            yield from self.shares.refresh(parts)
        spaces = {check.space for check in plan}
        plan = tuple([check for check in self.shares.apply(plan, parts) if check.space in spaces])
        decisions = yield from ask("peek", plan)
        left: dict[str, int] = {}
        for check, decision in zip(plan, decisions, strict=True):
            unit = unit_of(check)
            left[unit] = min(left.get(unit, decision.remaining), decision.remaining)
        return {unit: left[unit] for unit in units}


def in_words(limits: dict[str, Any]) -> dict[str, Limits]:
    """The limits of ``rpm=500, tpm=100_000, rpd=10_000`` by unit, beside those that are written out."""
    found: dict[str, Any] = {}
    for word, limit in limits.items():
        unit, period = WORDS.get(word, (word, None))
        if period is not None:
            if limit.__class__ is not int or limit < 1:
                raise InvalidLimit(f"{word}: expected a whole number per {period}, got {shown(limit)}.")
            limit = f"{limit}/{period}"
        earlier = found.get(unit)
        if earlier is not None:
            limit = [*(earlier if isinstance(earlier, list) else [earlier]), limit]
        found[unit] = limit
    return found


def unit_limit(owner: str, unit: str, limit: Limits, margin: int | None = None) -> Limit | LimitSet:
    """The limit of one unit.  Any keyword may be a unit, so a wrong one may be a misspelled option."""
    try:
        parsed = provider_limit(limit, margin)
    except InvalidLimit:
        advice = did_you_mean(unit, OPTIONS)
        if unit in ("timeout", "max_wait"):
            advice = " Write reserve(timeout=...): how long a reservation waits."
        if not advice and isinstance(limit, str):
            raise
        wanted = f"an option ({', '.join(OPTIONS)}) or a unit with a limit such as '10000/minute'"
        raise InvalidLimit(f"{owner}: expected {wanted}, got {unit!r}.{advice}") from None  # the cause shows its value
    expect_rate(unit, parsed)
    return parsed


class Budget:
    """Limits by unit, reserved together: ``Budget(requests="60/minute", tokens="10000/minute")``.

    ``key`` is what is counted, by default all callers together; ``parent`` is the budget that contains this one.
    """

    if not TYPE_CHECKING:

        def __new__(cls, *arguments, **options):
            """Refuse positional arguments, with the right spelling."""
            if arguments:
                raise InvalidInput(
                    f"{cls.__name__}: expected a limit for each unit by its name, got "
                    f"{len(arguments)} positional argument{'s' if len(arguments) > 1 else ''}. "
                    f"Write for example {cls.__name__}(requests='60/minute', tokens='10000/minute')."
                )
            return object.__new__(cls)

    def __init__(
        self,
        *,
        name: str = "budget",
        key: Key = "all",
        store: str | Store = "memory://",
        clock: Clock | None = None,
        parent: Budget | AsyncBudget | None = None,
        margin: Seconds | None = None,
        **limits: Limits | int,
    ) -> None:
        self._level = BudgetLevel(name, key, limits, store, clock, parent, asynchronous=False, margin=margin)

    def child(self, name: str, *, key: Key = "all", **limits: Limits | int) -> Budget:
        """A budget within this one, on the same store: every reservation of the child is one of the parent too."""
        return Budget(name=name, key=key, parent=self, **limits)  # type: ignore[arg-type]

    def reserve(
        self, key: Key | None = None, *, timeout: Seconds | None = None, priority: int = 0, **costs: int
    ) -> BudgetReservation:
        """Reserve an estimate, waiting up to ``timeout`` seconds; settle it later.

        As a ``with`` block it raises TooLate if it was refused.
        """
        reservation = BudgetReservation(self._level, key, timeout, priority, costs)
        self._level.runner.run(reservation._reserve())
        return reservation

    def left(self, key: Key | None = None) -> dict[str, int]:
        """The amount that is left of each unit; the least of all levels."""
        left: dict[str, int] = self._level.runner.run(self._level.left(key))
        return left

    def close(self) -> None:
        """Close the store, if this budget opened it."""
        if self._level.owned_store is not None:
            self._level.owned_store.close()


class BudgetReservation(UnitReservation):
    """A reservation of a Budget.  True if it was admitted; ``used`` is the usage that ``add`` has counted."""

    def add(self, **amounts: int) -> None:
        """Count usage as a stream goes on."""
        self._level.runner.run(self._add(amounts))

    def learn(self, headers: Headers, status: int = 200) -> None:
        """Adjust the budget to the limits in the header fields of an answer, for every process of its store."""
        self._level.runner.run(self._learn(read(pairs_of(headers), time()), status))

    def settle(self, **actual: int) -> None:
        """Charge the actual usage; a unit that is not named was used as counted by ``add``, or else as reserved."""
        self._level.runner.run(self._settle(actual))

    def __enter__(self) -> BudgetReservation:
        self._require()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._level.runner.run(self._leave(kind is not None))


class AsyncBudget:
    """Budget for an event loop: the same methods, to be awaited."""

    if not TYPE_CHECKING:
        __new__ = Budget.__new__

    def __init__(
        self,
        *,
        name: str = "budget",
        key: Key = "all",
        store: str | Store = "memory://",
        clock: Clock | None = None,
        parent: Budget | AsyncBudget | None = None,
        margin: Seconds | None = None,
        **limits: Limits | int,
    ) -> None:
        self._level = BudgetLevel(name, key, limits, store, clock, parent, asynchronous=True, margin=margin)

    def child(self, name: str, *, key: Key = "all", **limits: Limits | int) -> AsyncBudget:
        """A budget within this one, on the same store: every reservation of the child is one of the parent too."""
        return AsyncBudget(name=name, key=key, parent=self, **limits)  # type: ignore[arg-type]

    def reserve(
        self, key: Key | None = None, *, timeout: Seconds | None = None, priority: int = 0, **costs: int
    ) -> AsyncBudgetReservation:
        """Reserve an estimate, waiting up to ``timeout`` seconds: use it with ``async with``, or await it."""
        return AsyncBudgetReservation(self._level, key, timeout, priority, costs)

    @awaited
    async def left(self, key: Key | None = None) -> dict[str, int]:
        """The amount that is left of each unit; the least of all levels."""
        left: dict[str, int] = await self._level.runner.run(self._level.left(key))
        return left

    async def close(self) -> None:
        """Close the store, if this budget opened it."""
        if self._level.owned_store is not None:
            closing = self._level.owned_store.close()
            if closing is not None:
                await closing


class AsyncBudgetReservation(UnitReservation):
    """A reservation of an AsyncBudget.  True if it was admitted; ``used`` is the usage that ``add`` has counted."""

    if not TYPE_CHECKING:

        def __bool__(self):
            return super().__bool__() if self._decisions else refuse_use("AsyncBudget.reserve", "its truth value")

        def __enter__(self):
            refuse_use("AsyncBudget.reserve", "'with'", "Write: async with budget.reserve(…).")

        __exit__ = __enter__

    def __await__(self) -> Generator[Any, None, AsyncBudgetReservation]:
        if not self._decisions:  # awaited once, then entered as a block: reserve once
            yield from self._level.runner.run(self._reserve()).__await__()
        return self

    async def add(self, **amounts: int) -> None:
        """Count usage as a stream goes on."""
        await self._level.runner.run(self._add(amounts))

    async def learn(self, headers: Headers, status: int = 200) -> None:
        """Adjust the budget to the limits in the header fields of an answer, for every process of its store."""
        await self._level.runner.run(self._learn(read(pairs_of(headers), time()), status))

    async def settle(self, **actual: int) -> None:
        """Charge the actual usage; a unit that is not named was used as counted by ``add``, or else as reserved."""
        await self._level.runner.run(self._settle(actual))

    async def __aenter__(self) -> AsyncBudgetReservation:
        await self
        self._require()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._level.runner.run(self._leave(kind is not None))

"""Calls to language models within a budget: each attempt reserves an estimate, and its answer's usage settles it.

    concurrency slot -> [ cooldown -> reservation -> request -> answer ] -> usage -> settle, slot given back

The slot comes first: a call that waits for a slot after its reservation would be sent later than it was counted, and
the provider could see the calls of two minutes in one.

Law: every attempt that was sent counts as a request.  Its tokens are what the answer reports; 0 if the provider refused
it (4xx); the estimate, if nobody knows (5xx, a broken connection, an answer without usage).
"""

from __future__ import annotations

import json
from logging import getLogger
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, RatekeeperError, shown
from ratekeeper.limit import Limit
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.outbound.budget import AsyncBudget, Budget
from ratekeeper.outbound.delivery import TooLate
from ratekeeper.outbound.estimate import ModelCall, TokenEstimator, count_text
from ratekeeper.outbound.response_limits import NOTHING, pairs_of, read
from ratekeeper.outbound.retry import REFUSED
from ratekeeper.outbound.usage import Usage, UsageReader
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.keys import Key
    from ratekeeper.outbound.delivery import PacedRequest, Pacer
    from ratekeeper.outbound.meter import Meter
    from ratekeeper.outbound.response_limits import Headers
    from ratekeeper.stores.protocol import Store

    AnyBudget = Budget | AsyncBudget
    Estimate = Callable[[ModelCall], tuple[int, int]]

TOKEN_UNITS = ("tokens", "input_tokens", "output_tokens", "cache_read_tokens")
FOR_EVER = 10 * 365 * 86_400.0  # seconds
LONGEST_CALL = "10 minutes"  # after that a slot ends, should its call have been forgotten
log = getLogger("ratekeeper")


class Metering:
    """The settings of one transport: its budget, its concurrency limit, its estimator and its meter."""

    def __init__(
        self,
        budget: AnyBudget | Callable[[ModelCall], Any] | None,
        concurrent: int | str | Limit | None,
        estimate: Estimate | None,
        meter: Meter | None,
        store: Store,
        name: str,
        asynchronous: bool,
    ) -> None:
        self.kind: type[AnyBudget] = AsyncBudget if asynchronous else Budget
        self.budget: AnyBudget | None = None
        self.choose: Callable[[ModelCall], Any] | None = None
        if callable(budget):
            self.choose = budget
        elif budget is not None:
            self.budget = self.expected(budget)
        if estimate is not None and not callable(estimate):
            raise InvalidInput(f"estimate: expected a function of a ModelCall, got {shown(estimate)}.")
        self.estimate: Estimate = TokenEstimator() if estimate is None else estimate
        self.count: Callable[[str], int] = getattr(estimate, "count", count_text)
        self.meter = meter
        self.slots: Any = None
        if concurrent is not None:
            limiter: Any = AsyncLimiter if asynchronous else Limiter
            self.slots = limiter(slot_limit(concurrent), store=store, name=f"{name} concurrent")

    def expected(self, budget: Any) -> AnyBudget:
        if not isinstance(budget, self.kind):
            wanted, other = ("a Budget", "an AsyncBudget") if self.kind is Budget else ("an AsyncBudget", "a Budget")
            got = other if isinstance(budget, (Budget, AsyncBudget)) else shown(budget)
            raise InvalidInput(f"budget: expected {wanted} or a function of a ModelCall, got {got}.")
        return budget

    def budget_of(self, call: ModelCall) -> AnyBudget | None:
        if self.choose is None:
            return self.budget
        budget = self.choose(call)
        return None if budget is None else self.expected(budget)

    def costs(self, call: ModelCall, budget: AnyBudget) -> dict[str, int]:
        """The estimate, in those units that the budget has; at most what fits: a larger one could never be admitted."""
        try:
            inputs, output = self.estimate(call)
        except (TypeError, ValueError) as error:
            raise InvalidInput("estimate: expected a pair of whole numbers, the tokens of input and output.") from error
        costs = units_of(Usage(inputs, output), budget)
        return {unit: min(cost, capacity(budget, unit)) for unit, cost in costs.items() if cost}


def slot_limit(concurrent: int | str | Limit) -> Limit:
    limit = Limit.parse(f"{concurrent} concurrent for {LONGEST_CALL}" if isinstance(concurrent, int) else concurrent)
    if not limit.is_leased:
        raise InvalidInput(f"concurrent: expected a number of calls, such as 20, got {shown(concurrent)}.")
    return limit


def units_of(usage: Usage, budget: AnyBudget) -> dict[str, int]:
    """Usage in those units that the budget has."""
    units = budget._level.units()
    return {unit: getattr(usage, unit) for unit in TOKEN_UNITS if unit in units}


def capacity(budget: AnyBudget, unit: str) -> int:
    """The most of a unit that one reservation can take, at all levels."""
    level: Any = budget._level
    most = []
    while level is not None:
        if unit in level.limits:
            most += [part.capacity for part in level.limits[unit].parts]
        level = level.parent
    return min(most)


def model_call(path: str, content: bytes | None) -> ModelCall:
    try:
        body = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        body = {}
    return ModelCall(path, body if isinstance(body, dict) else {})


class MeteredCall:
    """One call of a transport: what it reserved, what it used, and how long it waited.  Its subclasses do the I/O."""

    def __init__(
        self, metering: Metering, pacer: Pacer, request: PacedRequest, call: ModelCall, tenant: Key | None
    ) -> None:
        self.metering = metering
        self.pacer = pacer
        self.request = request
        self.call = call
        self.budget: Any = metering.budget_of(call)
        self.tenant = tenant
        self.costs = {} if self.budget is None else metering.costs(call, self.budget)
        self.began_at = pacer.clock.nanos()
        self.waited = 0.0
        self.reader: UsageReader | None = None
        self.slot: Any = None
        self.reservation: Any = None
        request.has_budget = self.budget is not None

    def arguments(self, patience: int | None) -> dict[str, Any]:
        """Arguments of ``reserve``, of a budget and of a limiter alike: there None does not wait at all."""
        timeout = FOR_EVER if patience is None else patience / SECOND or None
        return {"timeout": timeout, "priority": self.request.priority}

    def started(self, slot: Any) -> None:
        """Keep a slot, or raise TooLate; the time that it took is no longer left for other waits."""
        if not slot:
            raise TooLate(slot.decision, self.metering.slots.name)
        self.slot = slot
        if self.request.max_wait is not None:
            self.request.max_wait = max(0, self.request.max_wait - (self.pacer.clock.nanos() - self.began_at) // 1000)

    def sending(self) -> None:
        self.waited = (self.pacer.clock.nanos() - self.began_at) / 1e9

    def nothing_used(self) -> dict[str, int]:
        """What to settle if nothing was sent."""
        return dict.fromkeys(["requests", *self.costs] if "requests" in self.budget._level.units() else self.costs, 0)

    def learning(self, status: int, headers: Headers) -> Any:
        """The flow that adjusts the budget to an answer; None if the answer says nothing about limits."""
        limits = NOTHING if self.reservation is None else read(pairs_of(headers), self.pacer.wall())
        if limits is NOTHING and status != REFUSED:
            return None
        return None if self.reservation is None else self.reservation._learn(limits, status)

    def watch(self, status: int, content_type: str, content_encoding: str) -> None:
        """Read the usage of this answer."""
        if status < 400:
            self.reader = UsageReader(content_type, content_encoding, self.metering.count)

    def usage(self) -> dict[str, int] | None:
        """What to settle at the end of the answer: None if that is not known."""
        reader, self.reader = self.reader, None
        if reader is None:
            return None
        usage = reader.finish()
        if self.metering.meter is not None:
            self.metering.meter.record(self.call.model, usage, self.waited)
        if usage is None:
            if self.budget is not None and self.costs:
                log.info("%s: the answer reported no usage; the estimate of %s stays charged.", *self.named())
            return None
        return None if self.budget is None else units_of(usage, self.budget)

    def named(self) -> tuple[str, str]:
        costs = ", ".join([f"{cost} {unit}" for unit, cost in self.costs.items()])
        return self.request.name, costs or "no tokens"

    def not_settled(self, error: RatekeeperError) -> None:
        """An answer is not lost because its settlement is."""
        log.warning("%s: the usage was not settled, and the estimate of %s stays charged: %s", *self.named(), error)


class SyncMeteredCall(MeteredCall):
    """A MeteredCall for threads."""

    def start(self) -> None:
        if self.metering.slots is not None:
            self.started(self.metering.slots.reserve(self.request.key, **self.arguments(self.request.max_wait)))

    def reserve(self, patience: int | None) -> None:
        try:
            self.reservation = self.budget.reserve(self.tenant, **self.arguments(patience), **self.costs).__enter__()
        except TooLate as error:
            raise TooLate(error.decision, error.name) from None  # its advice names an argument of the transport

    def release(self) -> None:
        """Give the reservation back: nothing was sent."""
        self.settle(self.nothing_used())

    def answered(self, status: int, headers: Headers) -> None:
        """Learn the provider's limits, and settle an attempt that it refused; others are settled after their body."""
        learning = self.learning(status, headers)
        if learning is not None:
            self.budget._level.runner.run(learning)
        if 400 <= status < 500 and self.costs:
            self.settle(dict.fromkeys(self.costs, 0))

    def settle(self, actual: dict[str, int]) -> None:
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            try:
                reservation.settle(**actual)
            except RatekeeperError as error:
                self.not_settled(error)

    def end(self) -> None:
        """The answer has passed, or the call has failed."""
        usage = self.usage()
        if usage is not None:
            self.settle(usage)
        slot, self.slot = self.slot, None
        if slot is not None and not slot.settled:
            slot.settle(0)


class AsyncMeteredCall(MeteredCall):
    """A MeteredCall for an event loop."""

    async def start(self) -> None:
        if self.metering.slots is not None:
            self.started(await self.metering.slots.reserve(self.request.key, **self.arguments(self.request.max_wait)))

    async def reserve(self, patience: int | None) -> None:
        try:
            self.reservation = await self.budget.reserve(
                self.tenant, **self.arguments(patience), **self.costs
            ).__aenter__()
        except TooLate as error:
            raise TooLate(error.decision, error.name) from None  # its advice names an argument of the transport

    async def release(self) -> None:
        """Give the reservation back: nothing was sent."""
        await self.settle(self.nothing_used())

    async def answered(self, status: int, headers: Headers) -> None:
        """Learn the provider's limits, and settle an attempt that it refused; others are settled after their body."""
        learning = self.learning(status, headers)
        if learning is not None:
            await self.budget._level.runner.run(learning)
        if 400 <= status < 500 and self.costs:
            await self.settle(dict.fromkeys(self.costs, 0))

    async def settle(self, actual: dict[str, int]) -> None:
        reservation, self.reservation = self.reservation, None
        if reservation is not None:
            try:
                await reservation.settle(**actual)
            except RatekeeperError as error:
                self.not_settled(error)

    async def end(self) -> None:
        """The answer has passed, or the call has failed."""
        usage = self.usage()
        try:
            if usage is not None:
                await self.settle(usage)
        finally:
            slot, self.slot = self.slot, None
            if slot is not None and not slot.settled:
                await slot.settle(0)

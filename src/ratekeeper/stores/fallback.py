"""The fallback of a remote store: what decides while the store cannot, as ``on_store_error`` says.  No I/O.

``local`` counts in this process, with a share of each limit.  It starts from what the store last said about the key, so
that an outage gives nobody a fresh limit.  ``allow`` admits, ``deny`` refuses.  The ``reason`` of each decision begins
with the mode.
"""

from __future__ import annotations

from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.decision import Decision, PresetDecision, binding, new_decision
from ratekeeper.errors import InvalidLimit, StoreUnavailable
from ratekeeper.limit import Limit, LimitSet
from ratekeeper.native import core
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.stores.protocol import Store
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.plans import PlanTranslator

MOST_SHARES = 1024
MOST_WARM = 20_000  # keys of one table: as many as its layout remembers
DENIED_FOR = SECOND  # microseconds: the retry_after of ``deny``


class ReducedLimit(Limit):
    """A share of a limit, whose decisions carry the reason of the fallback."""

    __slots__ = ("reason",)
    reason: str

    def _identity(self) -> tuple[object, ...]:
        return *super()._identity(), self.reason


class Fallback:
    """Answers for one store, made in this process."""

    def __init__(self, mode: str, share: float, translator: PlanTranslator, clock: Clock) -> None:
        self.mode = mode
        self.share = share
        self.translator = translator
        self.clock = clock
        self.local = memory_store(clock)
        self.shares: dict[tuple[int, str], tuple[Limit, Limit]] = {}

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> Any:
        """Answer ``operation`` in place of the store."""
        if operation in ("reset", "states"):  # the fallback knows neither
            raise error or StoreUnavailable(self.translator.store, "is unavailable")
        why = error.why if error is not None else "the store did not answer"
        modes = [check.on_store_error or self.mode for check in plan]
        if operation == "check" and "deny" in modes:
            operation = "peek"  # all or nothing: a refused plan takes nothing
        local = [self.parts(check, why) if mode == "local" else () for check, mode in zip(plan, modes, strict=True)]
        flat = tuple([part for parts in local for part in parts])
        decisions = iter(
            getattr(self.local, operation)(*((flat, at) if operation == "refund" else (flat,))) if flat else ()
        )
        answers = []
        for check, mode, parts in zip(plan, modes, local, strict=True):
            reason = f"{mode}: {why}"
            if mode == "local":
                answers.append(joined([next(decisions) for _ in parts], reason))
            else:
                answers.append(settled(check, mode == "allow", reason, self.clock.nanos() // 1000))
        return tuple(answers)

    def parts(self, check: Check, why: str) -> tuple[Check, ...]:
        """The check as it is counted here: each limit by itself, as full as the store last said."""
        table = self.table(self.translator.layout(check.space, check.limit))
        parts = table.parts(check.key, check.cost, why)
        table.warm_up(check.key, parts)
        return parts

    def table(self, layout: RecordLayout) -> FallbackTable:
        """Where the limit of ``layout`` is counted."""
        if layout.fallback is None:
            layout.fallback = FallbackTable(self, layout)
        return layout.fallback

    def table_for(self, layout: RecordLayout, on_store_error: str | None = None) -> FallbackTable | None:
        """The table whose ``check`` alone answers for ``layout``; None: ``answer`` must."""
        is_one = isinstance(layout.limit, Limit) and layout.is_single
        return self.table(layout) if is_one and (on_store_error or self.mode) == "local" else None

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Drop what is counted here of the states that ``limit`` reads."""
        for index, part in enumerate(limit.parts):
            self.local.release(f"{space}#{index}", self.scale(part))

    def scale(self, limit: Limit, why: str = "") -> Limit:
        """``share`` of the limit, at least 1."""
        if limit.is_unlimited:
            return limit
        cached = self.shares.get((id(limit), why))
        if cached is not None and cached[0] is limit:
            return cached[1]
        count, burst = (max(1, int(number * self.share)) for number in (limit.count, limit.burst))
        while True:
            reduced = ReducedLimit.__new__(ReducedLimit)
            try:
                bucket = limit.algorithm in BUCKETS
                reduced._build(
                    str(limit), count, limit.micros, burst if bucket else None, limit.algorithm, limit.slices
                )
                break
            except InvalidLimit:  # a rate that cannot be represented: try a smaller, simpler one
                count = count - 1 if count < 1000 else count // 10 * 9
        reduced._set(reason=f"local: {why}")
        if len(self.shares) >= MOST_SHARES:
            self.shares.clear()
        self.shares[id(limit), why] = limit, reduced
        return reduced


class NoFallback(Fallback):
    """Raises instead of answering: an experiment in the lab must be decided by its store alone."""

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> Any:
        raise error or StoreUnavailable(self.translator.store, "gave no answer")

    def table_for(self, layout: RecordLayout, on_store_error: str | None = None) -> None:
        return None


class FallbackTable:
    """Where the limits of one layout are counted while their store is away."""

    def __init__(self, fallback: Fallback, layout: RecordLayout) -> None:
        self.fallback = fallback
        self.layout = layout
        self.refusals = layout.refusals.by_key
        self.limits: tuple[Limit, ...] = layout.limit.parts
        self.spaces = [f"{layout.space}#{index}" for index in range(len(self.limits))]
        self.warm: dict[str | bytes, tuple[int, int]] = {}  # the last answer of the store when a key was warmed up
        self.why: str | None = None

    def check(self, key: str | bytes, cost: int, why: str) -> Decision:
        """Take ``cost`` of the only limit, or answer a cached refusal: the hot path of an outage."""
        if why is not self.why:
            self.reword(why)
        layout = self.layout
        if key in self.refusals:
            refusal = layout.refusals.known(key, layout.limit, cost, self.fallback.clock.nanos())
            if refusal is not None:
                return refusal
        if (key in layout.recent or key in layout.older) and self.warm.get(key) is not layout.seen:
            self.warm_up(key, self.parts(key, 1, why))
        if key.__class__ is str:
            return self.count(key, cost)
        return self.fallback.local.check(self.parts(key, cost, why))[0]  # a table would encode it again

    def reword(self, why: str) -> None:
        """Give ``why`` as the reason from now on."""
        self.shares = [self.fallback.scale(limit, why) for limit in self.limits]
        self.count = self.fallback.local.table(self.spaces[0], self.shares[0]).check
        self.why = why

    def parts(self, key: str | bytes, cost: int, why: str) -> tuple[Check, ...]:
        """A check of each limit, scaled."""
        if why is not self.why:
            self.reword(why)
        return tuple([Check(space, key, share, cost) for space, share in zip(self.spaces, self.shares, strict=True)])

    def warm_up(self, key: str | bytes, parts: Sequence[Check]) -> None:
        """Take here what the store last said was used, once for each answer of the store."""
        layout, local = self.layout, self.fallback.local
        seen = layout.seen
        last = layout.recall(key)
        if last is None or self.warm.get(key) is seen:
            return
        if len(self.warm) >= MOST_WARM:
            self.warm.clear()
        self.warm[key] = seen
        now = seen[0] + (self.fallback.clock.nanos() - seen[1]) // 1000
        states = last if isinstance(layout.limit, LimitSet) else (last,)
        for limit, state, part in zip(self.limits, states, parts, strict=True):
            used = limit.capacity - limit.rule.remaining(state, now, limit)
            share = -(-used * part.limit.capacity // limit.capacity)  # type: ignore[union-attr]
            (peeked,) = local.peek((Check(part.space, key, part.limit, 1),))
            missing = share - (peeked.limit - peeked.remaining)
            if missing > 0:
                local.take((Check(part.space, key, part.limit, missing),))


class FallbackPlan:
    """A prepared plan, counted here while its store is away."""

    def __init__(self, fallback: Fallback, rows: Sequence[tuple[RecordLayout, int, str | None]]) -> None:
        self.fallback = fallback
        self.rows = rows
        tables = [fallback.table_for(layout, on_store_error) for layout, _, on_store_error in rows]
        # If every row is one limit that is counted here, they are a prepared plan of the store in this process.
        self.tables = [table for table in tables if table is not None] if all(tables) else []
        self.why: str | None = None

    def check(self, keys: Sequence[str | bytes], why: str) -> tuple[bool, tuple[Decision, ...]]:
        """Take every cost for its encoded key, or none."""
        if not self.tables or not all(key.__class__ is str for key in keys):  # a plan would encode bytes again
            plan = [
                Check(layout.space, key, layout.limit, cost, mode)
                for (layout, cost, mode), key in zip(self.rows, keys, strict=True)
            ]
            decisions = self.fallback.answer(
                "check", StoreUnavailable(self.fallback.translator.store, why), tuple(plan)
            )
            return all(decision.allowed for decision in decisions), decisions
        if why is not self.why:
            self.reword(why)
        for table, key in zip(self.tables, keys, strict=True):
            layout = table.layout
            if (key in layout.recent or key in layout.older) and table.warm.get(key) is not layout.seen:
                table.warm_up(key, table.parts(key, 1, why))
        return self.prepared.check(tuple(keys))

    def reword(self, why: str) -> None:
        """Give ``why`` as the reason from now on."""
        rows = []
        for table, (_, cost, _) in zip(self.tables, self.rows, strict=True):
            table.reword(why)
            rows.append((table.spaces[0], table.shares[0], cost, None))
        self.prepared = self.fallback.local.prepare(tuple(rows))
        self.why = why


def memory_store(clock: Clock) -> Store:
    """A store in this process: in C if the core was built."""
    if core is None:
        from ratekeeper.stores.memory import MemoryStore

        return MemoryStore(clock=clock)
    from ratekeeper.stores.native import NativeStore

    return NativeStore(clock=clock)


def joined(parts: Sequence[Decision], reason: str) -> Decision:
    """One decision for the limits of a key, with its reason."""
    if len(parts) == 1:
        return parts[0]
    decisive = binding(parts)
    reset = max(round(part.reset_after * SECOND) for part in parts)
    delay = max(round(part.delay * SECOND) for part in parts)
    remaining = min(part.remaining for part in parts)
    preset = PresetDecision(decisive.limit, remaining, micros(decisive.retry_after), reset, delay, reason, tuple(parts))
    return new_decision(Decision, (decisive.allowed, preset, None, decisive.at, 0))


def settled(check: Check, allowed: bool, reason: str, now: int) -> Decision:
    """Admitted or refused without counting anything."""
    limits = check.limit.parts
    parts = []
    for limit in limits:
        remaining, retry = (limit.capacity, 0) if allowed else (0, DENIED_FOR)
        preset = PresetDecision(limit.capacity, remaining, retry, 0, 0, reason)
        parts.append(new_decision(Decision, (allowed, preset, None, now, 0)))
    return parts[0] if len(parts) == 1 else joined(parts, reason)


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)

"""The fallback of a remote store: what decides while the store cannot, as ``on_store_error`` says.  No I/O.

``local`` counts in this process, with a share of each limit.  It starts from what the store last said about the key, so
that an outage gives nobody a fresh limit.  What it admits is noted (see owed.py), and charged when the store is back,
unless nobody knows whether the store has counted the call already.  ``allow`` admits, ``deny`` refuses.  The ``reason``
of each decision begins with the mode.

A cost above the share, which is any cost if the share is less than 1, is saved up for: it is admitted when the share
has grown to it since the outage began.  So what all nodes admit in an outage is the sum of their shares, and no more.
"""

from __future__ import annotations

from _thread import allocate_lock

from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check, LeaseCheck
from ratekeeper.decision import Decision, PresetDecision, binding, new_decision
from ratekeeper.errors import InvalidLimit, StoreUnavailable
from ratekeeper.limit import UNLIMITED, Limit, LimitSet
from ratekeeper.stores.owed import Owed, memory_store
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.plans import PlanTranslator

# Spaces beside a rule's own: who is blocked, and what was refused or graced.  What they count is no share of anything.
BESIDE = ("#blocked", "#refused", "#graced")
MOST_SHARES = 1024
MOST_WARM = 20_000  # keys of one table: as many as its layout remembers
HELD_ELSEWHERE = 1  # the id of the leases that were held when the store was last heard of
BEFORE_OUTAGE = 15 * SECOND  # microseconds for which they count: as long as a lease lasts without heartbeats
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
        self.full = memory_store(clock)  # the same admissions under the full limits: what the store is owed
        self.owing: dict[FallbackTable, None] = {}  # the tables that owe the store something
        self.lock = allocate_lock()  # for costs above a share, which are decided in more than one step
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
        decisions = iter(self.count(operation, flat, at) if flat else ())
        answers = []
        for check, mode, parts in zip(plan, modes, local, strict=True):
            reason = f"{mode}: {why}"
            if mode == "local":
                answers.append(joined([next(decisions) for _ in parts], reason))
            else:
                answers.append(settled(check, mode == "allow", reason, self.clock.nanos() // 1000))
        if operation in ("check", "take", "debit", "refund"):
            self.note(operation, error, plan, modes, answers, at)
        return tuple(answers)

    def note(
        self,
        operation: str,
        error: StoreUnavailable | None,
        plan: Plan,
        modes: Sequence[str],
        answers: Sequence[Decision],
        at: int | None,
    ) -> None:
        """Note what the store is owed for these answers."""
        if operation == "check" and not all(answer.allowed for answer in answers):
            return
        for check, mode in zip(plan, modes, strict=True):
            if mode != "local":
                continue
            table = self.table(self.translator.layout(check.space, check.limit))
            if operation == "refund":
                table.owed.subtract(check.key, check.cost, at)
            elif error is not None and error.charged is False:
                table.owe(check.key, check.cost)

    def count(self, operation: str, parts: Sequence[LocalCheck], at: int | None) -> list[Decision]:
        """Decide ``operation`` here.  Costs above their share are decided by what was saved up for them."""
        large = [part for part in parts if part.saved is not None]
        if not large:
            plan = tuple([part.check for part in parts])
            return list(getattr(self.local, operation)(*((plan, at) if operation == "refund" else (plan,))))
        with self.lock:
            now = self.clock.nanos()
            peeked = self.local.peek(tuple([part.check for part in large]))
            used = [decision.limit - decision.remaining for decision in peeked]
            waits = {id(part): part.wait(now, each) for part, each in zip(large, used, strict=True)}
            can_pass = all(wait == 0 for wait in waits.values())
            plan = tuple([part.check for part in parts if part.saved is None])
            step = "peek" if operation == "check" and not can_pass else operation
            small = getattr(self.local, step)(*((plan, at) if step == "refund" else (plan,))) if plan else ()
            is_taken = operation in ("take", "debit") or (
                step == "check" and all(decision.allowed for decision in small)
            )
            decisions = iter(small)
            answers = []
            for part in parts:
                if part.saved is None:
                    answers.append(next(decisions))
                    continue
                if is_taken or operation == "refund":
                    part.spend(now, part.check.cost if is_taken else -part.check.cost)
                answers.append(part.decision(now, waits[id(part)]))
            return answers

    def parts(self, check: Check, why: str) -> tuple[LocalCheck, ...]:
        """The check as it is counted here: each limit by itself, as full as the store last said."""
        table = self.table(self.translator.layout(check.space, check.limit))
        parts = table.parts(check.key, check.cost, why)
        if check.lease:
            (part,) = parts
            parts = (LeaseCheck(part.space, part.key, part.limit, part.cost, None, check.lease, 0),)
        table.warm_up(check.key, parts)
        return tuple([LocalCheck(part, table.saving(index, part)) for index, part in enumerate(parts)])

    def collect(self, most: int) -> list[tuple[RecordLayout, str | bytes, tuple[int, ...]]]:
        """What the store is owed, for up to ``most`` keys: it is the caller's now, to be charged or noted again."""
        collected: list[tuple[RecordLayout, str | bytes, tuple[int, ...]]] = []
        for table in list(self.owing):
            collected += [(table.layout, key, costs) for key, costs in table.owed.collect(most - len(collected))]
            if table.owed.keys:
                break
            self.owing.pop(table, None)
            if table.owed.keys:  # another thread noted something meanwhile
                self.owing[table] = None
        return collected

    def owe(self, layout: RecordLayout, key: str | bytes, costs: Sequence[int]) -> None:
        """Note again what could not be charged."""
        table = self.table(layout)
        table.owed.add(key, costs)
        self.owing[table] = None

    def forget_owed(self) -> None:
        """Drop what is owed: a forked child must not charge for its parent."""
        for table in list(self.owing):
            table.owed.forget()
        self.owing.clear()

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

    def whole_share(self, limit: Limit, share: float) -> int:
        """The largest cost that a share of a limit admits at once; 0 if that is less than 1."""
        if limit.is_unlimited:
            return UNLIMITED
        return self.scale(limit).capacity if share * limit.capacity >= 1 else 0

    def scale(self, limit: Limit, why: str = "") -> Limit:
        """``share`` of the limit, at least 1: see Savings for less."""
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
                    str(limit),
                    count,
                    limit.micros,
                    burst if bucket else None,
                    limit.algorithm,
                    limit.slices,
                    calendar=limit.calendar,
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


class Savings:
    """What a limit saves up for costs above its share: the share grows from the start of an outage, for each key.

    Like gcra: a cost fits if the instant at which all is recovered, later by the cost, is at most one share ahead.
    That instant may lie in the past, but no further than the cost needs, so that nothing is saved beyond it.  Instants
    are our nanoseconds.
    """

    __slots__ = ("ahead", "by_key", "capacity", "each", "whole")

    def __init__(self, limit: Limit, share: float, whole: int) -> None:
        self.whole = whole  # the largest cost that the share itself can decide
        self.capacity = limit.capacity
        self.each = -int(-limit.micros * 1000 / (share * limit.count) // 1)  # in which a cost of 1 is saved up
        self.ahead = int(share * limit.capacity * self.each)
        self.by_key: dict[str | bytes, tuple[int, int]] = {}  # when the outage began, and when all is recovered

    def recovered_at(self, key: str | bytes, began: int, used: int) -> int:
        """When all of a key is recovered, of which ``used`` was in use when the outage began."""
        entry = self.by_key.get(key)
        if entry is None or entry[0] != began:
            entry = self.by_key[key] = began, max(began + used * self.each, entry[1] if entry is not None else 0)
        return entry[1]


class LocalCheck:
    """A check of one limit as it is counted here; ``saved`` is what decides it if its cost is above the share."""

    __slots__ = ("began", "check", "saved")

    def __init__(self, check: Check, saving: tuple[Savings, int] | None = None) -> None:
        self.check = check
        self.saved: Savings | None = None if saving is None else saving[0]
        self.began = 0 if saving is None else saving[1]

    def wait(self, now: int, used: int) -> int | None:
        """Nanoseconds until the cost has been saved up; None: it is above the limit itself."""
        saved, check = self.saved, self.check
        assert saved is not None
        if check.cost > saved.capacity:
            return None
        if len(saved.by_key) >= MOST_WARM and check.key not in saved.by_key:
            return DENIED_FOR * 1000
        return max(0, saved.recovered_at(check.key, self.began, used) + check.cost * saved.each - saved.ahead - now)

    def spend(self, now: int, cost: int) -> None:
        """Take ``cost`` of what was saved up; give back if it is negative."""
        saved = self.saved
        assert saved is not None
        ends = saved.recovered_at(self.check.key, self.began, 0)
        if cost > 0:
            ends = max(ends, now + saved.ahead - cost * saved.each)
        saved.by_key[self.check.key] = self.began, ends + cost * saved.each

    def decision(self, now: int, wait: int | None) -> Decision:
        limit: Any = self.check.limit
        assert self.saved is not None
        retry = None if wait is None else -(-wait // 1000)
        reset = self.saved.ahead // 1000
        preset = PresetDecision(limit.capacity, 0, retry, reset, 0, limit.reason)
        return new_decision(Decision, (wait == 0, preset, None, now // 1000, 0))


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
        self.owed = Owed(fallback.full, self.spaces, self.limits)
        self.is_charged = not layout.limit.is_leased  # leases are given back by their own ids
        share = 1.0 if layout.space.endswith(BESIDE) else fallback.share
        self.savings = [Savings(limit, share, fallback.whole_share(limit, share)) for limit in self.limits]
        self.whole = self.savings[0].whole
        self.seen: tuple[int, int] | None = None  # the last answer of the store before the outage
        self.began = 0  # our nanoseconds: since when the shares grow

    def owe(self, key: str | bytes, cost: int) -> None:
        """Note that the store must be charged for an admission."""
        if self.is_charged:
            self.owed.add(key, [cost] * len(self.limits))
            if self not in self.fallback.owing:
                self.fallback.owing[self] = None

    def saving(self, index: int, part: Check) -> tuple[Savings, int] | None:
        """What decides a cost above the share, and since when that grows; None: the share decides."""
        savings = self.savings[index]
        if part.cost <= savings.whole:
            return None
        self.note_outage()
        return savings, self.began

    def note_outage(self) -> None:
        if self.seen is not self.layout.seen:  # the store has answered since: this is another outage
            self.seen, self.began = self.layout.seen, self.fallback.clock.nanos()

    def check(self, key: str | bytes, cost: int, why: str, is_owed: bool = True) -> Decision:
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
        if cost > self.whole:
            check = Check(layout.space, key, layout.limit, cost, "local")
            error = StoreUnavailable(self.fallback.translator.store, why, charged=False if is_owed else None)
            return self.fallback.answer("check", error, (check,))[0]
        if key.__class__ is str:
            decision = self.count(key, cost)
        else:
            decision = self.fallback.local.check(self.parts(key, cost, why))[0]  # a table would encode it again
        if is_owed and decision.allowed:
            self.owe(key, cost)
        return decision

    def reword(self, why: str) -> None:
        """Give ``why`` as the reason from now on."""
        self.shares = [self.fallback.scale(limit, why) for limit in self.limits]
        self.count = self.fallback.local.table(self.spaces[0], self.shares[0]).check
        self.why = why
        self.note_outage()

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
            if limit.is_leased and share > 0:  # by holders elsewhere, which the fallback does not see leave
                held = LeaseCheck(part.space, key, part.limit, share, None, HELD_ELSEWHERE, BEFORE_OUTAGE)
                local.renew((held,))
            elif missing > 0:
                local.take((Check(part.space, key, part.limit, missing),))


class FallbackPlan:
    """A prepared plan, counted here while its store is away."""

    def __init__(self, fallback: Fallback, rows: Sequence[tuple[RecordLayout, int, str | None]]) -> None:
        self.fallback = fallback
        self.rows = rows
        tables = [fallback.table_for(layout, on_store_error) for layout, _, on_store_error in rows]
        # If every row is one limit that is counted here, they are a prepared plan of the store in this process.
        self.tables = [table for table in tables if table is not None]
        costs = [cost for _, cost, _ in rows]
        self.is_plain = all(tables) and all(cost <= table.whole for table, cost in zip(self.tables, costs, strict=True))
        self.why: str | None = None

    def check(self, keys: Sequence[str | bytes], why: str, is_owed: bool = True) -> tuple[bool, tuple[Decision, ...]]:
        """Take every cost for its encoded key, or none."""
        if not self.is_plain or not all(key.__class__ is str for key in keys):  # a plan would encode bytes again
            plan = [
                Check(layout.space, key, layout.limit, cost, mode)
                for (layout, cost, mode), key in zip(self.rows, keys, strict=True)
            ]
            charged = False if is_owed else None
            decisions = self.fallback.answer(
                "check", StoreUnavailable(self.fallback.translator.store, why, charged), tuple(plan)
            )
            return all(decision.allowed for decision in decisions), decisions
        if why is not self.why:
            self.reword(why)
        for table, key in zip(self.tables, keys, strict=True):
            layout = table.layout
            if (key in layout.recent or key in layout.older) and table.warm.get(key) is not layout.seen:
                table.warm_up(key, table.parts(key, 1, why))
        allowed, decisions = self.prepared.check(tuple(keys))
        if allowed and is_owed:
            for table, key, (_, cost, _) in zip(self.tables, keys, self.rows, strict=True):
                table.owe(key, cost)
        return allowed, decisions

    def reword(self, why: str) -> None:
        """Give ``why`` as the reason from now on."""
        rows = []
        for table, (_, cost, _) in zip(self.tables, self.rows, strict=True):
            table.reword(why)
            rows.append((table.spaces[0], table.shares[0], cost, None))
        self.prepared = self.fallback.local.prepare(tuple(rows))
        self.why = why


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

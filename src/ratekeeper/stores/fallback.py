"""What decides while a store cannot: for each check what its ``on_store_error`` says.  In this process, no I/O.

``local`` counts here, with a share of each limit, and starts from what the store last said about the key: an outage
hands nobody a fresh limit.  ``allow`` admits, ``deny`` refuses.  Each answer says so in its ``reason``, which begins
with the mode.
"""

from __future__ import annotations

from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.decision import Decision, PresetDecision, binding, decided
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

SHARE = 0.5  # of each limit, where nothing is said: two instances together then keep it
MOST_SHARES = 1024
MOST_WARM = 20_000  # keys of one desk: as many as its ledger remembers
DENIED_FOR = SECOND  # microseconds that a caller is told to wait where the store must be asked


class ReducedLimit(Limit):
    """Part of a limit, whose decisions say why they were made here."""

    __slots__ = ("reason",)
    reason: str

    def _identity(self) -> tuple[object, ...]:
        return *super()._identity(), self.reason


class Fallback:
    """In-process answers for one store."""

    def __init__(self, mode: str, share: float | None, books: PlanTranslator, clock: Clock) -> None:
        self.mode = mode
        self.share = SHARE if share is None else share
        self.books = books
        self.clock = clock
        self.local = memory_store(clock)
        self.shares: dict[tuple[int, str], tuple[Limit, Limit]] = {}

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> Any:
        """What stands in for the store's own answer to ``operation``."""
        if operation in ("reset", "states"):  # neither can be made up
            raise error or StoreUnavailable("store", "is unavailable")
        why = error.why if error is not None else "the store did not answer"
        modes = [check.on_store_error or self.mode for check in plan]
        if operation == "check" and "deny" in modes:
            operation = "peek"  # all or nothing: nobody pays for what is refused
        here = [self.parts(check, why) if mode == "local" else () for check, mode in zip(plan, modes, strict=True)]
        flat = tuple([part for parts in here for part in parts])
        found = iter(
            getattr(self.local, operation)(*((flat, at) if operation == "refund" else (flat,))) if flat else ()
        )
        answers = []
        for check, mode, parts in zip(plan, modes, here, strict=True):
            reason = f"{mode}: {why}"
            if mode == "local":
                answers.append(joined([next(found) for _ in parts], reason))
            else:
                answers.append(settled(check, mode == "allow", reason, self.clock.nanos() // 1000))
        return tuple(answers)

    def parts(self, check: Check, why: str) -> tuple[Check, ...]:
        """The check as it is counted here: each limit by itself, as full as the store last said."""
        desk = self.desk(self.books.ledger(check.space, check.limit))
        parts = desk.parts(check.key, check.cost, why)
        desk.warm_up(check.key, parts)
        return parts

    def desk(self, ledger: RecordLayout) -> FallbackTable:
        """Where what ``ledger`` knows is counted."""
        if ledger.desk is None:
            ledger.desk = FallbackTable(self, ledger)
        return ledger.desk

    def desk_for(self, ledger: RecordLayout, on_store_error: str | None = None) -> FallbackTable | None:
        """The desk whose ``check`` is all that stands in for ``ledger``: one limit, and counted here."""
        return self.desk(ledger) if ledger.first and (on_store_error or self.mode) == "local" else None

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Let go of what is counted here of the states that ``limit`` reads."""
        for index, part in enumerate(limit.parts):
            self.local.release(f"{space}#{index}", self.scale(part))

    def scale(self, limit: Limit, why: str = "") -> Limit:
        """``share`` of the limit, at least 1."""
        if limit.is_unlimited:
            return limit
        kept = self.shares.get((id(limit), why))
        if kept is not None and kept[0] is limit:
            return kept[1]
        count, burst = (max(1, int(number * self.share)) for number in (limit.count, limit.burst))
        while True:
            made = ReducedLimit.__new__(ReducedLimit)
            try:
                bucket = limit.algorithm in BUCKETS
                made._build(str(limit), count, limit.micros, burst if bucket else None, limit.algorithm, limit.slices)
                break
            except InvalidLimit:  # an odd rate that cannot be held: the next simpler one below
                count = count - 1 if count < 1000 else count // 10 * 9
        made.fix(reason=f"local: {why}")
        if len(self.shares) >= MOST_SHARES:
            self.shares.clear()
        self.shares[id(limit), why] = limit, made
        return made


class NoFallback(Fallback):
    """Raises instead of answering: an experiment in the lab must be decided by its store alone."""

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> Any:
        raise error or StoreUnavailable("store", "gave no answer")

    def desk_for(self, ledger: RecordLayout, on_store_error: str | None = None) -> None:
        return None


class FallbackTable:
    """Where the limits of one ledger are counted while their store is away."""

    def __init__(self, standby: Fallback, ledger: RecordLayout) -> None:
        self.standby = standby
        self.ledger = ledger
        self.denied = ledger.denials.by_key
        limit = ledger.limit
        self.limits: tuple[Limit, ...] = limit.parts
        self.spaces = [f"{ledger.space}#{index}" for index in range(len(self.limits))]
        self.warm: dict[str | bytes, tuple[int, int]] = {}  # what the store had said when a key was brought here
        self.why: str | None = None

    def check(self, key: str | bytes, cost: int, why: str) -> Decision:
        """Take ``cost`` of the first limit, or say what is known of ``key``: the hot path of an outage."""
        if why is not self.why:
            self.reword(why)
        ledger = self.ledger
        if key in self.denied:
            known = ledger.denials.known(key, ledger.limit, cost, self.standby.clock.nanos())
            if known is not None:
                return known
        if (key in ledger.recent or key in ledger.older) and self.warm.get(key) is not ledger.seen:
            self.warm_up(key, self.parts(key, 1, why))
        if key.__class__ is str:
            return self.count(key, cost)
        return self.standby.local.check(self.parts(key, cost, why))[0]  # a table would encode it again

    def reword(self, why: str) -> None:
        """Give another reason from now on."""
        self.shares = [self.standby.scale(limit, why) for limit in self.limits]
        self.count = self.standby.local.table(self.spaces[0], self.shares[0]).check
        self.why = why

    def parts(self, key: str | bytes, cost: int, why: str) -> tuple[Check, ...]:
        """A check of each limit, scaled."""
        if why is not self.why:
            self.reword(why)
        return tuple([Check(space, key, share, cost) for space, share in zip(self.spaces, self.shares, strict=True)])

    def warm_up(self, key: str | bytes, parts: Sequence[Check]) -> None:
        """Bring what is counted here up to what the store last said, once for each time it said something."""
        ledger, local = self.ledger, self.standby.local
        seen = ledger.seen
        last = ledger.recall(key)
        if last is None or self.warm.get(key) is seen:
            return
        if len(self.warm) >= MOST_WARM:
            self.warm.clear()
        self.warm[key] = seen
        now = seen[0] + (self.standby.clock.nanos() - seen[1]) // 1000
        states = last if isinstance(ledger.limit, LimitSet) else (last,)
        for limit, state, part in zip(self.limits, states, parts, strict=True):
            used = limit.capacity - limit.rule.remaining(state, now, limit)
            share = -(-used * part.limit.capacity // limit.capacity)  # type: ignore[union-attr]
            (peeked,) = local.peek((Check(part.space, key, part.limit, 1),))
            missing = share - (peeked.limit - peeked.remaining)
            if missing > 0:
                local.take((Check(part.space, key, part.limit, missing),))


def memory_store(clock: Clock) -> Store:
    """A store in this process: in C where it was built."""
    if core is None:
        from ratekeeper.stores.memory import MemoryStore

        return MemoryStore(clock=clock)
    from ratekeeper.stores.native import NativeStore

    native: Any = NativeStore(clock=clock)
    return native


def joined(parts: Sequence[Decision], reason: str) -> Decision:
    """One decision for the limits of a key, with its reason."""
    if len(parts) == 1:
        return parts[0]
    decisive = binding(parts)
    reset = max(round(part.reset_after * SECOND) for part in parts)
    delay = max(round(part.delay * SECOND) for part in parts)
    remaining = min(part.remaining for part in parts)
    given = PresetDecision(decisive.limit, remaining, micros(decisive.retry_after), reset, delay, reason, tuple(parts))
    return decided(Decision, (decisive.allowed, given, None, decisive.at, 0))


def settled(check: Check, allowed: bool, reason: str, now: int) -> Decision:
    """Admitted or refused without counting anything."""
    limits = check.limit.parts
    parts = []
    for limit in limits:
        remaining, retry = (limit.capacity, 0) if allowed else (0, DENIED_FOR)
        given = PresetDecision(limit.capacity, remaining, retry, 0, 0, reason)
        parts.append(decided(Decision, (allowed, given, None, now, 0)))
    return parts[0] if len(parts) == 1 else joined(parts, reason)


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)

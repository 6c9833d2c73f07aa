"""What decides while a store cannot: for each check what its ``on_store_error`` says.  In this process, no I/O.

``local`` counts here, with a share of each limit, and starts from what the store last said about the key: an outage
hands nobody a fresh limit.  ``allow`` admits, ``deny`` refuses.  Each answer says so in its ``reason``, which begins
with the mode.
"""

from __future__ import annotations

from ratekeeper.algorithms import BUCKETS
from ratekeeper.errors import InvalidLimit, StoreUnavailable
from ratekeeper.model import Check, Decision, Given, Limit, Several, decided
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.model import Plan
    from ratekeeper.stores.books import Books
    from ratekeeper.stores.codec import Ledger

SHARE = 0.5  # of each limit, where nothing is said: two instances together then keep it
MOST_SCALED = 1024
MOST_WARM = 100_000
DENIED_FOR = SECOND  # microseconds that a caller is told to wait where the store must be asked


class Standby:
    """In-process answers for one store."""

    def __init__(self, mode: str, share: float | None, books: Books, clock: Clock) -> None:
        from ratekeeper.stores import open_store

        self.mode = mode
        self.share = SHARE if share is None else share
        self.books = books
        self.clock = clock
        self.local = open_store("memory://", clock=clock)
        self.scaled: dict[int, tuple[Limit, Limit]] = {}
        self.desks: dict[tuple[str, int], tuple[Limit, Limit, Any]] = {}
        self.warm: dict[bytes, tuple[int, int]] = {}

    def answer(self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None) -> Any:
        """What stands in for the store's own answer to ``operation``."""
        if operation in ("reset", "states"):  # neither can be made up
            raise error or StoreUnavailable("store", "is unavailable")
        why = error.why if error is not None else "the store did not answer"
        if operation == "check" and len(plan) == 1:
            (check,) = plan
            if self.counts(check):
                return (restated(self.counted(check, self.books.ledger(check.space, check.limit)), f"local: {why}"),)
        modes = [check.on_store_error or self.mode for check in plan]
        if operation == "check" and "deny" in modes:
            operation = "peek"  # all or nothing: nobody pays for what is refused
        here = [self.parts(check) if mode == "local" else () for check, mode in zip(plan, modes, strict=True)]
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

    def counts(self, check: Check) -> bool:
        """Whether ``counted`` may answer: it is one limit, and counted here."""
        return (check.on_store_error or self.mode) == "local" and check.limit.__class__ is Limit

    def counted(self, check: Check, ledger: Ledger) -> Decision:
        """The common case, without the detours of the general one: it must cost next to nothing."""
        limit = check.limit
        desk = self.desks.get((check.space, id(limit)))
        if desk is None or desk[0] is not limit:
            desk = self.open_desk(check.space, limit)  # type: ignore[arg-type]
        name = ledger.names.get(check.key)
        if name is None or self.warm.get(name[0]) != ledger.seen:
            part = Check(check.space + "#0", check.key, desk[1], check.cost)
            self.warm_up(check, (limit,), (part,))  # type: ignore[arg-type]
        return desk[2].check(check.key, check.cost)

    def open_desk(self, space: str, limit: Limit) -> tuple[Limit, Limit, Any]:
        """Where ``limit`` is counted here: its share, and the table of that."""
        scaled = self.scale(limit)
        if len(self.desks) >= MOST_SCALED:
            self.desks.clear()
        found = self.desks[space, id(limit)] = limit, scaled, self.local.table(space + "#0", scaled)
        return found

    def parts(self, check: Check) -> tuple[Check, ...]:
        """The check as it is counted here: each limit by itself and scaled, as full as the store last said."""
        limit = check.limit
        limits = limit.limits if isinstance(limit, Several) else (limit,)
        parts = tuple(
            [
                Check(f"{check.space}#{index}", check.key, self.scale(part), check.cost)
                for index, part in enumerate(limits)
            ]
        )
        self.warm_up(check, limits, parts)
        return parts

    def scale(self, limit: Limit) -> Limit:
        """``share`` of the limit, at least 1."""
        if limit.is_unlimited:
            return limit
        kept = self.scaled.get(id(limit))
        if kept is not None and kept[0] is limit:
            return kept[1]
        count, burst = (max(1, int(number * self.share)) for number in (limit.count, limit.burst))
        while True:
            made = Limit.__new__(Limit)
            try:
                bucket = limit.algorithm in BUCKETS
                made._build(str(limit), count, limit.micros, burst if bucket else None, limit.algorithm, limit.slices)
                break
            except InvalidLimit:  # an odd rate that cannot be held: the next simpler one below
                count = count - 1 if count < 1000 else count // 10 * 9
        if len(self.scaled) >= MOST_SCALED:
            self.scaled.clear()
        self.scaled[id(limit)] = limit, made
        return made

    def warm_up(self, check: Check, limits: Sequence[Limit], parts: Sequence[Check]) -> None:
        """Bring what is counted here up to what the store last said, once for each time it said something."""
        ledger = self.books.ledger(check.space, check.limit)
        if not ledger.subjects:
            return
        name = ledger.keys(check.key)[0]
        if self.warm.get(name) == ledger.seen:
            return
        if len(self.warm) >= MOST_WARM:
            self.warm.clear()
        self.warm[name] = ledger.seen
        last = ledger.recall(name)
        if last is None:
            return
        now = ledger.seen[0] + (self.clock.nanos() - ledger.seen[1]) // 1000
        states = last if isinstance(check.limit, Several) else (last,)
        for limit, state, part in zip(limits, states, parts, strict=True):
            used = limit.capacity - limit.rule.remaining(state, now, limit)
            share = -(-used * part.limit.capacity // limit.capacity)  # type: ignore[union-attr]
            (peeked,) = self.local.peek((Check(part.space, part.key, part.limit, 1),))
            missing = share - (peeked.limit - peeked.remaining)
            if missing > 0:
                self.local.take((Check(part.space, part.key, part.limit, missing),))


def joined(parts: Sequence[Decision], reason: str) -> Decision:
    """One decision for the limits of a key, with its reason."""
    told = [restated(part, reason) for part in parts]
    if len(told) == 1:
        return told[0]
    refused = [part for part in told if not part.allowed]
    if refused:
        binding = max(refused, key=lambda part: float("inf") if part.retry_after is None else part.retry_after)
    else:
        binding = min(told, key=lambda part: part.remaining)
    reset = max(round(part.reset_after * SECOND) for part in told)
    delay = max(round(part.delay * SECOND) for part in told)
    remaining = min(part.remaining for part in told)
    given = Given(binding.limit, remaining, micros(binding.retry_after), reset, delay, reason, tuple(told))
    return decided(Decision, (not refused, given, None, binding.at, 0))


class Echo:
    """Another decision's answers, worked out when they are read, in the place of a limit: see model.Given."""

    __slots__ = ("decision", "reason")

    def __init__(self, decision: Decision, reason: str) -> None:
        self.decision = decision
        self.reason = reason

    @property
    def rule(self) -> Echo:
        return self

    @property
    def capacity(self) -> int:
        return self.decision.limit

    def remaining(self, state: object, now: int, limit: Echo) -> int:
        return self.decision.remaining

    def retry_after(self, state: object, now: int, limit: Echo, cost: int) -> int | None:
        return micros(self.decision.retry_after)

    def reset_after(self, state: object, now: int, limit: Echo) -> int:
        return round(self.decision.reset_after * SECOND)

    def delay(self, state: object, now: int, limit: Echo, cost: int) -> int:
        return round(self.decision.delay * SECOND)


def restated(decision: Decision, reason: str) -> Decision:
    return decided(Decision, (decision.allowed, Echo(decision, reason), None, decision.at, 0))


def settled(check: Check, allowed: bool, reason: str, now: int) -> Decision:
    """Admitted or refused without counting anything."""
    limits = check.limit.limits if isinstance(check.limit, Several) else (check.limit,)
    parts = []
    for limit in limits:
        remaining, retry = (limit.capacity, 0) if allowed else (0, DENIED_FOR)
        given = Given(limit.capacity, remaining, retry, 0, 0, reason)
        parts.append(decided(Decision, (allowed, given, None, now, 0)))
    return parts[0] if len(parts) == 1 else joined(parts, reason)


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)

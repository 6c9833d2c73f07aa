"""The rules that a request meets, and how it is decided by them.

A selection is compiled once for each set of rules that a request can meet, and then serves every such request:

* ``SingleSelection``: one unconditional limit, the most common case.  ``AddressSelection`` is the one by address.
* ``PreparedSelection``: unconditional rules.  Their checks are one prepared plan that only waits for its keys.
* ``GuardedSelection``: rules that also look at the client, at a penalty, at a cost in the request, or at a queue, on a
  store in this process.  It admits requests that nothing special happens to.
* ``GeneralSelection``: anything else, decided step by step by ``decide.py``.

Each has ``check``, which may block, and ``answer`` for event loops, which returns the verdict at once if it can, and
otherwise an awaitable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.check import Check
from ratekeeper.errors import InvalidCost
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.http.verdict import HttpVerdict, VerdictNotes
from ratekeeper.identity.identity import Caller
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.rules.counter import BLOCKED, cost_of
from ratekeeper.rules.rule import ANY_TIER
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.counter import RuleCounter, TierLimit
    from ratekeeper.rules.decide import CompiledRules
    from ratekeeper.stores.protocol import Answer, Store

NO_QUEUE = WaitQueue()  # deciding a request never waits in a queue


class PreparedChecks:
    """The limits of one tier as one prepared plan.  ``keys`` makes the key of each limit from a caller."""

    __slots__ = ("cost", "entries", "keys", "plan", "shadow", "table")

    def __init__(self, counters: Iterable[RuleCounter], tier: str) -> None:
        limits = [counter.entries.get(tier, counter.default) for counter in counters]
        kept = [limit for limit in limits if limit is not None and not limit.is_unlimited]
        enforced = [limit for limit in kept if not limit.counter.is_shadow]
        self.entries = tuple(enforced)
        self.keys = tuple([limit.counter.key for limit in enforced])
        self.shadow = tuple([ShadowCheck(limit) for limit in kept if limit.counter.is_shadow])
        self.plan: Any = NothingToCheck
        self.table: Any = None  # of the only limit
        self.cost = enforced[0].counter.constant if enforced else 0  # 0: each request has its own
        if len(enforced) == 1:
            self.table = table_of(enforced[0])
        if enforced and self.cost:
            self.plan = prepare(enforced)


def prepare(limits: list[TierLimit]) -> Any:
    rows = []
    for limit in limits:
        counter = limit.counter
        rows.append((counter.space, limit.limit, counter.constant, counter.rule.on_store_error))
    return limits[0].counter.store.prepare(tuple(rows))


def table_of(limit: TierLimit) -> Any:
    """Where the limit is counted."""
    counter = limit.counter
    return counter.store.table(counter.space, limit.limit, counter.rule.on_store_error)


class NothingToCheck:
    """The plan of a tier without limits."""

    @staticmethod
    def check(keys: tuple[str, ...]) -> tuple[bool, tuple[Decision, ...]]:
        return True, ()

    check_now = check


class ShadowCheck:
    """A rule that counts each admitted request and refuses none."""

    __slots__ = ("check", "check_now", "cost", "entry", "key")

    def __init__(self, entry: TierLimit) -> None:
        counter = entry.counter
        table = table_of(entry)
        self.entry = entry
        self.key: Callable[[Caller], str] = counter.key
        self.cost = counter.constant
        self.check: Callable[..., Any] = table.check
        self.check_now: Callable[..., Decision | None] = table.check_now


class MatchedRules:
    """What every selection knows."""

    __slots__ = ("counters", "endpoint", "identity", "response")

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...]) -> None:
        self.counters = counters
        self.identity = rules.identity
        self.response = rules.response
        # What events call an endpoint that the framework does not name: the pattern of a rule, the first that has one.
        patterns = [pattern.text for counter in counters for pattern in counter.rule.patterns]
        self.endpoint = max(patterns, key=lambda text: text != "/**", default="/**")

    @property
    def ready(self) -> PreparedChecks | None:
        """The checks that every caller must pass, if they alone decide, whatever the tier."""
        return None

    def refusal(self, request: Request, entries: tuple[TierLimit, ...], decisions: tuple[Decision, ...]) -> HttpVerdict:
        """The verdict of a request that was refused: by a limit, or because its store is away and the rule denies."""
        for entry, decision in zip(entries, decisions, strict=True):
            if is_denied(decision):
                return HttpVerdict(request, self.response, (), "store", VerdictNotes(refuser=entry.counter.rule))
        return HttpVerdict(request, self.response, tuple(zip(entries, decisions, strict=True)), "limit")


class SingleSelection(MatchedRules):
    """One unconditional, enforced limit for every tier."""

    __slots__ = ("cost", "entry", "key", "table", "table_check")

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...], entry: TierLimit) -> None:
        super().__init__(rules, counters)
        (counter,) = counters
        self.entry = entry
        self.key = counter.key
        self.cost = counter.constant
        self.table: Any = table_of(entry)
        self.table_check = self.table.check

    @property
    def ready(self) -> PreparedChecks | None:
        return PreparedChecks(self.counters, ANY_TIER)

    def key_of(self, request: Request) -> str:
        return self.key(Caller(self.identity, request))

    def check(self, request: Request) -> HttpVerdict:
        decision = self.table_check(self.key_of(request), self.cost)
        if decision.allowed:
            return HttpVerdict(request, self.response, ((self.entry, decision),))
        return self.refusal(request, (self.entry,), (decision,))

    def answer(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        key = self.key_of(request)
        decision = self.table.check_now(key, self.cost)
        return self.verdict(request, decision) if decision is not None else self.wait(request, key)

    async def wait(self, request: Request, key: str) -> HttpVerdict:
        return self.verdict(request, await self.table_check(key, self.cost))

    def verdict(self, request: Request, decision: Decision) -> HttpVerdict:
        if decision.allowed:
            return HttpVerdict(request, self.response, ((self.entry, decision),))
        return self.refusal(request, (self.entry,), (decision,))


class AddressSelection(SingleSelection):
    """One limit by address, in this process: nothing else about the caller is looked at.

    Written out because this is what most applications run, and each call would cost a twentieth of it.
    """

    __slots__ = ("find_address",)

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...], entry: TierLimit) -> None:
        super().__init__(rules, counters, entry)
        self.find_address = rules.identity.addresses.find

    def check(self, request: Request) -> HttpVerdict:
        decision = self.table_check(self.find_address(request).subject, self.cost)
        return HttpVerdict(request, self.response, ((self.entry, decision),), "" if decision.allowed else "limit")

    answer = check


class PreparedSelection(MatchedRules):
    """Unconditional rules, the enforced ones on one store: one prepared plan for each tier."""

    __slots__ = ("by_tier", "checks")

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...]) -> None:
        super().__init__(rules, counters)
        tiers = {ANY_TIER}.union(*[counter.entries for counter in counters if counter.by_tier])
        self.by_tier = {tier: PreparedChecks(counters, tier) for tier in tiers}
        self.checks = self.by_tier[ANY_TIER] if len(tiers) == 1 else None  # None: the tier makes a difference

    @property
    def ready(self) -> PreparedChecks | None:
        return self.checks if self.checks is not None and not self.checks.shadow else None

    def checks_of(self, caller: Caller) -> PreparedChecks:
        return self.by_tier.get(caller.tier) or self.by_tier[ANY_TIER]

    def check(self, request: Request) -> HttpVerdict:
        caller = Caller(self.identity, request)
        checks = self.checks or self.checks_of(caller)
        allowed, decisions = checks.plan.check(tuple([key(caller) for key in checks.keys]))
        if not allowed:
            return self.refusal(request, checks.entries, decisions)
        verdict = HttpVerdict(request, self.response, tuple(zip(checks.entries, decisions, strict=True)))
        if checks.shadow:
            decisions = [shadow.check(shadow.key(caller), shadow.cost) for shadow in checks.shadow]
            verdict.notes = shadow_notes(checks.shadow, decisions)
        return verdict

    def answer(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        caller = Caller(self.identity, request)
        checks = self.checks or self.checks_of(caller)
        answer = checks.plan.check(tuple([key(caller) for key in checks.keys]))
        if answer.__class__ is not tuple:
            return self.wait(request, caller, checks, answer)
        allowed, decisions = answer
        if not allowed:
            return self.refusal(request, checks.entries, decisions)
        verdict = HttpVerdict(request, self.response, tuple(zip(checks.entries, decisions, strict=True)))
        if not checks.shadow:
            return verdict
        decisions = [shadow.check_now(shadow.key(caller), shadow.cost) for shadow in checks.shadow]
        if None in decisions:
            return self.wait_for_shadow(verdict, caller, checks.shadow, decisions)
        verdict.notes = shadow_notes(checks.shadow, decisions)
        return verdict

    async def wait(
        self, request: Request, caller: Caller, checks: PreparedChecks, answer: Awaitable[Answer]
    ) -> HttpVerdict:
        allowed, decisions = await answer
        if not allowed:
            return self.refusal(request, checks.entries, decisions)
        verdict = HttpVerdict(request, self.response, tuple(zip(checks.entries, decisions, strict=True)))
        if checks.shadow:
            await self.wait_for_shadow(verdict, caller, checks.shadow, [None] * len(checks.shadow))
        return verdict

    async def wait_for_shadow(
        self,
        verdict: HttpVerdict,
        caller: Caller,
        shadows: tuple[ShadowCheck, ...],
        decisions: list[Decision | None],
    ) -> HttpVerdict:
        made = []
        for shadow, decision in zip(shadows, decisions, strict=True):
            if decision is None:
                decision = shadow.check(shadow.key(caller), shadow.cost)
                if hasattr(decision, "__await__"):
                    decision = await decision
            made.append(decision)
        verdict.notes = shadow_notes(shadows, made)
        return verdict


class GuardedSelection(PreparedSelection):
    """Conditional rules on a store in this process, for requests that they admit without more ado.

    Exemptions, blocks and costs are looked at first, which takes nothing, and a plan that is refused takes nothing
    either.  So whatever is not plainly admitted is decided from the beginning by ``decide.py``, and by nothing else.
    """

    __slots__ = ("blocks", "exempting", "general", "has_queues", "rules")

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...]) -> None:
        super().__init__(rules, counters)
        self.rules = rules
        self.general = GeneralSelection(rules, counters)
        self.exempting = tuple([counter for counter in counters if counter.exempt])
        blocks = [counter for counter in counters if counter.block is not None and not counter.is_shadow]
        self.blocks = tuple(
            [(counter.key, counter.space + BLOCKED, counter.block, counter.store) for counter in blocks]
        )
        self.has_queues = any(limit.is_queue for counter in counters for limit in counter.rule.limits.values())

    @property
    def ready(self) -> PreparedChecks | None:
        return None

    def check(self, request: Request) -> HttpVerdict:
        caller = Caller(self.identity, request)
        for counter in self.exempting:
            if counter.is_exempt(caller):
                return self.general.check(request)
        for make_key, space, block, store in self.blocks:
            key: str | bytes = make_key(caller)
            check = Check(space, key if len(key) <= LONGEST else encode(key), block, 1, "local")  # type: ignore[arg-type]
            if not store.peek((check,))[0].allowed:
                return self.general.check(request)
        checks = self.checks or self.checks_of(caller)
        if checks.table is None:
            allowed, decisions = checks.plan.check(tuple([key(caller) for key in checks.keys]))
            if not allowed:
                return self.general.check(request)
            answers = tuple(zip(checks.entries, decisions, strict=True))
        else:
            cost = checks.cost
            if not cost:
                try:
                    cost = min(UNLIMITED, cost_of(checks.entries[0].counter.rule, request))
                except InvalidCost:
                    return self.general.check(request)
                if not cost:
                    return self.general.check(request)
            decision = checks.table.check(checks.keys[0](caller), cost)
            if not decision.allowed:
                return self.general.check(request)
            answers = ((checks.entries[0], decision),)
        verdict = HttpVerdict(request, self.response, answers)
        if self.has_queues:
            for entry, decision in answers:
                if decision.delay * SECOND > entry.counter.rule.max_delay:
                    return run(self.rules.refuse_late(request, self.rules.taken(verdict)), self.rules.fleet)
        if checks.shadow:
            made = [shadow.check(shadow.key(caller), shadow.cost) for shadow in checks.shadow]
            verdict.notes = shadow_notes(checks.shadow, made)
        return verdict

    answer = check


class GeneralSelection(MatchedRules):
    """Rules that depend on more than the limit: exempt clients, penalties, grace, queues, costs, several stores."""

    __slots__ = ("awaits", "hits", "rules")

    def __init__(self, rules: CompiledRules, counters: tuple[RuleCounter, ...], hits: int = 1) -> None:
        super().__init__(rules, counters)
        self.rules = rules
        self.hits = hits  # how often each cost is taken; 0 only looks
        functions = [counter.rule.limit_function for counter in counters]
        self.awaits = any(function is not None and function.is_async for function in functions)

    def check(self, request: Request) -> HttpVerdict:
        return run(self.rules.decide(self, request), self.rules.fleet)

    def answer(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        if self.rules.answers_at_once and not self.awaits:
            return run(self.rules.decide(self, request), self.rules.fleet)
        return adrive(self.rules.decide(self, request), self.rules.fleet, self.rules.fleet.clock, NO_QUEUE)


Selection = SingleSelection | PreparedSelection | GeneralSelection  # a GuardedSelection is a PreparedSelection


def run(flow: Flow[Any], store: Store) -> Any:
    return drive(flow, store, store.clock, NO_QUEUE)


def shadow_notes(shadows: tuple[ShadowCheck, ...], decisions: Iterable[Any]) -> VerdictNotes:
    """What rules in shadow would have said to an admitted request."""
    if len(shadows) == 1:
        (decision,), (shadow,) = decisions, shadows
        refused = () if decision.allowed else (shadow.entry.counter.name,)
        return VerdictNotes(shadow=refused, unenforced=((shadow.entry, decision),))
    unenforced = tuple([(shadow.entry, decision) for shadow, decision in zip(shadows, decisions, strict=True)])
    refusing = [entry.counter.name for entry, decision in unenforced if not decision.allowed]
    return VerdictNotes(shadow=tuple(refusing) if refusing else (), unenforced=unenforced)


def is_denied(decision: Decision) -> bool:
    """Whether it was refused because the store is away and the rule says deny."""
    return not decision.allowed and decision.reason.startswith("deny")


def selection_for_hits(rules: CompiledRules, selection: Selection, hits: int) -> Selection:
    """The same rules, for a request that counts ``hits`` times; 0 takes nothing."""
    return selection if hits == 1 else GeneralSelection(rules, selection.counters, hits)


def are_guardable(counters: tuple[RuleCounter, ...]) -> bool:
    """Whether a ``GuardedSelection`` may decide by these rules, all in this process."""
    is_priced = any(counter.rule.cost.source for counter in counters)
    return all(counter.is_guardable and not counter.store.blocking for counter in counters) and (
        not is_priced or (len(counters) == 1 and not counters[0].is_shadow)
    )


def selection_of(rules: CompiledRules, counters: tuple[RuleCounter, ...]) -> Selection:
    """The quickest kind of selection that decides by these rules."""
    enforced_on = {id(counter.store) for counter in counters if not counter.is_shadow}
    is_plain = len(enforced_on) <= 1 and all(counter.is_unconditional for counter in counters)
    is_counted_once = sum(not counter.is_shadow for counter in counters) == 1
    if (
        len(enforced_on) == 1
        and (not is_plain or (is_counted_once and (len(counters) > 1 or counters[0].by_tier)))
        and are_guardable(counters)
    ):
        return GuardedSelection(rules, counters)
    if not is_plain:
        return GeneralSelection(rules, counters)
    if len(counters) == 1 and not counters[0].is_shadow and not counters[0].by_tier:
        (counter,) = counters
        if counter.default is not None and not counter.default.is_unlimited:
            by_address = counter.rule.by == ("ip",) and (counter.is_local or rules.answers_at_once)
            kind = AddressSelection if by_address else SingleSelection
            return kind(rules, counters, counter.default)
    return PreparedSelection(rules, counters)

"""Rules made ready, and how they decide a request.

How a request is decided, in order:

1. Rules that match it are found; those that are off, and those it is exempt from, drop out.
2. ``allow_from``: an address from elsewhere is refused with 403.
3. A subject that a penalty has blocked is refused.
4. All enforced limits are decided together, all or nothing: those of this instance first, then those of the fleet in
   one call; if the fleet refuses, the instance gets back what it gave.
5. A refusal by rules that have grace left becomes a warning: the other rules and the grace are then decided together.
6. A refusal is counted for the penalty of the rules that refused.
7. Rules in shadow are decided last, each by itself and only for admitted requests, exactly as if they were enforced;
   they take from nobody and refuse nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidCost
from ratekeeper.flow import settle
from ratekeeper.flow.drive import drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.http.verdict import NO_NOTES, HttpVerdict, VerdictNotes
from ratekeeper.identity.identity import Caller
from ratekeeper.identity.request import Request, is_preflight
from ratekeeper.rules.counter import BLOCKED, GRACED, REFUSED, PendingCheck, RuleCounter, asked, cost_of
from ratekeeper.rules.match import Index
from ratekeeper.rules.rule import ANY_TIER
from ratekeeper.rules.selection import Selection
from ratekeeper.stores.fallback import joined
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from ratekeeper.check import Plan
    from ratekeeper.flow.effects import Flow
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.settings import Settings
    from ratekeeper.stores.protocol import Store

MOST_SELECTIONS = 4096
NO_LINES = WaitQueue()  # nobody waits here


class CompiledRules:
    """Settings made ready: never changed, only replaced."""

    def __init__(self, settings: Settings, fleet: Store, instance: Store) -> None:
        self.settings = settings
        self.response = settings.response
        self.identity = settings.identity
        self.fleet = fleet
        self.instance = instance
        self.counters = [self.counter(rule) for rule in settings.rules]
        self.requests = Index([self.patterns(rule, "requests") for rule in settings.rules])
        self.messages = Index([self.patterns(rule, "messages") for rule in settings.rules])
        self.limits_messages = any(rule.counts == "messages" and rule.mode != "off" for rule in settings.rules)
        self.selections: dict[tuple[int, ...], Selection] = {}
        self.everything = self.select(self.requests.always) if self.requests.plain else None
        self.preflights_count = settings.response.count_preflights
        self.delays = any(limit.is_queue for rule in settings.rules for limit in rule.limits.values())
        self.leases = any(limit.is_leased for rule in settings.rules for limit in rule.limits.values())
        self.sources = sources_of(settings)

    def counter(self, rule: Rule) -> RuleCounter:
        is_local = rule.scope == "instance"
        store = self.instance if is_local else self.fleet
        return RuleCounter(rule, self.identity, store, is_local, self.settings.exempt)

    @staticmethod
    def patterns(rule: Rule, counts: str) -> tuple[Any, ...]:
        return rule.patterns if rule.counts == counts and rule.mode != "off" else ()

    def select(self, numbers: tuple[int, ...]) -> Selection:
        found = self.selections.get(numbers)
        if found is None:
            found = Selection(tuple([self.counters[number] for number in numbers]))
            if len(self.selections) >= MOST_SELECTIONS:
                self.selections.clear()
            self.selections[numbers] = found
        return found

    def selection(self, request: Request) -> Selection:
        if self.everything is not None and (request.method != "OPTIONS" or self.preflights_count):
            return self.everything
        if not self.preflights_count and is_preflight(request):
            return NOBODY
        return self.select(self.requests.find(request))

    def quick(self, selection: Selection, request: Request) -> HttpVerdict:
        """Decide where nothing but limits on one store that cannot block are asked: the hot path, and all of it."""
        only = selection.only
        if only is not None:
            entry = only.default
            if only.only_ip:
                key = self.identity.addresses.find(request).subject
            else:
                key = only.key(Caller(self.identity, request))
            decision = entry.check(key, only.constant)  # type: ignore[misc, union-attr]
            return HttpVerdict(request, self.response, ((entry, decision),), "" if decision.allowed else "limit")  # type: ignore[arg-type]
        caller = Caller(self.identity, request)
        ready = selection.ready
        if ready is None:
            ready = selection.by_tier.get(caller.tier) or selection.by_tier[ANY_TIER]
        if ready.check is None:
            return HttpVerdict(request, self.response)
        allowed, decisions = ready.check(tuple([key(caller) for key in ready.keys]))
        answers = tuple(zip(ready.entries, decisions, strict=True))
        return HttpVerdict(request, self.response, answers, "" if allowed else "limit")

    def decide(self, selection: Selection, request: Request) -> Flow[HttpVerdict]:
        """Decide anything, as the top of this file says."""
        caller = Caller(self.identity, request)
        enforced: list[PendingCheck] = []
        shadow: list[PendingCheck] = []
        for counter in selection.counters:
            rule = counter.rule
            if counter.exempt and counter.leaves_alone(caller):
                continue
            if rule.allow_from is not None and caller.known.address not in rule.allow_from:
                if rule.mode == "enforce":
                    return self.verdict(request, "forbidden", [], VerdictNotes(refuser=rule))
                continue
            entry = counter.entry(caller)
            if entry is None or entry.is_unlimited:
                continue
            try:
                cost = cost_of(rule, request)
            except InvalidCost:
                return self.verdict(request, "cost", [], VerdictNotes(refuser=rule))
            one = asked(counter, entry, caller, cost)
            (enforced if counter.is_enforced(one.check.key) else shadow).append(one)
        blocked = yield from self.blocked(enforced)
        if blocked is not None:
            notes = VerdictNotes(refuser=blocked[0].counter.rule, blocked_for=blocked[1])
            return self.verdict(request, "blocked", [], notes)
        decisions = yield from self.commit([own.check for own in enforced], enforced)
        for own, decision in zip(enforced, decisions, strict=True):
            own.decision = decision
        graced: tuple[str, ...] = ()
        if not all(decision.allowed for decision in decisions):
            closed = [own.counter.rule for own in enforced if is_closed(own.decision)]
            if closed:
                return self.verdict(request, "store", [], VerdictNotes(refuser=closed[0]))
            graced, enforced = yield from self.forgiven(enforced)
            if not graced:
                yield from self.punish([own for own in enforced if not own.decision.allowed])
                return self.verdict(request, "limit", enforced)
        too_late = [own for own in enforced if own.decision.delay * SECOND > own.counter.rule.max_delay]
        if too_late:
            yield from self.give_back(enforced)
            for own in too_late:
                own.decision = refused_delay(own)
            return self.verdict(request, "limit", enforced)
        for own in shadow:
            (own.decision,) = yield from self.commit([own.check], [own])
        notes = VerdictNotes(
            graced=graced,
            shadow=tuple([own.counter.name for own in shadow if not own.decision.allowed]),
            unenforced=tuple([(own.entry, own.decision) for own in shadow]),
        )
        return self.verdict(request, "", enforced, notes)

    def verdict(
        self, request: Request, why: str, answered: list[PendingCheck], notes: VerdictNotes = NO_NOTES
    ) -> HttpVerdict:
        answers = tuple([(own.entry, own.decision) for own in answered])
        return HttpVerdict(request, self.response, answers, why, notes)

    def commit(self, checks: list[Check], owners: list[PendingCheck]) -> Flow[list[Decision]]:
        """Decide the checks all or nothing: this instance's first, then the fleet's in one call."""
        local = [number for number, own in enumerate(owners) if own.counter.is_local]
        fleet = [number for number, own in enumerate(owners) if not own.counter.is_local]
        found: dict[int, Decision] = {}
        here: Plan = tuple([checks[number] for number in local])
        if here:
            found |= zip(local, self.instance.check(here), strict=True)
            if fleet and not all(found[number].allowed for number in local):
                there = yield from self.ask("peek", tuple([checks[number] for number in fleet]))
                found |= zip(fleet, there, strict=True)
                return [found[number] for number in range(len(checks))]
        if fleet:
            there = yield from self.ask("check", tuple([checks[number] for number in fleet]))
            found |= zip(fleet, there, strict=True)
            if here and not all(found[number].allowed for number in fleet):
                self.instance.refund(here, found[local[0]].at)
        return [found[number] for number in range(len(checks))]

    def ask(self, operation: str, *arguments: Any) -> Flow[Any]:
        if not self.fleet.blocking:
            return getattr(self.fleet, operation)(*arguments)
        return (yield from settle.ask(operation, *arguments))

    def on_store_of(self, own: PendingCheck, operation: str, *arguments: Any) -> Flow[Any]:
        if own.counter.is_local:
            return getattr(self.instance, operation)(*arguments)
        return (yield from self.ask(operation, *arguments))

    def blocked(self, enforced: list[PendingCheck]) -> Flow[tuple[PendingCheck, float] | None]:
        """Who of them is blocked for the longest time, and for how long."""
        worst: tuple[PendingCheck, float] | None = None
        for own in enforced:
            if own.counter.block is not None:
                (decision,) = yield from self.on_store_of(own, "peek", (own.side(BLOCKED, own.counter.block),))
                if not decision.allowed and (worst is None or decision.retry_after > worst[1]):
                    worst = own, decision.retry_after
        return worst

    def forgiven(self, asked: list[PendingCheck]) -> Flow[tuple[tuple[str, ...], list[PendingCheck]]]:
        """The rules that let a violation pass, if all that refuse have grace left; decided with all the others."""
        refusing = [own for own in asked if not own.decision.allowed]
        if not all(own.counter.rule.grace for own in refusing):
            return (), asked
        checks = [
            own.side(GRACED, own.counter.grace_limit(own.check.limit)) if own in refusing else own.check
            for own in asked
        ]
        decisions = yield from self.commit(checks, asked)
        if not all(decision.allowed for decision in decisions):
            return (), asked
        for own, decision in zip(asked, decisions, strict=True):
            if own not in refusing:
                own.decision = decision
        return tuple([own.counter.name for own in refusing]), asked

    def punish(self, refusing: list[PendingCheck]) -> Flow[None]:
        """Count the refusals of rules with a penalty, and block where there were enough."""
        for own in refusing:
            counter = own.counter
            if counter.block is None or counter.refusals is None:
                continue
            (counted,) = yield from self.on_store_of(own, "check", (own.side(REFUSED, counter.refusals),))
            if not counted.allowed or counted.remaining == 0:
                yield from self.on_store_of(own, "check", (own.side(BLOCKED, counter.block),))

    def give_back(self, taken: list[PendingCheck]) -> Flow[None]:
        """Give back what an admitted request took."""
        for own in taken:
            if own.counter.is_local or not self.fleet.blocking:
                own.counter.store.refund((own.check,), own.decision.at)
            else:
                yield from settle.give_back((own.check,), own.decision)

    def renew(self, verdict: HttpVerdict) -> Flow[None]:
        """Let the leases of an admitted request begin anew; the verdict then holds the new ones."""
        fresh = dict(verdict.answers)
        for own in self.held(verdict):
            store = own.counter.store
            renewal = settle.renew(own.check, own.decision, getattr(store, "has_room", True))
            if own.counter.is_local or not store.blocking:
                fresh[own.entry] = drive(renewal, store, store.clock, NO_LINES)
            else:
                fresh[own.entry] = yield from renewal
        verdict.answers = tuple(fresh.items())

    def held(self, verdict: HttpVerdict) -> list[PendingCheck]:
        """The leases of an admitted request: they end with it."""
        return [own for own in self.taken(verdict) if own.check.limit.is_leased]

    def taken(self, verdict: HttpVerdict) -> list[PendingCheck]:
        """What an admitted request took; graced rules took nothing."""
        found = []
        for entry, decision in verdict.answers:
            if verdict.allowed and decision.allowed:
                caller = Caller(entry.counter.identity, verdict.request)  # as it was then: rules may be others by now
                own = asked(entry.counter, entry, caller, cost_of(entry.counter.rule, verdict.request))
                own.decision = decision
                found.append(own)
        return found


def is_closed(decision: Decision) -> bool:
    """Whether it was refused because the store could not decide and the rule says deny."""
    return not decision.allowed and decision.reason.startswith("deny")


def refused_delay(own: PendingCheck) -> Decision:
    """A refusal, because the turn would come later than the rule lets anybody wait."""
    parts = [late(part, own.counter.rule.max_delay) for part in own.decision.parts()]
    return parts[0] if len(parts) == 1 else joined(parts, "")


def late(part: Decision, most: int) -> Decision:
    after = round(part.delay * SECOND) - most
    return part if after <= 0 else Decision(False, part.limit, 0, after / SECOND, part.reset_after, 0.0)


def sources_of(settings: Settings) -> frozenset[str]:
    """What the rules look at; a function may look at anything, and is named ``function``."""
    found = [source for rule in settings.rules for source in rule.by]
    found += [source for rule in settings.rules if (source := rule.cost.function) is not None]
    named = [source if isinstance(source, str) else "function" for source in [*found, *settings.identity.sources]]
    return frozenset(["function" if source.startswith("function:") else source for source in named])


NOBODY = Selection(())

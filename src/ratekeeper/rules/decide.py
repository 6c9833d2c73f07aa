"""Rules compiled for one store, and how they decide a request, step by step:

1. The rules that match are found.  Rules that are off drop out, and so do those from which the caller is exempt.
2. ``allow_from``: a request from another address is refused with 403.
3. A subject that a penalty has blocked is refused.
4. All enforced limits are decided together, all or nothing: those of this instance first, then those of the fleet in
   one call.  If the fleet refuses, the instance gets its costs back.
5. If every rule that refuses has grace left, the refusal becomes a warning: the other rules and the grace are then
   decided together.
6. A refusal counts towards the penalty of each rule that refused.
7. Rules in shadow are decided last, each by itself and only for admitted requests, exactly as if they were enforced.
   They take from nobody and refuse nobody.
8. Once the response is known, rules give back what they took if their ``count_when`` does not hold for it.

A limit of 0 refuses before any of this.  A request with a cost of 0 only looks: no limit refuses it.

``selection.py`` has short cuts for rules that need step 4 and 7 only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidCost
from ratekeeper.flow import settle
from ratekeeper.flow.effects import Await
from ratekeeper.flow.lease_renewal import named_lease, renewer_of
from ratekeeper.http.verdict import NO_NOTES, HttpVerdict, VerdictNotes
from ratekeeper.identity.identity import Caller
from ratekeeper.identity.request import Request, is_preflight
from ratekeeper.limit import UNLIMITED
from ratekeeper.rules.closed import REFUSAL
from ratekeeper.rules.counter import BLOCKED, GRACED, REFUSED, PendingCheck, RuleCounter, cost_of
from ratekeeper.rules.match import Index
from ratekeeper.rules.selection import is_denied, run, selection_of
from ratekeeper.rules.short_turns import pause
from ratekeeper.stores.fallback import joined
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ratekeeper.check import Plan
    from ratekeeper.flow.effects import Flow
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.selection import GeneralSelection, Selection
    from ratekeeper.rules.settings import Settings
    from ratekeeper.stores.protocol import Store

MOST_SELECTIONS = 4096


class CompiledRules:
    """Settings made ready to decide; never changed, only replaced.

    ``fleet`` is the store of all instances: one for threads, or one for event loops.  ``instance`` is in this process.
    """

    def __init__(self, settings: Settings, fleet: Store, instance: Store) -> None:
        self.settings = settings
        self.response = settings.response
        self.identity = settings.identity
        self.instance = instance
        self.requests = index_of(settings, "requests")
        self.messages = index_of(settings, "messages")
        self.limits_messages = any(rule.counts == "messages" and rule.mode != "off" for rule in settings.rules)
        self.preflights_count = settings.response.count_preflights
        limits = [limit for rule in settings.rules for limit in rule.limits.values()]
        computes = any(rule.limit_function is not None for rule in settings.rules)  # then a limit may be of any kind
        self.delays = computes or any(limit.is_queue for limit in limits)
        self.leases = computes or any(limit.is_leased for limit in limits)
        self.settles = any(rule.count_when is not None for rule in settings.rules)
        self.sources = sources_of(settings)
        self.for_loops: CompiledRules | None = None  # the same on the fleet's store for event loops, if made already
        self.compile_for(fleet)

    def compile_for(self, fleet: Store) -> None:
        self.fleet = fleet
        self.answers_at_once = not fleet.blocking  # the store answers in this process, so that no flow ever waits
        self.counters = [self.counter(rule) for rule in self.settings.rules]
        self.fixed_places: dict[tuple[str, str], Limit | LimitSet] = {}
        self.selections: dict[tuple[int, ...], Selection] = {}
        self.no_rules = selection_of(self, ())
        self.everything = self.select(self.requests.always) if self.requests.plain else None

    def on(self, fleet: Store) -> CompiledRules:
        """The same rules on another store."""
        other = CompiledRules.__new__(CompiledRules)
        other.__dict__.update(self.__dict__)
        other.compile_for(fleet)
        return other

    def counter(self, rule: Rule) -> RuleCounter:
        pause()
        is_local = rule.scope == "instance"
        store = self.instance if is_local else self.fleet
        return RuleCounter(rule, self.identity, store, is_local, self.settings.exempt)

    def select(self, numbers: tuple[int, ...]) -> Selection:
        """The selection of the rules with these numbers."""
        selection = self.selections.get(numbers)
        if selection is None:
            selection = selection_of(self, tuple([self.counters[number] for number in numbers]))
            if len(self.selections) >= MOST_SELECTIONS:
                self.selections.clear()
            self.selections[numbers] = selection
        return selection

    def selection(self, request: Request) -> Selection:
        """The rules that ``request`` meets."""
        if self.everything is not None and (request.method != "OPTIONS" or self.preflights_count):
            return self.everything
        if not self.preflights_count and is_preflight(request):
            return self.no_rules
        return self.select(self.requests.find(request))

    def decide(self, selection: GeneralSelection, request: Request) -> Flow[HttpVerdict]:
        """Decide anything, as the top of this file says."""
        caller = Caller(self.identity, request)
        enforced: list[PendingCheck] = []
        shadow: list[PendingCheck] = []
        looks: list[PendingCheck] = []
        closed: list[PendingCheck] = []
        for counter in selection.counters:
            rule = counter.rule
            if counter.exempt and counter.is_exempt(caller):
                continue
            if rule.allow_from is not None and caller.client_address.address not in rule.allow_from:
                if rule.mode == "enforce":
                    return self.verdict(request, "forbidden", [], VerdictNotes(refuser=rule))
                continue
            if rule.limit_function is None:
                entry = counter.entry(caller)
            else:
                entry = yield from self.computed_entry(counter, request)
            if entry is None or entry.is_unlimited:
                continue
            try:
                cost = min(UNLIMITED, cost_of(rule, request) * (selection.hits or 1))
            except InvalidCost:
                return self.verdict(request, "cost", [], VerdictNotes(refuser=rule))
            pending = counter.pending(entry, caller, cost or 1)
            is_enforced = counter.is_enforced(pending.check.key)
            if entry.is_closed:
                pending.decision = REFUSAL
                (closed if is_enforced else shadow).append(pending)
            elif not cost:
                looks.append(pending)
            else:
                if entry.limit.is_leased:
                    pending.check = named_lease(pending.check, counter.store)
                (enforced if is_enforced else shadow).append(pending)
        if closed:
            yield from self.punish(closed if selection.hits else [])
            return self.verdict(request, "limit", closed)
        blocked = yield from self.blocked([*enforced, *looks])
        if blocked is not None:
            notes = VerdictNotes(refuser=blocked[0].counter.rule, blocked_for=blocked[1])
            return self.verdict(request, "blocked", [], notes)
        for pending in looks if selection.hits else [*enforced, *looks]:
            pending.decision = yield from self.ask_beside(pending, "peek", pending.check)
        if not selection.hits:
            fits = all(pending.decision.allowed for pending in enforced)
            return self.verdict(request, "" if fits else "limit", [*enforced, *looks] if fits else enforced)
        decisions = yield from self.commit([pending.check for pending in enforced], enforced)
        for pending, decision in zip(enforced, decisions, strict=True):
            pending.decision = decision
        graced: tuple[str, ...] = ()
        if not all(decision.allowed for decision in decisions):
            denied = [pending.counter.rule for pending in enforced if is_denied(pending.decision)]
            if denied:
                return self.verdict(request, "store", [], VerdictNotes(refuser=denied[0]))
            graced = yield from self.use_grace(enforced)
            if not graced:
                yield from self.punish([pending for pending in enforced if not pending.decision.allowed])
                return self.verdict(request, "limit", enforced)
        too_late = any(is_late(pending) for pending in enforced)
        if too_late:
            return (yield from self.refuse_late(request, enforced))
        for pending in shadow:
            if not pending.entry.is_closed:
                (pending.decision,) = yield from self.commit([pending.check], [pending])
        notes = VerdictNotes(
            graced=graced,
            shadow=tuple([pending.counter.name for pending in shadow if not pending.decision.allowed]),
            unenforced=tuple([(pending.entry, pending.decision) for pending in shadow]),
            taken=tuple([(pending.entry, pending.check) for pending in enforced]),
            reserved=tuple([each for each in (*enforced, *shadow) if each.is_reserved]),
        )
        return self.verdict(request, "", [*enforced, *looks], notes)

    def refuse_late(self, request: Request, enforced: list[PendingCheck]) -> Flow[HttpVerdict]:
        """Refuse an admitted request whose turn comes too late, and give back what it took."""
        yield from self.give_back(enforced)
        for pending in enforced:
            if is_late(pending):
                pending.decision = refused_delay(pending)
        return self.verdict(request, "limit", enforced)

    def computed_entry(self, counter: RuleCounter, request: Request) -> Flow[TierLimit]:
        """The limit that the function of a rule returns for ``request``."""
        function = counter.rule.limit_function
        value = function.function(request)  # type: ignore[union-attr]
        if function.is_async:  # type: ignore[union-attr]
            value = yield Await(value)
        return counter.computed_entry(value)

    def verdict(
        self, request: Request, why: str, decided: list[PendingCheck], notes: VerdictNotes = NO_NOTES
    ) -> HttpVerdict:
        answers = tuple([(pending.entry, pending.decision) for pending in decided])
        return HttpVerdict(request, self.response, answers, why, notes)

    def commit(self, checks: list[Check], pending: list[PendingCheck]) -> Flow[list[Decision]]:
        """Decide the checks all or nothing: this instance's first, then the fleet's in one call."""
        local = [number for number, each in enumerate(pending) if each.counter.is_local]
        fleet = [number for number, each in enumerate(pending) if not each.counter.is_local]
        decisions: dict[int, Decision] = {}
        local_plan: Plan = tuple([checks[number] for number in local])
        fleet_plan: Plan = tuple([checks[number] for number in fleet])
        if local_plan:
            decisions |= zip(local, self.instance.check(local_plan), strict=True)
        if fleet_plan:
            fits_here = all(decisions[number].allowed for number in local)
            if fits_here and any(check.lease for check in fleet_plan):
                answers = yield from settle.hold(fleet_plan, renewer_of(self.fleet))
            else:
                answers = yield from self.ask("check" if fits_here else "peek", fleet_plan)
            decisions |= zip(fleet, answers, strict=True)
            if local_plan and fits_here and not all(decision.allowed for decision in answers):
                self.give_back_here(local_plan, [decisions[number] for number in local])
        return [decisions[number] for number in range(len(checks))]

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Each space that the rules count in, with its limit there."""
        for counter in self.counters:
            yield from counter.places()

    def by_place(self) -> dict[tuple[str, str], Limit | LimitSet]:
        """The limits by their space and layout.  The first call takes long for thousands of rules."""
        if not self.fixed_places:
            self.fixed_places = {(space, limit.layout): limit for space, limit in self.places()}
        computing = [counter for counter in self.counters if counter.computed]
        computed = {(space, limit.layout): limit for counter in computing for space, limit in counter.places()}
        return self.fixed_places | computed

    def ask(self, operation: str, *arguments: Any) -> Flow[Any]:
        """Ask the fleet's store, or its fallback if the store is away."""
        if self.answers_at_once:
            return getattr(self.fleet, operation)(*arguments)
        return (yield from settle.ask(operation, *arguments))

    def ask_beside(self, pending: PendingCheck, operation: str, check: Check) -> Flow[Decision]:
        """Ask the store of a rule about a check beside the rule's own limit."""
        if pending.counter.is_local:
            (decision,) = getattr(self.instance, operation)((check,))
        else:
            (decision,) = yield from self.ask(operation, (check,))
        return decision

    def blocked(self, enforced: list[PendingCheck]) -> Flow[tuple[PendingCheck, float] | None]:
        """The rule that blocks the caller for the longest time, and for how long."""
        longest: tuple[PendingCheck, float] | None = None
        for pending in enforced:
            block = pending.counter.block
            if block is not None:
                decision = yield from self.ask_beside(pending, "peek", pending.beside(BLOCKED, block))
                wait = decision.retry_after or 0.0
                if not decision.allowed and (longest is None or wait > longest[1]):
                    longest = pending, wait
        return longest

    def use_grace(self, pending: list[PendingCheck]) -> Flow[tuple[str, ...]]:
        """The rules that let a violation pass; empty unless all that refuse have grace left and the others admit."""
        refusing = [each for each in pending if not each.decision.allowed]
        if not all(each.counter.rule.grace for each in refusing):
            return ()
        checks = [
            each.beside(GRACED, each.counter.grace_limit(each.check.limit)) if each in refusing else each.check
            for each in pending
        ]
        decisions = yield from self.commit(checks, pending)
        if not all(decision.allowed for decision in decisions):
            return ()
        for each, decision in zip(pending, decisions, strict=True):
            if each not in refusing:
                each.decision = decision
        return tuple([each.counter.name for each in refusing])

    def punish(self, refusing: list[PendingCheck]) -> Flow[None]:
        """Count the refusals of rules with a penalty, and block the subject once there are enough."""
        for pending in refusing:
            block, refusals = pending.counter.block, pending.counter.refusals
            if block is None or refusals is None:
                continue
            counted = yield from self.ask_beside(pending, "check", pending.beside(REFUSED, refusals))
            if not counted.allowed or counted.remaining == 0:
                yield from self.ask_beside(pending, "check", pending.beside(BLOCKED, block))

    def give_back_here(self, plan: Plan, decisions: Sequence[Decision]) -> None:
        """Give back what this instance's limits took, each at the instant of its decision."""
        for check, decision in zip(plan, decisions, strict=True):
            if check.lease:
                self.instance.end_leases((check.having(0, 0),))  # type: ignore[attr-defined]
            else:
                self.instance.refund((check,), decision.at)

    def give_back(self, taken: list[PendingCheck]) -> Flow[dict[TierLimit, Decision]]:
        """Give back what an admitted request took; returns what is left of each limit, leases excepted."""
        answers: dict[TierLimit, Decision] = {}
        for pending in taken:
            store = pending.counter.store
            if pending.check.lease:
                ending = settle.end(pending.check, pending.decision, renewer_of(store))  # type: ignore[arg-type]
                if pending.counter.is_local:
                    run(ending, store)
                else:
                    yield from ending
            elif pending.counter.is_local or self.answers_at_once:
                answers[pending.entry] = pending.counter.store.refund((pending.check,), pending.decision.at)[0]
            else:
                answers[pending.entry] = (yield from settle.give_back((pending.check,), pending.decision))[0]
        return answers

    def settle(self, verdict: HttpVerdict, status: int, response: Any) -> Flow[None]:
        """Give back what a request took from rules whose ``count_when`` does not hold for its response."""
        reserved, verdict.notes.reserved = verdict.notes.reserved, ()
        uncounted = [each for each in reserved if not each.counter.rule.count_when(status, response)]  # type: ignore[misc]
        verdict.replace_decisions((yield from self.give_back(uncounted)))

    def renew(self, verdict: HttpVerdict) -> Flow[None]:
        """Let the leases of an admitted request begin anew; the verdict then has the new ones."""
        answers, taken = dict(verdict.answers), dict(verdict.notes.taken)
        for pending in self.leases_of(verdict):
            store = pending.counter.store
            renewal = settle.renew(pending.check, pending.decision, renewer_of(store))  # type: ignore[arg-type]
            lease, decision = run(renewal, store) if pending.counter.is_local else (yield from renewal)
            answers[pending.entry] = decision
            taken[pending.entry] = lease
        verdict.answers = tuple(answers.items())
        verdict.notes.taken = tuple(taken.items())

    def keep_leases(self, verdict: HttpVerdict) -> bool:
        """Renew the leases of an admitted request for as long as they are held; whether something else must do that."""
        all_kept = True
        for pending in self.leases_of(verdict):
            renewer = renewer_of(pending.counter.store)
            if renewer is None or pending.decision.reason:
                all_kept = False
            else:
                renewer.keep_for_ever(pending.check)  # type: ignore[arg-type]
        return all_kept

    def leases_of(self, verdict: HttpVerdict) -> list[PendingCheck]:
        """The leases of an admitted request, which end with it."""
        return [pending for pending in self.taken(verdict) if pending.check.limit.is_leased]

    def taken(self, verdict: HttpVerdict) -> list[PendingCheck]:
        """What an admitted request took; rules that had grace took nothing."""
        taken = []
        checks = dict(verdict.notes.taken)
        for entry, decision in verdict.answers:
            if verdict.allowed and decision.allowed:
                counter = entry.counter  # of the rules as they were then: there may be new ones by now
                check = checks.get(entry)
                cost = counter.constant
                if check is None and not cost and counter.is_guardable:
                    cost = cost_of(counter.rule, verdict.request)
                if check is None and not cost:
                    continue  # a look took nothing
                if check is None:
                    caller = Caller(counter.identity, verdict.request)
                    pending = counter.pending(entry, caller, min(UNLIMITED, cost))
                else:
                    pending = PendingCheck(counter, entry, check)
                pending.decision = decision
                taken.append(pending)
        return taken


def index_of(settings: Settings, counts: str) -> Index:
    """The rules that count requests or messages, by what they match."""
    rules = settings.rules
    everywhere = settings.exempt.paths
    return Index(
        [patterns(rule, counts) for rule in rules],
        [(*rule.exclusions, *everywhere) for rule in rules],
        defaults={number for number, rule in enumerate(rules) if rule.is_default},
        replacing={number for number, rule in enumerate(rules) if rule.replaces_defaults},
    )


def patterns(rule: Rule, counts: str) -> tuple[Any, ...]:
    """The patterns by which a rule counts requests or messages; none for a rule that is off."""
    return rule.patterns if rule.counts == counts and rule.mode != "off" else ()


def is_late(pending: PendingCheck) -> bool:
    """Whether the turn comes later than the rule's ``max_delay``."""
    return pending.decision.delay * SECOND > pending.counter.rule.max_delay


def refused_delay(pending: PendingCheck) -> Decision:
    """A refusal, because the turn would come later than the rule's ``max_delay``."""
    parts = [late(part, pending.counter.rule.max_delay) for part in pending.decision.parts()]
    return parts[0] if len(parts) == 1 else joined(parts, "")


def late(part: Decision, max_delay: int) -> Decision:
    excess = round(part.delay * SECOND) - max_delay
    return part if excess <= 0 else Decision(False, part.limit, 0, excess / SECOND, part.reset_after, 0.0)


def sources_of(settings: Settings) -> frozenset[str]:
    """What the rules look at; a function may look at anything, and is named ``function``."""
    sources = [source for rule in settings.rules for source in rule.by]
    sources += [source for rule in settings.rules if (source := rule.cost.function) is not None]
    sources += ["function" for rule in settings.rules if rule.limit_function is not None]
    sources += ["function" for exempt in [settings.exempt, *[rule.exempt for rule in settings.rules]]
                if exempt is not None and exempt.functions]  # fmt: skip
    names = [source if isinstance(source, str) else "function" for source in [*sources, *settings.identity.sources]]
    return frozenset(["function" if name.startswith("function:") else name for name in names])

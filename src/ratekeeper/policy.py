"""Policy: a loaded set of rules that answers requests.

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

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper import config, flow
from ratekeeper.drive import adrive, drive
from ratekeeper.errors import InvalidCost, InvalidInput, InvalidRules, shown
from ratekeeper.flow import Lines
from ratekeeper.identity import Caller
from ratekeeper.match import Index
from ratekeeper.model import Check, Decision
from ratekeeper.plan import BLOCKED, GRACED, REFUSED, Asked, Counter, Selection, asked, cost_of, is_leaky
from ratekeeper.request import Request, is_preflight
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.units import SECOND
from ratekeeper.verdict import NO_NOTES, Notes, PolicyVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.config import Functions, Settings
    from ratekeeper.events import Sink
    from ratekeeper.flow import Flow
    from ratekeeper.model import Plan
    from ratekeeper.rules import Rule
    from ratekeeper.stores import Store

MOST_SELECTIONS = 4096


class Program:
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
        self.delays = any(is_leaky(limit) for rule in settings.rules for limit in rule.limits.values())
        self.sources = sources_of(settings)

    def counter(self, rule: Rule) -> Counter:
        is_local = rule.scope == "instance"
        store = self.instance if is_local else self.fleet
        return Counter(rule, self.identity, store, is_local, self.settings.exempt)

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

    def quick(self, selection: Selection, request: Request) -> PolicyVerdict:
        """Decide where nothing but limits on one store that cannot block are asked: the hot path, and all of it."""
        only = selection.only
        if only is not None:
            entry = only.default
            if only.only_ip:
                key = self.identity.addresses.find(request).subject
            else:
                key = only.key(Caller(self.identity, request))
            decision = entry.check(key, only.constant)  # type: ignore[misc, union-attr]
            return PolicyVerdict(request, self.response, ((entry, decision),), "" if decision.allowed else "limit")  # type: ignore[arg-type]
        caller = Caller(self.identity, request)
        entries, plan = [], []
        for counter in selection.counters:
            entry = counter.entry(caller) if counter.by_tier else counter.default
            if not entry.is_unlimited:  # type: ignore[union-attr]
                key = counter.key(caller)
                entries.append(entry)
                plan.append(entry.checks.get(key) or entry.check_of(key))  # type: ignore[union-attr]
        if not plan:
            return PolicyVerdict(request, self.response)
        decisions = selection.store.check(tuple(plan))  # type: ignore[union-attr]
        why = ""
        for decision in decisions:
            if not decision.allowed:
                why = "limit"
        return PolicyVerdict(request, self.response, tuple(zip(entries, decisions, strict=True)), why)  # type: ignore[arg-type]

    def decide(self, selection: Selection, request: Request) -> Flow[PolicyVerdict]:
        """Decide anything, as the top of this file says."""
        caller = Caller(self.identity, request)
        enforced: list[Asked] = []
        shadow: list[Asked] = []
        for counter in selection.counters:
            rule = counter.rule
            if counter.exempt and counter.leaves_alone(caller):
                continue
            if rule.allow_from is not None and caller.known.address not in rule.allow_from:
                if rule.mode == "enforce":
                    return self.verdict(request, "forbidden", [], Notes(refuser=rule))
                continue
            entry = counter.entry(caller)
            if entry is None or entry.is_unlimited:
                continue
            try:
                cost = cost_of(rule, request)
            except InvalidCost:
                return self.verdict(request, "cost", [], Notes(refuser=rule))
            one = asked(counter, entry, caller, cost)
            (enforced if counter.is_enforced(one.check.key) else shadow).append(one)
        blocked = yield from self.blocked(enforced)
        if blocked is not None:
            notes = Notes(refuser=blocked[0].counter.rule, blocked_for=blocked[1])
            return self.verdict(request, "blocked", [], notes)
        decisions = yield from self.commit([own.check for own in enforced], enforced)
        for own, decision in zip(enforced, decisions, strict=True):
            own.decision = decision
        graced: tuple[str, ...] = ()
        if not all(decision.allowed for decision in decisions):
            closed = [own.counter.rule for own in enforced if is_closed(own.decision)]
            if closed:
                return self.verdict(request, "store", [], Notes(refuser=closed[0]))
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
        shadowed = []
        for own in shadow:
            (decision,) = yield from self.commit([own.check], [own])
            if not decision.allowed:
                shadowed.append(own.counter.name)
        notes = Notes(graced=graced, shadow=tuple(shadowed))
        return self.verdict(request, "", enforced, notes)

    def verdict(self, request: Request, why: str, answered: list[Asked], notes: Notes = NO_NOTES) -> PolicyVerdict:
        answers = tuple([(own.entry, own.decision) for own in answered])
        return PolicyVerdict(request, self.response, answers, why, notes)

    def commit(self, checks: list[Check], owners: list[Asked]) -> Flow[list[Decision]]:
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
        return (yield from flow.ask(operation, *arguments))

    def on_store_of(self, own: Asked, operation: str, *arguments: Any) -> Flow[Any]:
        if own.counter.is_local:
            return getattr(self.instance, operation)(*arguments)
        return (yield from self.ask(operation, *arguments))

    def blocked(self, enforced: list[Asked]) -> Flow[tuple[Asked, float] | None]:
        """Who of them is blocked for the longest time, and for how long."""
        worst: tuple[Asked, float] | None = None
        for own in enforced:
            if own.counter.block is not None:
                (decision,) = yield from self.on_store_of(own, "peek", (own.side(BLOCKED, own.counter.block),))
                if not decision.allowed and (worst is None or decision.retry_after > worst[1]):
                    worst = own, decision.retry_after
        return worst

    def forgiven(self, asked: list[Asked]) -> Flow[tuple[tuple[str, ...], list[Asked]]]:
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

    def punish(self, refusing: list[Asked]) -> Flow[None]:
        """Count the refusals of rules with a penalty, and block where there were enough."""
        for own in refusing:
            counter = own.counter
            if counter.block is None or counter.refusals is None:
                continue
            (counted,) = yield from self.on_store_of(own, "check", (own.side(REFUSED, counter.refusals),))
            if not counted.allowed or counted.remaining == 0:
                yield from self.on_store_of(own, "check", (own.side(BLOCKED, counter.block),))

    def give_back(self, taken: list[Asked]) -> Flow[None]:
        """Give back what an admitted request took."""
        for own in taken:
            if own.counter.is_local or not self.fleet.blocking:
                own.counter.store.refund((own.check,), own.decision.at)
            else:
                yield from flow.give_back((own.check,), own.decision)

    def taken(self, verdict: PolicyVerdict) -> list[Asked]:
        """What an admitted request took; graced rules took nothing."""
        caller = Caller(self.identity, verdict.request)
        found = []
        for entry, decision in verdict.answers:
            if verdict.allowed and decision.allowed:
                own = asked(entry.counter, entry, caller, cost_of(entry.counter.rule, verdict.request))
                own.decision = decision
                found.append(own)
        return found


def is_closed(decision: Decision) -> bool:
    """Whether it was refused because the store could not decide and the rule says deny."""
    return not decision.allowed and decision.reason.startswith("deny")


def refused_delay(own: Asked) -> Decision:
    """A refusal, because the turn would come later than the rule lets anybody wait."""
    decision = own.decision
    after = (round(decision.delay * SECOND) - own.counter.rule.max_delay) / SECOND
    return Decision(False, decision.limit, 0, after, decision.reset_after, 0.0)


def sources_of(settings: Settings) -> frozenset[str]:
    """What the rules look at; a function may look at anything, and is named ``function``."""
    found = [source for rule in settings.rules for source in rule.by]
    found += [source for rule in settings.rules if (source := rule.cost.function) is not None]
    named = [source if isinstance(source, str) else "function" for source in [*found, *settings.identity.sources]]
    return frozenset(["function" if source.startswith("function:") else source for source in named])


NOBODY = Selection(())


class Policy:
    """A set of rules that answers requests; the same object serves sync and async callers.

    ``functions`` are those that a file names as ``function:NAME``.  ``store`` replaces the file's own.  ``sinks`` are
    called with an event for each verdict.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
        host: Policy | None = None,
    ) -> None:
        self.path: Path | None = None
        self.host = host  # whose stores these rules count on
        self.functions: Functions = {}
        self.given_store = store if host is None else host.store
        self.given_clock = clock
        self.sinks: tuple[Sink, ...] = tuple(sinks)
        self.lines = Lines()
        self.watcher: Any = None
        self.opened: Store | None = None  # for an event loop
        self.store_url = settings.store
        self.store: Store = self.open(settings.store)
        self.instance: Store = self.store if not self.store.blocking else MemoryStore(clock=clock)
        if host is not None:
            self.instance = host.instance
        self.clock = self.store.clock
        self.install(Program(settings, self.store, self.instance))

    def install(self, program: Program) -> None:
        self.program = program
        self.blocking = program.fleet.blocking  # whether check may wait, so that an event loop must use acheck
        self.delays = program.delays  # whether an admitted request may have to wait for its turn
        self.limits_messages = program.limits_messages  # whether any rule counts the messages of WebSockets

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        functions: Functions | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
        watch: float | None = None,
    ) -> Policy:
        """The rules of a .toml, .yaml or .json file.  ``watch`` looks for changes every so many seconds."""
        path = Path(path)
        made = cls(
            config.parse(config.read(path), path.name, functions, path.parent), store=store, clock=clock, sinks=sinks
        )
        made.path = path
        made.functions = functions or {}
        if watch is not None:
            made.watch(watch)
        return made

    @classmethod
    def parse(
        cls,
        rules: Mapping[str, Any],
        *,
        functions: Functions | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        sinks: tuple[Sink, ...] | list[Sink] = (),
    ) -> Policy:
        """The rules of a dictionary with the contents of a file; ``by`` and ``cost`` may be functions of a Request."""
        if not isinstance(rules, dict):
            raise InvalidRules(f"rules: expected a dictionary, got {shown(rules)}. To read a file, use Policy.load.")
        made = cls(config.parse(rules, "rules", functions), store=store, clock=clock, sinks=sinks)
        made.functions = functions or {}
        return made

    def open(self, url: str, *, asynchronous: bool = False) -> Store:
        if self.given_store is None or isinstance(self.given_store, str):
            return open_store(self.given_store or url, clock=self.given_clock, asynchronous=asynchronous)
        return self.given_store

    @property
    def async_store(self) -> Store:
        """The store for an event loop: the same one, unless it is elsewhere; then opened when first asked for."""
        if not self.store.blocking:
            return self.store
        if self.host is not None:
            return self.host.async_store
        if self.opened is None:
            self.opened = self.open(self.store_url, asynchronous=True)
        return self.opened

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules in force, in the order of the file."""
        return self.program.settings.rules

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed and probably not meant."""
        return self.program.settings.warnings

    def beside(self, settings: Settings) -> Policy:
        """Other rules on the stores of this policy, told to its sinks."""
        return Policy(settings, sinks=self.sinks, host=self)

    def asks(self, source: str) -> bool:
        """Whether a rule may look at ``source``, such as ``route`` or ``app:user``, so that it must be found out."""
        return source in self.program.sources or "function" in self.program.sources

    def check(self, request: Request) -> PolicyVerdict:
        """Decide a request and take what it costs; a refusal takes nothing."""
        program = self.program
        selection = program.selection(request)
        if selection.is_simple and not self.sinks:
            return program.quick(selection, request)
        return self.run(program, selection, request)

    async def acheck(self, request: Request) -> PolicyVerdict:
        """``check`` for an event loop."""
        program = self.program
        selection = program.selection(request)
        if selection.is_simple and not self.sinks:
            return program.quick(selection, request)
        return await self.arun(program, selection, request)

    def check_message(self, request: Request) -> PolicyVerdict:
        """Decide one message of a WebSocket whose handshake was ``request``."""
        program = self.program
        return self.run(program, program.select(program.messages.find(request)), request)

    async def acheck_message(self, request: Request) -> PolicyVerdict:
        """``check_message`` for an event loop."""
        program = self.program
        return await self.arun(program, program.select(program.messages.find(request)), request)

    def run(self, program: Program, selection: Selection, request: Request) -> PolicyVerdict:
        began = self.clock.nanos()
        if selection.is_simple:
            verdict = program.quick(selection, request)
        else:
            verdict = drive(program.decide(selection, request), program.fleet, self.clock, self.lines)
        self.tell(selection, verdict, began)
        return verdict

    async def arun(self, program: Program, selection: Selection, request: Request) -> PolicyVerdict:
        began = self.clock.nanos()
        if selection.is_simple:
            verdict = program.quick(selection, request)
        else:
            verdict = await adrive(program.decide(selection, request), self.async_store, self.clock, self.lines)
        self.tell(selection, verdict, began)
        return verdict

    def tell(self, selection: Selection, verdict: PolicyVerdict, began: int) -> None:
        if self.sinks:
            from ratekeeper.events import event_of

            event = event_of(self.program, selection, verdict, self.clock.nanos() - began)
            for sink in self.sinks:
                sink(event)

    def give_back(self, verdict: PolicyVerdict) -> None:
        """Give back what an admitted request took: it left before its turn came."""
        drive(self.program.give_back(self.program.taken(verdict)), self.store, self.clock, self.lines)

    async def agive_back(self, verdict: PolicyVerdict) -> None:
        """``give_back`` for an event loop."""
        program = self.program
        await adrive(program.give_back(program.taken(verdict)), self.async_store, self.clock, self.lines)

    def explain(self, request: Request) -> Explanation:
        """Say step by step which rules a request meets, by which keys, under which limits; takes nothing."""
        from ratekeeper.explain import explain

        return explain(self, request)

    def listen(self, sink: Sink) -> None:
        """Call ``sink`` with an event for each verdict from now on."""
        self.sinks = (*self.sinks, sink)

    def replace(self, settings: Settings) -> None:
        """Put new rules in force, at once and whole; counters whose rules kept their names go on."""
        store, instance = self.store, self.instance
        if settings.store != self.store_url and not self.given_store:
            store = self.open(settings.store)
            instance = store if not store.blocking else MemoryStore(clock=self.given_clock)
        program = Program(settings, store, instance)
        self.store_url = settings.store
        if store is not self.store:
            self.opened = None
        self.store, self.instance, self.clock = store, instance, store.clock
        self.install(program)

    def reload(self) -> None:
        """Read the file again.  Rules that cannot be taken raise InvalidRules, and the old ones stay."""
        if self.path is None:
            raise InvalidInput("reload: expected a policy that was loaded from a file. Use Policy.load.")
        self.replace(config.parse(config.read(self.path), self.path.name, self.functions, self.path.parent))

    def watch(self, every: float = 1.0, on_error: Callable[[Exception], object] | None = None) -> None:
        """Reload whenever the file changes, from a thread that looks every so many seconds."""
        from ratekeeper.watch import Watcher

        if self.watcher is not None:
            self.watcher.stop()
        self.watcher = Watcher(self, every, on_error)

    def close(self) -> None:
        """Stop watching, and let go of the store if this policy opened it."""
        if self.watcher is not None:
            self.watcher.stop()
            self.watcher = None
        if self.given_store is None or isinstance(self.given_store, str):
            self.store.close()

    async def aclose(self) -> None:
        """``close`` for an event loop, with what was opened for it."""
        opened, self.opened = self.opened, None
        if opened is not None and opened is not self.given_store:
            outcome: Any = opened.close()  # type: ignore[func-returns-value]
            if hasattr(outcome, "__await__"):
                await outcome
        self.close()

    def __repr__(self) -> str:
        return f"Policy({len(self.rules)} rules{f', {self.path.name!r}' if self.path else ''})"


if TYPE_CHECKING:
    from ratekeeper.explain import Explanation
    from ratekeeper.stores import Store

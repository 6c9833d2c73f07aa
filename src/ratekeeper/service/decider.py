"""What stands behind every door: the policy, the limits that callers name themselves, and the tally.

A call returns its answer, or something to await where the store is elsewhere: doors answer the first at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter_ns
from types import coroutine as coroutine_of_generator
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.check import Check, whole_cost
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidInput, StoreUnavailable, shown
from ratekeeper.flow import settle
from ratekeeper.flow.drive import adrive
from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.keys import encode
from ratekeeper.limit import LimitSet, parse_limits
from ratekeeper.rules.rule import ANY_TIER
from ratekeeper.service.counters import Counters
from ratekeeper.service.named_limits import NamedLimit
from ratekeeper.service.overrides import Overrides
from ratekeeper.service.retired_limits import RetiredLimits
from ratekeeper.sinks.event import anonymous, event_of
from ratekeeper.sinks.log import LoggingSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator

    from ratekeeper.check import Plan
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.settings import Settings
    from ratekeeper.service.options import Options
    from ratekeeper.stores.fallback import FallbackTable
    from ratekeeper.stores.redis.aio_connection import AsyncRedisServer

    Name = tuple[str | None, Any, str | None]
    # What a body asks: a limit with a key (encoded, where the store is elsewhere) and a cost, or None with a request.
    Known = tuple["NamedLimit | None", Any, int]

log = logging.getLogger("ratekeeper")
T = TypeVar("T")
MOST_BODIES = 4096
LONGEST_BODY = 512


class Decider:
    """One worker's decisions."""

    def __init__(self, policy: Policy, options: Options) -> None:
        self.options = options
        self.policy = policy
        self.settings: Settings = policy.program.settings  # as loaded, before the switches
        self.switches = Overrides(options.state)
        self.tally = Counters()
        self.violations = LoggingSink()
        self.named: dict[Name, NamedLimit] = {}
        self.digests: dict[Any, str] = {}  # of keys that were refused
        self.bodies: dict[bytes, Known] = {}  # questions that are asked again and again, understood
        self.caches: list[dict[Any, Any]] = [self.named, self.bodies, self.digests]  # what other rules make untrue
        self.files: list[Callable[[], None]] = []  # how to read what doors have files of their own for
        self.shelves = RetiredLimits(self)
        self.linked: tuple[Any, AsyncRedisServer | None] = None, None  # a store elsewhere, and its link of our loop
        self.is_ready = True
        self.store_answers = True
        self.apply_switches()

    # Requests, by the rules.

    def check(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        """Decide a request by the rules."""
        policy = self.policy
        began = perf_counter_ns()
        program = policy.program
        selection = program.selection(request)
        if policy.store.blocking:
            found = self.check_elsewhere(request, selection)
            return begun(found) if self.away() else found  # away: it will answer without waiting
        verdict = program.quick(selection, request) if selection.is_simple else policy.check(request)
        self.note(selection, verdict, perf_counter_ns() - began)
        return verdict

    async def check_elsewhere(self, request: Request, selection: Any) -> HttpVerdict:
        began = perf_counter_ns()
        verdict = await self.policy.acheck(request)
        self.note(selection, verdict, perf_counter_ns() - began)
        return verdict

    def note(self, selection: Any, verdict: HttpVerdict, nanos: int) -> None:
        program = self.policy.program
        endpoint = verdict.request.route or endpoint_of(selection)
        self.tally.note(program, verdict, endpoint, nanos)
        notes = verdict.notes
        if verdict.why or (notes is not NO_NOTES and (notes.shadow or notes.graced)):
            self.violations(event_of(program, selection, verdict, nanos))

    # Limits that the caller names.

    def name(self, rule: str | None, limit: Any, name: str | None) -> NamedLimit:
        """What a caller means by the name of a rule, or by a limit with a name of its own."""
        place = rule, tuple(limit) if isinstance(limit, list) else limit, name
        try:
            found = self.named.get(place)
        except TypeError:
            raise InvalidInput(f"limit: expected text such as '100/minute', got {shown(limit)}.") from None
        return found or self.learn(place)

    def learn(self, place: Name) -> NamedLimit:
        rule, limit, name = place
        if rule is not None:
            if limit is not None or name is not None:
                raise InvalidInput("rule: expected no limit or name beside it, as the rule has its own.")
            found = [own for own in self.policy.rules if own.name == rule]
            if not found:
                known = ", ".join([own.name for own in self.policy.rules]) or "none"
                raise InvalidInput(f"rule: expected the name of a rule ({known}), got {shown(rule)}.")
            limits = found[0].limits
            terms = limits.get(ANY_TIER) or limits.get(found[0].tier_default)
            if terms is None:
                raise InvalidInput(f"rule: expected one with a limit, got {shown(rule)}, which has none.")
            space = rule
        else:
            if limit is None:
                raise InvalidInput("check: expected a limit such as '100/minute', or the name of a rule.")
            if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200):
                raise InvalidInput(f"name: expected text of 1 to 200 characters, got {shown(name)}.")
            terms = parse_limits(limit)
            space = name or str(terms)
        return self.keep(place, space, terms)

    def keep(self, place: Name, space: str, terms: Limit | LimitSet) -> NamedLimit:
        """Keep what a caller means; so many at most, as each has a table of its own."""
        if len(self.named) >= self.options.bounds.names:
            raise InvalidInput(
                f"limit: expected at most {self.options.bounds.names} different ones. "
                "Give clients different keys, not different limits."
            )
        self.shelves.keep(space, terms)
        made = self.named[place] = NamedLimit(space, terms, *self.counting(space, terms), self.tally.of(space))
        return made

    def counting(self, space: str, limit: Limit | LimitSet) -> tuple[Any, FallbackTable | None]:
        """The table and the desk of a limit: one of them at most."""
        if not self.policy.store.blocking:
            return self.policy.store.table(space, limit), None
        store: Any = self.policy.async_store
        return None, store.desk(space, limit)

    def remember(self, body: bytes, known: Known) -> None:
        """Know a question the next time; where limiting is stopped, each goes the long way."""
        if len(body) <= LONGEST_BODY and not self.switches.is_killed:
            if len(self.bodies) >= MOST_BODIES:
                self.bodies.clear()
            self.bodies[body] = known

    def refused(self, key: Any, by: int = 1) -> None:
        """Note who was refused, as a digest."""
        found = self.digests.get(key)
        if found is None:
            if len(self.digests) >= MOST_BODIES:
                self.digests.clear()
            name = encode(key) if key.__class__ is tuple else key
            text = name if isinstance(name, str) else name.hex()
            found = self.digests[key] = anonymous(text, self.settings.secret)
        self.tally.refused.add(found, by)

    def ask(self, operation: str, plan: Plan, *more: Any) -> Any:
        """The store's answer to a plan, or something to await."""
        if self.switches.is_killed and operation in ("check", "peek"):
            return tuple([admitted(check.limit) for check in plan])
        if not self.policy.store.blocking:
            return getattr(self.policy.store, operation)(plan, *more)
        if operation in ("check", "peek"):
            store: Any = self.policy.async_store
            found = store.answer_away(operation, plan)
            if found is not None:  # nobody has to wait to hear that
                return self.judged(found)
        return self.ask_elsewhere(operation, plan, *more)

    def away(self) -> str:
        """Why a store that is elsewhere cannot be asked at this moment; empty where to ask is the only way to know."""
        store: Any = self.policy.async_store
        if store is not self.linked[0]:
            self.linked = store, store.link()  # a worker has one loop, and need not look for it each time
        link = self.linked[1]
        return link.away() if link is not None else ""

    def stood_in(self, desk: FallbackTable | None, key: str | bytes, cost: int) -> Decision | None:
        """The answer of a desk while its store is known to be away; None: it must be asked."""
        if desk is None or not (why := self.away()):
            return None
        self.tally.store_errors += 1
        return desk.check(key, cost, why)

    async def ask_elsewhere(self, operation: str, plan: Plan, *more: Any) -> Any:
        policy = self.policy
        found = await adrive(settle.ask(operation, plan, *more), policy.async_store, policy.clock, policy.lines)
        return self.judged(found or ())

    def judged(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """Count what a stand-in said for the store; a "deny" is no refusal, but unavailable."""
        for decision in decisions:
            if decision.reason:
                self.tally.store_errors += 1
                if not decision.allowed and decision.reason.startswith("deny"):
                    raise StoreUnavailable(self.policy.store_url.partition("://")[0], decision.reason)
        return decisions

    def plan_of(self, named: NamedLimit, key: Any, cost: Any) -> Check:
        return Check(named.name, encode(key), named.limit, whole_cost(cost))

    # Rules, switches, health.

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Every space that is counted in, and the limit it has there."""
        for counter in self.policy.program.counters:
            yield from counter.places()
        for named in self.named.values():
            yield named.name, named.limit

    def apply_switches(self) -> None:
        """Put the rules in force as the switches say."""
        settings = self.settings
        rules = tuple([replace(rule, mode=self.switches.mode(rule.name, rule.mode)) for rule in settings.rules])
        current = self.policy.program.settings
        if current is not settings or rules != settings.rules:
            self.policy.replace(replace(settings, rules=rules))
        for cache in self.caches:
            cache.clear()

    def reload(self) -> None:
        """Read the rules again; those that cannot be taken raise InvalidRules, and the old ones stay."""
        with self.shelves.changing():
            try:
                if self.policy.path is not None:
                    self.policy.reload()
                    self.settings = self.policy.program.settings
                    self.apply_switches()
                for read_again in self.files:
                    read_again()
            except InvalidInput:
                self.tally.reloads["failed"] = self.tally.reloads.get("failed", 0) + 1
                raise
        self.tally.reloads["done"] = self.tally.reloads.get("done", 0) + 1
        log.info("rules reloaded: %d rules", len(self.policy.rules))

    def tick(self) -> None:
        """Once in a while: look whether somebody else has thrown a switch."""
        self.tally.minute()
        self.shelves.tidy()
        if self.switches.look():
            self.apply_switches()

    async def probe(self) -> str:
        """Empty if the store answers and can be relied on, else what is wrong with it."""
        store = self.policy.async_store
        if not store.blocking:
            self.store_answers = True
            return ""
        check = Check("#probe", "probe", parse_limits("1000000/second"), 1)
        try:
            found = await store.peek((check,))  # type: ignore[misc]
        except StoreUnavailable as error:
            self.store_answers = False
            return error.why
        reason = getattr(found[0], "reason", "") or ""
        self.store_answers = not reason
        return reason


def begun(coroutine: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """What a coroutine returns, if it does so without waiting; else something to await."""
    try:
        waited = coroutine.send(None)
    except StopIteration as done:
        found: T = done.value
        return found
    return rest(coroutine, waited)


async def rest(coroutine: Coroutine[Any, Any, T], waited: Any) -> T:
    return await resumed(coroutine, waited)


@coroutine_of_generator
def resumed(coroutine: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for something already."""
    while True:
        step: Callable[[Any], Any] = coroutine.send
        try:
            given = yield waited
        except BaseException as error:
            step, given = coroutine.throw, error
        try:
            waited = step(given)
        except StopIteration as done:
            found: T = done.value
            return found


def admitted(limit: Limit | LimitSet) -> Decision:
    """What everybody is told while limiting is stopped."""
    parts = limit.parts
    capacity = min([part.capacity for part in parts])
    return Decision(True, capacity, capacity)


def endpoint_of(selection: Any) -> str:
    """The pattern of the last rule that matched: a name from a bounded set."""
    for counter in reversed(selection.counters):
        for pattern in counter.rule.patterns:
            if pattern.text != "/**":
                return str(pattern.text)
    return "/**"

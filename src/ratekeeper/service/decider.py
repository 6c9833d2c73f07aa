"""The decisions of one worker: by the rules, and by limits that callers name.

A method returns its result, or something to await if the store must be asked; listeners answer the first at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter_ns
from types import coroutine as coroutine_of_generator
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.flow import settle
from ratekeeper.flow.drive import adrive
from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.keys import encode
from ratekeeper.limit import LimitSet, parse_limits
from ratekeeper.rules.selection import NO_QUEUE
from ratekeeper.service.counters import Counters
from ratekeeper.service.named_limits import NamedLimits
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

log = logging.getLogger("ratekeeper")
T = TypeVar("T")
MOST_DIGESTS = 4096


class Decider:
    """One worker's policy, named limits, overrides and counters."""

    def __init__(self, policy: Policy, options: Options) -> None:
        self.options = options
        self.policy = policy
        self.settings: Settings = policy.program.settings  # as loaded, before overrides
        self.overrides = Overrides(options.state)
        self.counters = Counters()
        self.retired = RetiredLimits(policy)
        self.retired.users.append(self.places)
        self.limits = NamedLimits(policy, self.counters, self.retired, options.bounds.names)
        self.violation_log = LoggingSink()
        self.digests: dict[Any, str] = {}  # of refused keys
        # Cleared whenever rules or overrides change.
        self.caches: list[dict[Any, Any]] = [self.limits.by_name, self.limits.questions, self.digests]
        self.reload_hooks: list[Callable[[], None]] = []  # read the configuration files of listeners again
        self.linked: tuple[Any, AsyncRedisServer | None] = None, None  # a store elsewhere, and its link of our loop
        self.is_ready = True
        self.store_answers = True
        self.apply_overrides()

    # Requests, by the rules.

    def check(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        """Decide a request by the rules."""
        policy = self.policy
        began = perf_counter_ns()
        program = policy.program
        selection = program.selection(request)
        if policy.store.blocking:
            checking = self.check_elsewhere(request, selection)
            return begun(checking) if self.away() else checking  # while the store is away, it answers without waiting
        verdict = policy.check(request)
        self.note(selection, verdict, perf_counter_ns() - began)
        return verdict

    async def check_elsewhere(self, request: Request, selection: Any) -> HttpVerdict:
        began = perf_counter_ns()
        verdict = await self.policy.acheck(request)
        self.note(selection, verdict, perf_counter_ns() - began)
        return verdict

    def note(self, selection: Any, verdict: HttpVerdict, nanos: int) -> None:
        """Count a verdict, and log it if it is a violation."""
        program = self.policy.program
        endpoint = verdict.request.route or endpoint_of(selection)
        self.counters.count_request(program, verdict, endpoint, nanos)
        notes = verdict.notes
        if verdict.reason or (notes is not NO_NOTES and (notes.shadow or notes.graced)):
            self.violation_log(event_of(program, selection, verdict, nanos))

    # Limits that callers name.

    def note_refused(self, key: Any, by: int = 1) -> None:
        """Count a refused client by the digest of its key."""
        digest = self.digests.get(key)
        if digest is None:
            if len(self.digests) >= MOST_DIGESTS:
                self.digests.clear()
            encoded = encode(key) if key.__class__ is tuple else key
            text = encoded if isinstance(encoded, str) else encoded.hex()
            digest = self.digests[key] = anonymous(text, self.settings.secret)
        self.counters.refused.add(digest, by)

    def ask(self, operation: str, plan: Plan, *more: Any) -> Any:
        """The store's answer to a plan, or something to await."""
        if self.overrides.is_killed and operation in ("check", "peek"):
            return tuple([admitted(check.limit) for check in plan])
        if not self.policy.store.blocking:
            return getattr(self.policy.store, operation)(plan, *more)
        if operation in ("check", "peek"):
            store: Any = self.policy.async_store
            decisions = store.answer_away(operation, plan)
            if decisions is not None:  # the store is away: its fallback answers without waiting
                return self.expect_decisions(decisions)
        return self.ask_elsewhere(operation, plan, *more)

    def away(self) -> str:
        """Why a store elsewhere cannot be asked now; empty if only asking can tell."""
        store: Any = self.policy.async_store
        if store is not self.linked[0]:
            self.linked = store, store.link()  # a worker has one loop, and need not look for it each time
        link = self.linked[1]
        return link.away() if link is not None else ""

    def stood_in(self, desk: FallbackTable | None, key: str | bytes, cost: int) -> Decision | None:
        """The answer of the fallback while the store is known to be away; None: the store must be asked."""
        if desk is None or not (why := self.away()):
            return None
        self.counters.store_errors += 1
        return desk.check(key, cost, why)

    async def ask_elsewhere(self, operation: str, plan: Plan, *more: Any) -> Any:
        policy = self.policy
        decisions = await adrive(settle.ask(operation, plan, *more), policy.async_store, policy.clock, NO_QUEUE)
        return self.expect_decisions(decisions or ())

    def expect_decisions(self, decisions: tuple[Decision, ...]) -> tuple[Decision, ...]:
        """Count decisions of the fallback; raise StoreUnavailable for a "deny", which is no refusal of the limit."""
        for decision in decisions:
            if decision.reason:
                self.counters.store_errors += 1
                if not decision.allowed and decision.reason.startswith("deny"):
                    raise StoreUnavailable(self.policy.store_url.partition("://")[0], decision.reason)
        return decisions

    # Rules, overrides, health.

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Every space that rules and callers count in, and its limit."""
        for counter in self.policy.program.counters:
            yield from counter.places()
        yield from self.limits.places()

    def apply_overrides(self) -> None:
        """Put the rules in force in the modes that the overrides say."""
        settings = self.settings
        rules = tuple([replace(rule, mode=self.overrides.mode(rule.name, rule.mode)) for rule in settings.rules])
        current = self.policy.program.settings
        if current is not settings or rules != settings.rules:
            self.policy.replace(replace(settings, rules=rules))
        for cache in self.caches:
            cache.clear()

    def reload(self) -> None:
        """Read the rules again; a file with a mistake raises InvalidRules, and the present rules stay."""
        with self.retired.during_reload():
            try:
                if self.policy.path is not None:
                    self.policy.reload()
                    self.settings = self.policy.program.settings
                    self.apply_overrides()
                for read_again in self.reload_hooks:
                    read_again()
            except InvalidInput:
                self.counters.reloads["failed"] = self.counters.reloads.get("failed", 0) + 1
                raise
        self.counters.reloads["done"] = self.counters.reloads.get("done", 0) + 1
        log.info("rules reloaded: %d rules", len(self.policy.rules))

    def tick(self) -> None:
        """Twice a second: follow overrides that another worker has set."""
        self.counters.start_minute()
        self.retired.tidy()
        if self.overrides.refresh():
            self.apply_overrides()

    async def probe(self) -> str:
        """Ask the store something that takes nothing; returns why it does not answer, or nothing if it does."""
        store = self.policy.async_store
        if not store.blocking:
            self.store_answers = True
            return ""
        check = Check("#probe", "probe", parse_limits("1000000/second"), 1)
        try:
            decisions = await store.peek((check,))  # type: ignore[misc]
        except StoreUnavailable as error:
            self.store_answers = False
            return error.why
        reason = getattr(decisions[0], "reason", "") or ""
        self.store_answers = not reason
        return reason


def begun(coroutine: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """What a coroutine returns, if it does so without waiting; else something to await."""
    try:
        waited = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return rest(coroutine, waited)


async def rest(coroutine: Coroutine[Any, Any, T], waited: Any) -> T:
    return await resumed(coroutine, waited)


@coroutine_of_generator
def resumed(coroutine: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that waits for something already."""
    while True:
        step: Callable[[Any], Any] = coroutine.send
        try:
            value = yield waited
        except BaseException as error:
            step, value = coroutine.throw, error
        try:
            waited = step(value)
        except StopIteration as done:
            result: T = done.value
            return result


def admitted(limit: Limit | LimitSet) -> Decision:
    """The decision on every check while the kill switch is on."""
    capacity = min([part.capacity for part in limit.parts])
    return Decision(True, capacity, capacity)


def endpoint_of(selection: Any) -> str:
    """The pattern of the last rule that matched: a name from a bounded set."""
    for counter in reversed(selection.counters):
        for pattern in counter.rule.patterns:
            if pattern.text != "/**":
                return str(pattern.text)
    return "/**"

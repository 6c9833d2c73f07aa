"""The decisions of one worker: by the rules, and by limits that callers name.

A method returns its result, or something to await if the store must be asked; listeners answer the first at once.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.flow import settle
from ratekeeper.flow.drive import adrive
from ratekeeper.http.verdict import NO_NOTES, HttpVerdict
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
    from collections.abc import Awaitable, Callable, Iterator

    from ratekeeper.check import Plan
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.settings import Settings
    from ratekeeper.service.options import Options

log = logging.getLogger("ratekeeper")
MOST_DIGESTS = 4096


class Decider:
    """One worker's policy, named limits, overrides and counters."""

    def __init__(self, policy: Policy, options: Options) -> None:
        self.options = options
        self.policy = policy
        self.settings: Settings = policy.compiled.settings  # as loaded, before overrides
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
        self.is_ready = True
        self.store_answers = True
        self.apply_overrides()

    # Requests, by the rules.

    def check(self, request: Request) -> HttpVerdict | Awaitable[HttpVerdict]:
        """Decide a request by the rules."""
        policy = self.policy
        began = perf_counter_ns()
        selection = policy.selection(request)
        outcome = selection.answer(request)
        if outcome.__class__ is not HttpVerdict:
            return self.check_later(selection, outcome, began)  # type: ignore[arg-type]
        self.note(selection, outcome, perf_counter_ns() - began)
        return outcome

    async def check_later(self, selection: Any, outcome: Awaitable[HttpVerdict], began: int) -> HttpVerdict:
        verdict = await outcome
        self.note(selection, verdict, perf_counter_ns() - began)
        return verdict

    def note(self, selection: Any, verdict: HttpVerdict, nanos: int) -> None:
        """Count a verdict, and log it if it is a violation."""
        compiled = self.policy.compiled
        endpoint = verdict.request.route or endpoint_of(selection)
        self.counters.count_request(compiled, verdict, endpoint, nanos)
        notes = verdict.notes
        if verdict.reason or (notes is not NO_NOTES and (notes.shadow or notes.graced)):
            self.violation_log(event_of(compiled, selection, verdict, nanos))

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
        if self.policy.compiled.answers_at_once:
            return getattr(self.policy.store, operation)(plan, *more)
        return self.ask_later(operation, plan, *more)

    async def ask_later(self, operation: str, plan: Plan, *more: Any) -> Any:
        policy = self.policy
        decisions = await adrive(settle.ask(operation, plan, *more), policy.async_store, policy.clock, NO_QUEUE)
        for decision in decisions or ():
            if decision.reason:
                self.note_fallback(decision)
        return decisions

    def note_fallback(self, decision: Decision) -> None:
        """Count a decision of the store's fallback; raise StoreUnavailable for a "deny", which no limit has refused."""
        self.counters.store_errors += 1
        if not decision.allowed and decision.reason.startswith("deny"):
            raise StoreUnavailable(self.policy.store_url.partition("://")[0], decision.reason)

    # Rules, overrides, health.

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Every space that rules and callers count in, and its limit."""
        for counter in self.policy.compiled.counters:
            yield from counter.places()
        yield from self.limits.places()

    def apply_overrides(self) -> None:
        """Put the rules in force in the modes that the overrides say."""
        settings = self.settings
        rules = tuple([replace(rule, mode=self.overrides.mode(rule.name, rule.mode)) for rule in settings.rules])
        current = self.policy.compiled.settings
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
                    self.settings = self.policy.compiled.settings
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
        if self.policy.compiled.answers_at_once:  # it is in this process: there is nothing to ask
            self.store_answers = True
            return ""
        check = Check("#probe", "probe", parse_limits("1000000/second"), 1)
        try:
            decisions = await store.peek((check,))  # type: ignore[misc]
        except StoreUnavailable as error:
            self.store_answers = False
            return error.why
        self.store_answers = not decisions[0].reason
        return decisions[0].reason


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

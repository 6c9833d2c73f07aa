"""The decisions of one worker: by the rules, and by limits that callers name.

A method returns its result, or something to await if the store must be asked; listeners answer the first at once.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.decision import Decision
from ratekeeper.errors import InvalidInput, InvalidRules, StoreUnavailable
from ratekeeper.flow import settle
from ratekeeper.flow.drive import adrive
from ratekeeper.flow.lease_renewal import BEATS, HEARTBEAT, renewer_of
from ratekeeper.http.verdict import NO_NOTES, HttpVerdict
from ratekeeper.keys import encode
from ratekeeper.limit import LimitSet, parse_limits
from ratekeeper.rules.selection import NO_QUEUE
from ratekeeper.rules.short_turns import short_turns
from ratekeeper.service.counters import Counters
from ratekeeper.service.faults import Faults
from ratekeeper.service.named_limits import NamedLimits
from ratekeeper.service.overrides import Overrides
from ratekeeper.service.retired_limits import RetiredLimits
from ratekeeper.service.table_budget import TableBudget, share_of_rules
from ratekeeper.sinks.event import anonymous_key, event_of
from ratekeeper.sinks.log import LoggingSink

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from ratekeeper.check import LeaseCheck, Plan
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit
    from ratekeeper.rules.decide import CompiledRules
    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.settings import Settings
    from ratekeeper.service.options import Options

log = logging.getLogger("ratekeeper")
MOST_DIGESTS = 4096
SWITCH = 0.00005  # seconds; usually 0.005
GIVEN = Decision(True, 1, 0)  # by the store


def expect_requests(settings: Settings) -> None:
    """Raise if a rule needs to see responses: callers of the service ask before they answer, and do not return."""
    for number, rule in enumerate(settings.rules):
        if rule.count_when is not None and rule.mode != "off":
            place = f"rules[{number}].count_when (rule {rule.name!r})"
            raise InvalidRules(
                f"{place}: expected a rule that counts every request, as the service sees no responses, "
                f"got {rule.count_when.text!r}. Use count_when in the middleware of the application.",
                place,
            )


class Decider:
    """One worker's policy, named limits, overrides and counters."""

    def __init__(self, policy: Policy, options: Options) -> None:
        self.options = options
        self.policy = policy
        self.settings: Settings = policy.compiled.settings  # as loaded, before overrides
        self.overrides = Overrides(options.state)
        self.counters = Counters()
        self.faults = Faults(self.counters.faults)
        self.retired = RetiredLimits(policy)
        self.retired.users.append(self.by_place)
        bounds = options.bounds
        budget = TableBudget(bounds.tables // options.workers, bounds.log, bounds.names)
        self.limits = NamedLimits(policy, self.counters, self.retired, bounds.names, budget)
        self.violation_log = LoggingSink()
        self.digests: dict[Any, str] = {}  # of refused keys
        # Cleared whenever rules or overrides change.
        self.caches: list[dict[Any, Any]] = [self.digests]
        self.reload_hooks: list[Callable[[], None]] = []  # read the configuration files of listeners again
        self.tick_hooks: list[Callable[[], None]] = []  # look whether those files have changed
        # Each lists the limits of a listener's own file: name, mode and text.
        self.listed: list[Callable[[], Iterator[tuple[str, str, str]]]] = []
        self.reloading = asyncio.Lock()
        self.is_ready = True
        self.store_answers = True
        self.apply_overrides()

    # Requests, by the rules.

    def check(self, request: Request, hits: int = 1) -> HttpVerdict | Awaitable[HttpVerdict]:
        """Decide a request by the rules; ``hits`` is how often it counts, and 0 only looks."""
        policy = self.policy
        began = perf_counter_ns()
        selection = policy.selection(request) if hits == 1 else policy.selection_for_hits(request, hits)
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
            encoded = encode(key)
            digest = anonymous_key(encoded, self.settings.secret)
            if key is encoded:  # neither a tuple nor long: what is cached is bounded in bytes
                self.digests[key] = digest
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

    def hold(self, lease: LeaseCheck) -> Any:
        """The store's answer to a lease, or something to await.  The caller renews it and gives it back, or it ends."""
        if self.overrides.is_killed or self.policy.compiled.answers_at_once:
            return self.ask("check", (lease,))
        return self.hold_later(lease)

    async def hold_later(self, lease: LeaseCheck) -> Any:
        flow = settle.hold((lease,), renewer_of(self.policy.async_store), keep=False)
        decisions = await adrive(flow, self.policy.async_store, self.policy.clock, NO_QUEUE)
        for decision in decisions:
            if decision.reason:
                self.note_fallback(decision)
        return decisions

    async def end(self, lease: LeaseCheck, kept: int) -> Any:
        """Let a lease keep only so many places, on the store and in its fallback, whichever gave it."""
        policy = self.policy
        ended = lease.having(kept, 0)
        if policy.compiled.answers_at_once:
            return policy.store.end_leases((ended,))
        policy.async_store.fall_back("end_leases", None, (ended,))  # type: ignore[attr-defined]
        noted = lease.having(lease.cost, min(lease.lasts, BEATS * HEARTBEAT))  # no request is under way for longer
        flow = settle.end(noted, GIVEN, renewer_of(policy.async_store), kept, is_kept_elsewhere=True)
        return (await adrive(flow, policy.async_store, policy.clock, NO_QUEUE),)

    def note_fallback(self, decision: Decision) -> None:
        """Count a decision of the store's fallback; raise StoreUnavailable for a "deny", which no limit has refused."""
        self.counters.store_errors += 1
        if not decision.allowed and decision.reason.startswith("deny"):
            raise StoreUnavailable(self.policy.store_url.partition("://")[0], decision.reason)

    # Rules, overrides, health.

    def file_modes(self) -> dict[str, str]:
        """The mode of each rule, and of each limit of a listener's own file, as the files say it."""
        modes = {rule.name: rule.mode for rule in self.settings.rules}
        for limits in self.listed:
            modes |= {name: mode for name, mode, _ in limits()}
        return modes

    def by_place(self) -> dict[tuple[str, str], Limit | LimitSet]:
        """Every space that rules and callers count in, with its layout, and its limit there."""
        return self.policy.compiled.by_place() | {(space, limit.layout): limit for space, limit in self.limits.places()}

    def apply_overrides(self) -> None:
        """Put the rules in force in the modes that the overrides say."""
        in_force = self.with_overrides(self.settings)
        current = self.policy.compiled.settings
        if current.rules != in_force.rules or (current is not self.settings and in_force is self.settings):
            self.policy.replace(in_force)
        self.clear_caches()

    def with_overrides(self, settings: Settings) -> Settings:
        modes = [self.overrides.mode(rule.name, rule.mode) for rule in settings.rules]
        if all(mode == rule.mode for mode, rule in zip(modes, settings.rules, strict=True)):
            return settings
        rules = [replace(rule, mode=mode) for rule, mode in zip(settings.rules, modes, strict=True)]
        return replace(settings, rules=tuple(rules))

    def clear_caches(self) -> None:
        for cache in self.caches:
            cache.clear()
        self.limits.refresh()

    def reload(self) -> None:
        """Read the rules again; a file with a mistake raises InvalidRules, and the present rules stay."""
        with self.counting_reloads():
            self.put_in_force(self.prepare_reload() if self.policy.path is not None else None)

    async def reload_aside(self) -> None:
        """``reload``, while requests are decided: a thread reads and compiles the rules, which may take seconds."""
        async with self.reloading:
            with self.counting_reloads():
                prepared = None
                if self.policy.path is not None:
                    with short_switches():
                        prepared = await asyncio.get_running_loop().run_in_executor(None, self.prepare_aside)
                self.put_in_force(prepared)

    def prepare_aside(self) -> tuple[Settings, CompiledRules]:
        """``prepare_reload`` in a thread beside that of the requests."""
        with short_turns():
            return self.prepare_reload()

    def prepare_reload(self) -> tuple[Settings, CompiledRules]:
        """The rules of the file, and what is to be in force of them."""
        settings = self.policy.read_again()
        expect_requests(settings)
        compiled = self.policy.compile(self.with_overrides(settings))
        self.share_memory(compiled)
        compiled.by_place()  # here, or requests would wait for it
        return settings, compiled

    def share_memory(self, compiled: CompiledRules) -> None:
        """Share the memory of the rules' tables out among them, if the service has chosen the shared memory itself."""
        store: Any = self.policy.async_store
        if getattr(store, "table_bytes", None) is not None:
            store.table_bytes = share_of_rules(compiled.places(), self.options.bounds.rule_tables)

    def put_in_force(self, prepared: tuple[Settings, CompiledRules] | None) -> None:
        with self.retired.during_reload():
            if prepared is not None:
                self.settings, compiled = prepared
                self.policy.put_in_force(compiled)
                self.apply_overrides()  # they may have changed in the meantime
            for read_again in self.reload_hooks:
                read_again()

    @contextmanager
    def counting_reloads(self) -> Iterator[None]:
        reloads = self.counters.reloads
        try:
            yield
        except InvalidInput:
            reloads["failed"] = reloads.get("failed", 0) + 1
            raise
        reloads["done"] = reloads.get("done", 0) + 1
        log.info("rules reloaded: %d rules", len(self.policy.rules))

    def tick(self) -> None:
        """Twice a second: follow overrides that another worker has set."""
        self.counters.start_minute()
        self.limits.forget_recovered()
        self.retired.tidy()
        for look in self.tick_hooks:
            look()
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


@contextmanager
def short_switches() -> Iterator[None]:
    """Let threads switch more often: a request waits for that whenever the thread beside it cannot pause itself.

    That is while it reads TOML or YAML, which other packages do.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    try:
        yield
    finally:
        sys.setswitchinterval(usual)


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

"""ShouldRateLimit, from bytes to bytes: what a listener asks about each call, whichever way it speaks gRPC.

With ``--envoy-config`` the limits of that file apply.  Each descriptor does one of four things:

- *take*: the usual one.  All takes of a request are decided together, all or nothing: a refused request takes nothing;
- *look*: its own ``hits_addend`` is 0.  It takes nothing, and is refused above the limit;
- *charge*: its own ``hits_addend`` is above 0.  Envoy charges so after the response, when there is nothing to refuse
  any more: all of it is counted, past the limit too, and the next look is refused;
- *refund*: ``is_negative_hits``.  It gives back, and is never refused.

With ``--envoy-compat`` every take is a charge, which is what envoyproxy/ratelimit does.

Without that file a descriptor describes a request for the rules: ``remote_address``, ``method``, ``path``, ``host`` and
``header.NAME`` are what they say, and every other key is a fact (``app:KEY``).  Statuses come in the order of the
descriptors.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from typing import TYPE_CHECKING, Any

from envoy.config.core.v3 import base_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable
from ratekeeper.http.headers import binding
from ratekeeper.identity.request import Request
from ratekeeper.keys import encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.service.envoy import answer
from ratekeeper.service.envoy.answer import MOST_REMAINING
from ratekeeper.service.envoy.config import SECONDS, Match, Rate, limits_of, load, stamps
from ratekeeper.service.http2_listener import CallFailed
from ratekeeper.service.table_budget import NoRoom
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence
    from pathlib import Path

    from ratekeeper.decision import Decision
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.limit import Limit
    from ratekeeper.service.counters import RuleCounts
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.envoy.config import Descriptors
    from ratekeeper.service.options import EnvoyOptions, Options

    Entry = tuple[str, str]

log = logging.getLogger("ratekeeper")
Response = rls_pb2.RateLimitResponse
Status = Response.DescriptorStatus
OK, OVER = Response.OK, Response.OVER_LIMIT
UNITS = {"second": 1, "minute": 2, "hour": 3, "day": 4, "month": 5, "year": 6, "week": 7}
OVERRIDE_UNITS = {number: unit for unit, number in UNITS.items()}
REQUEST_KEYS = ("remote_address", "method", "path", "host")
NEGATIVE_HITS = 4  # the number of RateLimitDescriptor.is_negative_hits, which older message classes do not know
MOST_DESCRIPTORS = 100
MOST_QUESTIONS = 4096  # cached ones
LONGEST_QUESTION = 512  # bytes
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE = 3, 8, 13, 14  # codes of gRPC
TAKE, LOOK, CHARGE, REFUND, CLOSED = "check", "peek", "debit", "refund", "closed"  # but for the last, what stores do


class Outcome:
    """What became of one descriptor; times in seconds."""

    __slots__ = ("capacity", "is_over", "remaining", "reset", "retry")

    def __init__(self, is_over: bool, capacity: int, remaining: int, reset: float, retry: float | None) -> None:
        self.is_over = is_over
        self.capacity = capacity
        self.remaining = remaining
        self.reset = reset
        self.retry = retry  # None if it can never pass

    @property
    def wait(self) -> float:
        """Until the same would pass, or else until the limit is whole again."""
        return self.reset if not self.is_over or self.retry is None else self.retry


class DescriptorCheck:
    """One descriptor: its limit if it has one, what it does to it, and what became of that."""

    __slots__ = ("check", "cost", "is_quota", "is_shadow", "kind", "metric", "outcome", "rate")

    def __init__(
        self,
        rate: Rate | None = None,
        metric: str = "",
        check: Check | None = None,
        kind: str = "",
        cost: int = 0,
        *,
        is_shadow: bool = False,
        is_quota: bool = False,
    ) -> None:
        self.rate = rate
        self.metric = metric
        self.check = check
        self.kind = kind
        self.cost = cost
        self.is_shadow = is_shadow
        self.is_quota = is_quota
        self.outcome: Outcome | None = None

    @property
    def is_soft(self) -> bool:
        return self.is_shadow or self.is_quota

    @property
    def is_refused(self) -> bool:
        return self.outcome is not None and self.outcome.is_over and not self.is_soft


class CachedQuestion:
    """A parsed request with one descriptor and one enforced limit."""

    __slots__ = ("cost", "counts", "current", "key", "table")

    def __init__(self, rate: Rate, key: tuple[Any, ...], cost: int, table: Any, counts: RuleCounts) -> None:
        self.current = answer.length_delimited(b"\x12", limit_message(rate).SerializeToString())
        self.key = key
        self.cost = cost
        self.table = table
        self.counts = counts


class RateLimits:
    """The rate limit service, from bytes to bytes: most requests come again and again, and need not be parsed twice."""

    def __init__(
        self, decider: Decider, descriptors: Descriptors | None, options: EnvoyOptions, config: Path | None = None
    ) -> None:
        self.decider = decider
        self.config = config
        self.seen = stamps(config) if config is not None else ()
        self.following: asyncio.Task[None] | None = None
        self.descriptors = descriptors
        self.options = options
        self.names = answer.HEADERS[options.header_style]
        self.override_limits: dict[tuple[int, int], tuple[Limit | None, Limit | None]] = {}
        self.questions: dict[bytes, CachedQuestion] = {}
        decider.caches.append(self.questions)
        decider.retired.users.append(self.by_place)
        decider.listed.append(self.listed)

    def by_place(self) -> dict[tuple[str, str], Any]:
        """Every space that descriptors count in, with its layout, and its limit there."""
        rates = self.descriptors.rates if self.descriptors is not None else ()
        limits = [(rate.path, rate.limit or rate.counter) for rate in rates]
        return {(path, limit.layout): limit for path, limit in limits if limit is not None}

    def listed(self) -> Iterator[tuple[str, str, str]]:
        """Name, mode and text of each limit, for status, dashboard and overrides."""
        for rate in self.descriptors.rates if self.descriptors is not None else ():
            yield rate.path, rate.mode, rate.text

    def replace(self, descriptors: Descriptors) -> None:
        """Put other limits in force."""
        self.descriptors = descriptors
        self.questions.clear()

    def reload(self) -> None:
        """Read the configuration again; a file with a mistake raises InvalidRules, and the present limits stay."""
        if self.config is not None:
            self.seen = stamps(self.config)
            self.replace(load(self.config))

    def look_for_changes(self) -> None:
        """Read the configuration again if a file of it, or a link to one, is another: as a ConfigMap is updated."""
        if self.config is None or (self.following is not None and not self.following.done()):
            return
        seen = stamps(self.config)
        if seen != self.seen:
            self.seen = seen
            self.following = asyncio.get_running_loop().create_task(self.follow(self.config))

    async def follow(self, config: Path) -> None:
        reloads = self.decider.counters.reloads
        try:
            descriptors = await asyncio.get_running_loop().run_in_executor(None, load, config)
        except Exception as error:  # nothing that is wrong with the file may stop the limits in force
            reloads["failed"] = reloads.get("failed", 0) + 1
            log.error("limits of %s not reloaded, the present ones stay: %s", config.name, error)
            return
        with self.decider.retired.during_reload():
            self.replace(descriptors)
        reloads["done"] = reloads.get("done", 0) + 1
        log.info("limits reloaded: %d from %s", len(descriptors.rates), config.name)

    def call(self, raw: bytes) -> bytes | Awaitable[bytes]:
        """The response to a request, at once if no store must be asked; raises CallFailed, or what is awaited does."""
        try:
            answer = self.answer_now(raw)
        except StoreUnavailable as error:
            raise CallFailed(UNAVAILABLE, f"the store does not answer: {error.why}") from None
        return self.answer(raw) if answer is None else answer

    def question(self, raw: bytes) -> CachedQuestion | None:
        return None if self.decider.overrides.is_killed else self.questions.get(raw)

    def answer_now(self, raw: bytes) -> bytes | None:
        """The response, if it needs neither parsing nor waiting."""
        question = self.question(raw)
        if question is None:
            return None
        decision = question.table.check_now(question.key, question.cost)
        if decision is None:
            return None
        self.count_call()
        return self.cached_response(question, decision)

    async def answer(self, raw: bytes) -> bytes:
        """The response to a request; raises CallFailed."""
        try:
            now = self.answer_now(raw)
            if now is not None:
                return now
            self.count_call()
            question = self.question(raw)
            if question is not None:
                decision = await question.table.check(question.key, question.cost)
                return self.cached_response(question, decision)
            try:
                request = rls_pb2.RateLimitRequest.FromString(raw)
            except DecodeError:
                raise CallFailed(INVALID_ARGUMENT, "expected a RateLimitRequest.") from None
            response: bytes = (await self.should_rate_limit(request)).SerializeToString()
            self.remember(raw, request)
            return response
        except StoreUnavailable as error:
            raise CallFailed(UNAVAILABLE, f"the store does not answer: {error.why}") from error
        except NoRoom as error:  # Envoy's failure_mode_deny decides whether the request passes
            raise CallFailed(RESOURCE_EXHAUSTED, str(error)) from error
        except RatekeeperError as error:
            raise CallFailed(INVALID_ARGUMENT, str(error)) from error
        except CallFailed:
            raise
        except Exception as error:
            self.decider.faults.note("grpc", error)
            raise CallFailed(INTERNAL, "internal error") from error

    def count_call(self) -> None:
        calls = self.decider.counters.calls
        calls["grpc"] = calls.get("grpc", 0) + 1

    def cached_response(self, question: CachedQuestion, decision: Decision) -> bytes:
        if decision.reason:
            self.decider.note_fallback(decision)
        question.counts.count(decision.allowed, decision.remaining / decision.limit)
        if decision.allowed:
            return answer.response(question.current, decision, decision.reset_after, None, self.names)
        self.decider.note_refused(question.key)
        return answer.response(question.current, decision, wait_of(decision), decision.retry_after, self.names)

    def remember(self, raw: bytes, request: Any) -> None:
        """Cache a request that has one descriptor with one enforced limit."""
        options = self.options
        if self.descriptors is None or len(request.descriptors) != 1 or len(raw) > LONGEST_QUESTION:
            return
        if options.compat or options.shadow or options.quota or options.metadata:
            return
        descriptor = request.descriptors[0]
        if descriptor.HasField("limit"):
            return
        check = self.check_of(request, descriptor)
        rate = check.rate
        if rate is None or check.kind != TAKE or check.is_soft or rate.limit is None:
            return
        if len(self.questions) >= MOST_QUESTIONS:
            self.questions.clear()
        match = self.descriptors.find(request.domain, entries_of(descriptor))
        if match is not None:
            table = self.decider.policy.async_store.table(rate.path, rate.limit)
            counts = self.decider.counters.of(check.metric)
            self.questions[raw] = CachedQuestion(rate, match.key, check.cost, table, counts)

    async def should_rate_limit(self, request: Any) -> Any:
        if not request.domain:
            raise InvalidInput("domain: expected text, got nothing. Set it in the Envoy filter.")
        if not 0 < len(request.descriptors) <= MOST_DESCRIPTORS:
            raise InvalidInput(f"descriptors: expected 1 to {MOST_DESCRIPTORS} of them.")
        if self.descriptors is not None:
            return await self.by_descriptors(request)
        return await self.by_rules(request)

    # By a configuration of envoyproxy/ratelimit.

    async def by_descriptors(self, request: Any) -> Any:
        checks = [self.check_of(request, descriptor) for descriptor in request.descriptors]
        replaced = {name for check in checks if check.rate is not None for name in check.rate.replaces}
        for number, check in enumerate(checks):
            if check.rate is not None and check.rate.name in replaced and not check.rate.is_unlimited:
                checks[number] = DescriptorCheck()
        await self.decide(checks)
        return self.response_of(request, checks)

    def check_of(self, request: Any, descriptor: Any) -> DescriptorCheck:
        assert self.descriptors is not None
        if request.domain not in self.descriptors.domains:
            return DescriptorCheck()
        entries = [(entry.key, entry.value) for entry in descriptor.entries]
        match = self.descriptors.find(request.domain, entries)
        if descriptor.HasField("limit"):
            match = self.override(request.domain, entries, descriptor.limit, match)
        if match is None:
            return DescriptorCheck()
        rate, options = match.rate, self.options
        mode = self.decider.overrides.mode(rate.path, rate.mode)
        if mode == "off":
            return DescriptorCheck()
        if rate.is_unlimited:
            return DescriptorCheck(rate, match.metric)
        kind, cost = self.kind_and_cost(request, descriptor)
        limit = rate.limit if kind == TAKE else rate.counter or rate.limit
        if (rate.limit is None and not options.compat) or limit is None:
            kind, check = (LOOK if kind == REFUND else CLOSED), None
        else:
            check = Check(rate.path, encode(match.key), limit, cost or 1)
        return DescriptorCheck(
            rate, match.metric, check, kind, cost, is_shadow=mode == "shadow", is_quota=rate.is_quota or options.quota
        )

    def kind_and_cost(self, request: Any, descriptor: Any) -> tuple[str, int]:
        cost = hits(request, descriptor)
        if is_negative(descriptor):
            return (REFUND if cost else LOOK), cost
        if not cost:
            return LOOK, 0
        return (CHARGE if self.options.compat or descriptor.HasField("hits_addend") else TAKE), cost

    def override(self, domain: str, entries: Sequence[Entry], limit: Any, match: Match | None) -> Match:
        """The limit that Envoy sends with a descriptor, in place of the configured one and its mode."""
        place = limit.requests_per_unit, limit.unit
        unit = OVERRIDE_UNITS.get(limit.unit)
        if unit is None:
            raise InvalidInput("limit: expected a unit from SECOND to WEEK, got an unknown one.")
        if place not in self.override_limits:
            if len(self.override_limits) >= self.decider.options.bounds.names:
                self.override_limits.clear()
            self.override_limits[place] = limits_of(limit.requests_per_unit, unit)
        parsed, counter = self.override_limits[place]
        path = match.rate.path if match is not None else f"{domain}.override"
        table_limit = parsed or (counter if self.options.compat else None)  # else a limit of 0 needs no counter
        if table_limit is not None:
            self.decider.limits.share(path, table_limit)
        rate = Rate(path, parsed, unit=unit, count=limit.requests_per_unit, counter=counter)
        return Match(rate, (domain, *[part for entry in entries for part in entry]), path)

    async def decide(self, checks: list[DescriptorCheck]) -> None:
        """Fill in the outcomes.  Looks come first, so that they do not see what this request takes."""
        for check in checks:
            if check.kind == CLOSED and check.rate is not None:
                check.outcome = Outcome(True, 0, 0, 0.0, None)
                self.note(check)
        if self.options.compat:
            for kind, group in groupby(checks, lambda check: check.kind):
                if kind in (LOOK, CHARGE, REFUND):
                    await self.ask_each(kind, list(group))
            return
        await self.ask(LOOK, [check for check in checks if check.kind == LOOK and check.check is not None])
        await self.ask(REFUND, [check for check in checks if check.kind == REFUND])
        await self.ask_each(CHARGE, [check for check in checks if check.kind == CHARGE])
        takes = [check for check in checks if check.kind == TAKE]
        if self.options.shadow:
            for check in takes:
                await self.ask(TAKE, [check])
            return
        enforced = [check for check in takes if not check.is_soft]
        await self.ask(LOOK if any(check.is_refused for check in checks) else TAKE, enforced)
        is_refused = any(check.is_refused for check in checks)
        for check in takes:
            if check.is_soft:
                await self.ask(LOOK if is_refused else TAKE, [check])

    async def ask_each(self, operation: str, checks: list[DescriptorCheck]) -> None:
        """Ask about each check by itself, in order."""
        if operation == CHARGE:  # whether it is above a limit that does not count up, only a look can tell
            await self.ask(LOOK, [check for check in checks if check.rate is not None and check.rate.counter is None])
        await self.ask(operation, [check for check in checks if check.check is not None])

    async def ask(self, operation: str, checks: list[DescriptorCheck]) -> None:
        plan = tuple([check.check for check in checks if check.check is not None])
        if not plan:
            return
        if operation == LOOK and len({(check.space, check.key) for check in plan}) < len(plan):
            for check in checks:  # in one plan each would see what those before it would take
                await self.ask(LOOK, [check])
            return
        outcome = self.decider.ask(operation, plan)
        decisions = await outcome if hasattr(outcome, "__await__") else outcome
        for check, decision in zip(checks, decisions, strict=True):
            if check.outcome is None:  # else it is a charge that was looked at before
                check.outcome = self.outcome_of(check, decision)
            if operation == TAKE or (operation == CHARGE and check.kind == CHARGE):
                self.note(check)

    def outcome_of(self, check: DescriptorCheck, decision: Decision) -> Outcome:
        rate = check.rate
        assert rate is not None
        reset = decision.reset_after
        if check.kind == TAKE or rate.counter is None:
            is_over, capacity, remaining = not decision.allowed, decision.limit, decision.remaining
            retry = decision.retry_after
        else:
            capacity = rate.count
            if decision.limit != rate.counter.count:  # a fallback counts, with a share of each limit
                capacity = max(1, capacity * decision.limit // rate.counter.count)
            used = decision.limit - decision.remaining
            is_over, remaining = used > capacity, max(0, capacity - used)
            retry = reset if is_over else 0.0
        if self.options.compat:
            if rate.counter is not None and rate.counter.algorithm == "fixed_window":
                period = SECONDS[rate.unit]
                reset = float(period - decision.at // SECOND % period)
            retry = reset = float(-int(-reset // 1))
        return Outcome(is_over and check.kind != REFUND, capacity, remaining, reset, retry)

    def note(self, check: DescriptorCheck) -> None:
        """Count an outcome, and the client if it was refused."""
        outcome, counters = check.outcome, self.decider.counters
        assert outcome is not None
        is_soft = check.is_soft or self.options.shadow
        if outcome.is_over and is_soft:
            counters.bump(check.metric, "shadow_refused")
            return
        if outcome.is_over and check.check is not None:
            self.decider.note_refused(check.check.key)
        counters.of(check.metric).count(not outcome.is_over, outcome.remaining / max(1, outcome.capacity))

    def response_of(self, request: Any, checks: list[DescriptorCheck]) -> Any:
        is_over = any(check.is_refused for check in checks)
        response = Response(
            overall_code=OVER if is_over and not self.options.shadow else OK,
            statuses=[status_of(check) for check in checks],
        )
        limited = [check for check in checks if check.outcome is not None and check.kind != CLOSED]
        if self.options.compat:
            self.add_compat_headers(response, checks)
        elif limited:
            add_headers(response, checks, self.names)
        if self.options.metadata:
            response.dynamic_metadata.update(metadata_of(request, checks))
        return response

    def add_compat_headers(self, response: Any, checks: list[DescriptorCheck]) -> None:
        """Those of envoyproxy/ratelimit: of the last refusal, or else of the first limit with the least left."""
        limited = [(check, check.outcome) for check in checks if check.outcome is not None]
        refused = [each for each in limited if each[0].is_refused]
        scarce = [each for each in limited if each[1].remaining < MOST_REMAINING]
        if not self.names or not (refused or scarce):
            return
        check, outcome = refused[-1] if refused else min(scarce, key=lambda each: each[1].remaining)
        rate = check.rate
        assert rate is not None
        for name, value in zip(self.names, (rate.count, outcome.remaining, int(outcome.reset)), strict=True):
            response.response_headers_to_add.append(header(name.decode(), str(value)))

    # By the rules.

    async def by_rules(self, request: Any) -> Any:
        statuses, verdicts = [], []
        for descriptor in request.descriptors:
            outcome: Any = self.decider.check(request_of(entries_of(descriptor)), hits(request, descriptor))
            verdict: HttpVerdict = await outcome if hasattr(outcome, "__await__") else outcome
            status = Status(code=OK if verdict.allowed else OVER)
            if verdict.limits:
                status.limit_remaining = min(verdict.remaining, MOST_REMAINING)
                seconds = verdict.reset_after if verdict.allowed else verdict.retry_after or verdict.reset_after
                status.duration_until_reset.CopyFrom(duration(seconds))
                set_current_limit(status, verdict)
            statuses.append(status)
            verdicts.append(verdict)
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        response = Response(overall_code=OVER if refused else OK, statuses=statuses)
        verdict = (refused or verdicts)[0]
        for name, value in verdict.headers:
            response.response_headers_to_add.append(header(name.decode(), value.decode("latin-1")))
        response.raw_body = verdict.body  # Envoy sends it with a refusal only
        return response


def open_limits(decider: Decider, options: Options) -> RateLimits:
    """The limits for a listener; they follow their file."""
    config = options.envoy_config
    limits = RateLimits(decider, None if config is None else load(config), options.envoy, config)
    decider.reload_hooks.append(limits.reload)
    decider.tick_hooks.append(limits.look_for_changes)
    return limits


def limit_message(rate: Rate) -> Any:
    return Response.RateLimit(requests_per_unit=rate.count, unit=UNITS[rate.unit], name=rate.name)


def status_of(check: DescriptorCheck) -> Any:
    rate, outcome = check.rate, check.outcome
    if rate is None:
        return Status(code=OK)
    if rate.is_unlimited:
        return Status(code=OK, limit_remaining=MOST_REMAINING)
    if outcome is None:
        return Status(code=OK, current_limit=limit_message(rate))
    status = Status(
        code=OVER if check.is_refused else OK,
        current_limit=limit_message(rate),
        limit_remaining=min(outcome.remaining, MOST_REMAINING),
    )
    is_violated_quota = check.is_quota and outcome.is_over and not check.is_shadow
    if check.kind != CLOSED and not is_violated_quota:
        status.duration_until_reset.CopyFrom(duration(outcome.wait))
    return status


def add_headers(response: Any, checks: list[DescriptorCheck], names: tuple[bytes, ...]) -> None:
    """Add the headers of the refusal that waits longest, or else of the scarcest limit."""
    outcomes = [(check.is_refused, check.outcome) for check in checks if check.outcome is not None]
    over = any(is_refused for is_refused, _ in outcomes)
    limited = [outcome for is_refused, outcome in outcomes if outcome.capacity and (is_refused or not over)]
    if not limited:
        return
    if over:
        chosen = max(limited, key=lambda outcome: outcome.wait)
        if chosen.retry is not None:
            seconds = max(1, -int(-chosen.retry // 1))
            response.response_headers_to_add.append(header("retry-after", str(seconds)))
    else:
        chosen = min(limited, key=lambda outcome: outcome.remaining / outcome.capacity)
    reset = chosen.wait if over else chosen.reset
    if names:
        for name, value in zip(names, (chosen.capacity, chosen.remaining, -int(-reset // 1)), strict=True):
            response.response_headers_to_add.append(header(name.decode(), str(value)))


def metadata_of(request: Any, checks: list[DescriptorCheck]) -> dict[str, Any]:
    """What Envoy's other filters may read: what was asked, and which limits in quota mode are used up."""
    descriptors = []
    for descriptor in request.descriptors:
        fields: dict[str, Any] = {"entries": [f"{entry.key}={entry.value}" for entry in descriptor.entries]}
        if descriptor.HasField("limit"):
            count, unit = descriptor.limit.requests_per_unit, OVERRIDE_UNITS[descriptor.limit.unit].upper()
            fields["limit"] = (f"requests_per_unit:{count} " if count else "") + f"unit:{unit}"
        if descriptor.HasField("hits_addend"):
            fields["hitsAddend"] = descriptor.hits_addend.value
        descriptors.append(fields)
    metadata: dict[str, Any] = {"domain": request.domain, "descriptors": descriptors}
    if request.hits_addend:
        metadata["hitsAddend"] = request.hits_addend
    violations = [
        number for number, check in enumerate(checks)
        if check.is_quota and not check.is_shadow and check.outcome is not None and check.outcome.is_over
    ]  # fmt: skip
    if violations:
        metadata["quotaModeViolations"] = violations
    metadata["quotaModeEnabled"] = any(
        check.rate is not None and check.rate.is_quota and not check.rate.is_unlimited for check in checks
    )
    return metadata


def entries_of(descriptor: Any) -> list[Entry]:
    entries = [(entry.key, entry.value) for entry in descriptor.entries]
    if not entries or not all(key for key, _ in entries):
        raise InvalidInput("descriptor: expected at least one entry, each with a key.")
    return entries


def hits(request: Any, descriptor: Any) -> int:
    """The cost of a descriptor: its own addend, where 0 only looks, else that of the request, where 0 means 1.

    An addend above every limit stays above it: an error would make Envoy let the request pass.
    """
    if descriptor.HasField("hits_addend"):
        return min(int(descriptor.hits_addend.value), UNLIMITED)
    return int(request.hits_addend) or 1


def is_negative(descriptor: Any) -> bool:
    """Whether its hits are to be given back."""
    known = getattr(descriptor, "is_negative_hits", None)
    if known is not None:
        return bool(known)
    return any(field.field_number == NEGATIVE_HITS and bool(field.data) for field in UnknownFieldSet(descriptor))


def request_of(entries: Sequence[Entry]) -> Request:
    """The request that a descriptor describes."""
    parts = {key: value for key, value in entries if key in REQUEST_KEYS}
    headers = [(key[7:], value) for key, value in entries if key.startswith("header.")]
    facts = {key: value for key, value in entries if key not in REQUEST_KEYS and not key.startswith("header.")}
    return Request(
        parts.get("method", "GET"), parts.get("path", "/"), parts.get("remote_address"), headers,
        host=parts.get("host"), facts=facts or None,
    )  # fmt: skip


def set_current_limit(status: Any, verdict: HttpVerdict) -> None:
    """Put the binding limit into a status, if Envoy has a unit for its period."""
    label, _ = binding(verdict.limits)
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 604_800)):
        if label.seconds == seconds:
            status.current_limit.unit = UNITS[unit]
            status.current_limit.requests_per_unit = min(label.count, 2**32 - 1)
            status.current_limit.name = label.name


def wait_of(decision: Decision) -> float:
    return decision.reset_after if decision.retry_after is None else decision.retry_after


def header(name: str, value: str) -> Any:
    return base_pb2.HeaderValue(key=name, value=value)


def duration(seconds: float) -> Any:
    micros = round(seconds * SECOND)
    return duration_pb2.Duration(seconds=micros // SECOND, nanos=micros % SECOND * 1000)

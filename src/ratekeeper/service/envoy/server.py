"""The gRPC listener: Envoy's Rate Limit Service, version 3, with health checks and reflection.

With ``--envoy-config`` the limits of that file apply.  All limits of a request are decided together, all or nothing:
a refused request takes nothing from any of them.  Without that file a descriptor describes a request for the rules:
``remote_address``, ``method``, ``path``, ``host`` and ``header.NAME`` are what they say, and every other key is a fact
(``app:KEY``).  Statuses come in the order of the descriptors.
"""

from __future__ import annotations

import logging
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable
from ratekeeper.http.headers import binding
from ratekeeper.identity.request import Request
from ratekeeper.keys import encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.service.envoy import answer
from ratekeeper.service.envoy.answer import MOST_REMAINING
from ratekeeper.service.envoy.config import Rate, limit_of, load
from ratekeeper.service.table_budget import NoRoom
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ratekeeper.decision import Decision
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.counters import RuleCounts
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.envoy.config import Descriptors
    from ratekeeper.service.options import Options
    from ratekeeper.service.tls import Certificates

    Entry = tuple[str, str]

log = logging.getLogger("ratekeeper")
Response = rls_pb2.RateLimitResponse
Status = Response.DescriptorStatus
OK, OVER = Response.OK, Response.OVER_LIMIT
NAME = "envoy.service.ratelimit.v3.RateLimitService"
UNITS = {"second": 1, "minute": 2, "hour": 3, "day": 4, "month": 5, "year": 6, "week": 7}
OVERRIDE_UNITS = {number: unit for unit, number in UNITS.items()}
REQUEST_KEYS = ("remote_address", "method", "path", "host")
MOST_DESCRIPTORS = 100
MOST_QUESTIONS = 4096  # cached ones
LONGEST_QUESTION = 512  # bytes


class DescriptorCheck:
    """One descriptor: its limit if it has one, and its cost."""

    __slots__ = ("check", "cost", "rate")

    def __init__(self, rate: Rate | None, check: Check | None, cost: int) -> None:
        self.rate = rate
        self.check = check
        self.cost = cost


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

    def __init__(self, decider: Decider, descriptors: Descriptors | None) -> None:
        self.decider = decider
        self.descriptors = descriptors
        self.override_limits: dict[tuple[int, int], Any] = {}
        self.questions: dict[bytes, CachedQuestion] = {}
        decider.caches.append(self.questions)
        decider.retired.users.append(self.by_place)

    def by_place(self) -> dict[tuple[str, str], Any]:
        """Every space that descriptors count in, with its layout, and its limit there."""
        rates = self.descriptors.rates if self.descriptors is not None else ()
        return {(rate.path, rate.limit.layout): rate.limit for rate in rates if rate.limit is not None}

    async def answer(self, raw: bytes, context: Any) -> bytes:
        """RateLimitService.ShouldRateLimit."""
        try:
            return await self.decided(raw, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            self.decider.faults.note("grpc", error)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
            raise

    async def decided(self, raw: bytes, context: Any) -> bytes:
        """The response to a request, as bytes."""
        calls = self.decider.counters.calls
        calls["grpc"] = calls.get("grpc", 0) + 1
        question = self.questions.get(raw)
        if question is not None and not self.decider.overrides.is_killed:
            decision = question.table.check_now(question.key, question.cost)
            if decision is None:
                decision = await question.table.check(question.key, question.cost)
            if decision.reason:
                try:
                    self.decider.note_fallback(decision)
                except StoreUnavailable as error:
                    return await unavailable(context, error)
            question.counts.count(decision.allowed, decision.remaining / decision.limit)
            if decision.allowed:
                return answer.response(question.current, decision, decision.reset_after, None)
            self.decider.note_refused(question.key)
            return answer.response(question.current, decision, wait_of(decision), decision.retry_after)
        try:
            request = rls_pb2.RateLimitRequest.FromString(raw)
        except DecodeError:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a RateLimitRequest.")
        response = await self.should_rate_limit(request, context)
        self.remember(raw, request)
        return response.SerializeToString()

    def remember(self, raw: bytes, request: Any) -> None:
        """Cache a request that has one descriptor with one enforced limit."""
        if self.descriptors is None or len(request.descriptors) != 1 or len(raw) > LONGEST_QUESTION:
            return
        descriptor = request.descriptors[0]
        match, cost = self.descriptors.find(request.domain, entries_of(descriptor)), hits(request, descriptor)
        if match is None or descriptor.HasField("limit") or not cost:
            return
        rate, key = match
        if rate.limit is None or rate.is_shadow or (rate.name and rate.name in rate.replaces):
            return
        if len(self.questions) >= MOST_QUESTIONS:
            self.questions.clear()
        table = self.decider.policy.async_store.table(rate.path, rate.limit)
        self.questions[raw] = CachedQuestion(rate, key, cost, table, self.decider.counters.of(rate.path))

    async def should_rate_limit(self, request: Any, context: Any) -> Any:
        try:
            if not request.domain:
                raise InvalidInput("domain: expected text, got nothing. Set it in the Envoy filter.")
            if not 0 < len(request.descriptors) <= MOST_DESCRIPTORS:
                raise InvalidInput(f"descriptors: expected 1 to {MOST_DESCRIPTORS} of them.")
            if self.descriptors is not None:
                return await self.by_descriptors(request)
            return await self.by_rules(request)
        except StoreUnavailable as error:
            return await unavailable(context, error)
        except NoRoom as error:  # Envoy's failure_mode_deny decides whether the request passes
            return await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        except RatekeeperError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    # By a configuration of envoyproxy/ratelimit.

    async def by_descriptors(self, request: Any) -> Any:
        checks = [self.check_of(request, descriptor) for descriptor in request.descriptors]
        replaced = {name for check in checks if check.rate is not None for name in check.rate.replaces}
        for check in checks:
            if check.rate is not None and check.rate.name and check.rate.name in replaced:
                check.rate = check.check = None
        decisions = await self.decide(checks)
        statuses = [self.status(check, decisions.get(number)) for number, check in enumerate(checks)]
        counters = self.decider.counters
        for check in checks:
            if check.rate is not None and check.check is None and not check.rate.is_unlimited:
                counters.bump(check.rate.path, "shadow_refused" if check.rate.is_shadow else "refused")
        return response_of(statuses, [decisions.get(number) for number in range(len(checks))])

    def check_of(self, request: Any, descriptor: Any) -> DescriptorCheck:
        entries = entries_of(descriptor)
        cost = hits(request, descriptor)
        match = self.descriptors.find(request.domain, entries) if self.descriptors is not None else None
        if descriptor.HasField("limit"):
            match = self.override(request.domain, entries, descriptor.limit, match)
        if match is None:
            return DescriptorCheck(None, None, cost)
        rate, key = match
        if rate.limit is None:
            return DescriptorCheck(rate, None, cost)
        return DescriptorCheck(rate, Check(rate.path, encode(key), rate.limit, cost or 1), cost)

    def override(self, domain: str, entries: Sequence[Entry], limit: Any, match: Any) -> tuple[Rate, tuple[Any, ...]]:
        """The limit that Envoy sends with a descriptor, in place of the configured one."""
        place = limit.requests_per_unit, limit.unit
        unit = OVERRIDE_UNITS.get(limit.unit)
        if unit is None:
            raise InvalidInput("limit: expected a unit from SECOND to WEEK, got an unknown one.")
        if place not in self.override_limits:
            if len(self.override_limits) >= self.decider.options.bounds.names:
                self.override_limits.clear()
            self.override_limits[place] = limit_of(limit.requests_per_unit, unit)
        parsed = self.override_limits[place]
        rate, key = match if match is not None else (None, (domain, *[part for entry in entries for part in entry]))
        path = rate.path if rate is not None else f"{domain}.override"
        shadow = rate is not None and rate.is_shadow
        count = limit.requests_per_unit
        if parsed is not None:
            self.decider.limits.share(path, parsed)
        return Rate(path, parsed, unit=unit, count=count, is_shadow=shadow), key

    async def decide(self, checks: list[DescriptorCheck]) -> dict[int, Decision]:
        """The decisions by number: enforced limits all or nothing, then each limit in shadow mode by itself."""
        decisions: dict[int, Decision] = {}
        killed = self.decider.overrides.is_killed
        closed = any(
            check.rate is not None
            and check.rate.limit is None
            and not check.rate.is_unlimited
            and not check.rate.is_shadow
            for check in checks
        )
        limited = [(number, check) for number, check in enumerate(checks) if check.rate and check.check]
        enforced = [(number, check) for number, check in limited if not check.rate.is_shadow]  # type: ignore[union-attr]
        peeks = [(number, check) for number, check in enforced if not check.cost]
        takes = [(number, check) for number, check in enforced if check.cost]
        for group in (peeks, takes):
            if group:
                refused = closed or not all(decision.allowed for decision in decisions.values())
                operation = "peek" if group is peeks or refused or killed else "check"
                decisions |= await self.ask(operation, group)
        if not killed and not closed and all(decision.allowed for decision in decisions.values()):
            for number, check in limited:
                if check.rate.is_shadow:  # type: ignore[union-attr]
                    decisions |= await self.ask("check" if check.cost else "peek", [(number, check)])
        return decisions

    async def ask(self, operation: str, group: list[tuple[int, DescriptorCheck]]) -> dict[int, Decision]:
        plan = tuple([check.check for _, check in group if check.check is not None])
        outcome = self.decider.ask(operation, plan)
        decisions = await outcome if hasattr(outcome, "__await__") else outcome
        if operation == "check":
            counters = self.decider.counters
            for (_, check), part, decision in zip(group, plan, decisions, strict=True):
                if check.rate is not None and check.rate.is_shadow and not decision.allowed:
                    counters.of(part.space).count_unenforced(decision, "shadow_refused")
                    continue
                counters.count(part.space, decision)
                if not decision.allowed:
                    self.decider.note_refused(part.key)
        return {number: decision for (number, _), decision in zip(group, decisions, strict=True)}

    def status(self, check: DescriptorCheck, decision: Decision | None) -> Any:
        rate = check.rate
        killed = self.decider.overrides.is_killed
        if rate is None or rate.is_unlimited:
            return Status(code=OK)
        current = limit_message(rate)
        if rate.limit is None:
            return Status(code=OK if rate.is_shadow or killed else OVER, current_limit=current)
        if decision is None:
            return Status(code=OK, current_limit=current)
        over = not decision.allowed and not rate.is_shadow and not killed
        return Status(
            code=OVER if over else OK,
            current_limit=current,
            limit_remaining=min(decision.remaining, MOST_REMAINING),
            duration_until_reset=duration(decision.reset_after if decision.allowed else wait_of(decision)),
        )

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


async def unavailable(context: Any, error: StoreUnavailable) -> Any:
    return await context.abort(grpc.StatusCode.UNAVAILABLE, f"the store does not answer: {error.why}")


def limit_message(rate: Rate) -> Any:
    return Response.RateLimit(requests_per_unit=rate.count, unit=UNITS[rate.unit], name=rate.name)


def entries_of(descriptor: Any) -> list[Entry]:
    entries = [(entry.key, entry.value) for entry in descriptor.entries]
    if not entries or not all(key for key, _ in entries):
        raise InvalidInput("descriptor: expected at least one entry, each with a key.")
    return entries


def hits(request: Any, descriptor: Any) -> int:
    """The cost of a descriptor: its own addend, where 0 only peeks, else that of the request, where 0 means 1.

    An addend above every limit stays above it: an error would make Envoy let the request pass.
    """
    if descriptor.HasField("hits_addend"):
        return min(int(descriptor.hits_addend.value), UNLIMITED)
    return int(request.hits_addend) or 1


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


def response_of(statuses: list[Any], decisions: list[Decision | None]) -> Any:
    """The response, with the headers of the refusal that waits longest, or else of the scarcest limit."""
    over = any(status.code == OVER for status in statuses)
    response = Response(overall_code=OVER if over else OK, statuses=statuses)
    limited = [
        decision for status, decision in zip(statuses, decisions, strict=True)
        if decision is not None and (status.code == OVER or not over)
    ]  # fmt: skip
    if not limited:
        return response
    headers = response.response_headers_to_add
    if over:
        decision = max(limited, key=wait_of)
        if decision.retry_after is not None:
            headers.append(header("retry-after", str(max(1, -int(-decision.retry_after // 1)))))
    else:
        decision = min(limited, key=lambda decision: decision.remaining / decision.limit)
    reset = wait_of(decision) if over else decision.reset_after
    for name, value in (
        ("x-ratelimit-limit", decision.limit),
        ("x-ratelimit-remaining", decision.remaining),
        ("x-ratelimit-reset", -int(-reset // 1)),
    ):
        headers.append(header(name, str(value)))
    return response


def header(name: str, value: str) -> Any:
    return base_pb2.HeaderValue(key=name, value=value)


def duration(seconds: float) -> Any:
    micros = round(seconds * SECOND)
    return duration_pb2.Duration(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


class EnvoyListener:
    """A gRPC server with this one service."""

    name = "grpc"

    def __init__(
        self, server: Any, checks: Any, limits: RateLimits, config: Path | None, address: tuple[str, int],
        credentials: Credentials | None,
    ) -> None:  # fmt: skip
        self.server = server
        self.credentials: Any = credentials
        self.checks = checks
        self.limits = limits
        self.config = config
        self.address = address

    def reload(self) -> None:
        """Read the configuration again; a file with a mistake raises InvalidRules, and the present limits stay."""
        if self.config is not None:
            self.limits.descriptors = load(self.config)
            self.limits.questions.clear()

    async def fail_health(self) -> None:
        for service in ("", NAME):
            await self.checks.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def renew(self, certificates: Certificates) -> None:
        """Take new connections with other certificates; open connections keep theirs."""
        self.credentials.renewed = certificate_configuration(certificates)

    async def close(self, patience: float) -> None:
        await self.server.stop(patience)


class Credentials:
    """Certificates that gRPC asks for at each handshake."""

    def __init__(self, certificates: Certificates) -> None:
        self.renewed: Any = None  # since the last handshake
        self.is_mutual = certificates.client_ca is not None
        self.server_credentials = grpc.dynamic_ssl_server_credentials(
            certificate_configuration(certificates), self.fetch, require_client_authentication=self.is_mutual
        )

    def fetch(self) -> Any:
        """The configuration if it has changed, else None; gRPC calls this from threads of its own."""
        renewed, self.renewed = self.renewed, None
        return renewed


def certificate_configuration(certificates: Certificates) -> Any:
    return grpc.ssl_server_certificate_configuration([(certificates.key, certificates.chain)], certificates.client_ca)


class TokenCheck(grpc.aio.ServerInterceptor):
    """Requires ``authorization: Bearer TOKEN`` of every call except health checks, which orchestrators make."""

    def __init__(self, token: str) -> None:
        self.token = token.encode()

        async def reject(request: Any, context: Any) -> None:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "expected 'authorization: Bearer TOKEN' with the token."
            )

        self.rejection: Any = grpc.unary_unary_rpc_method_handler(reject)

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if not details.method.startswith(f"/{health.SERVICE_NAME}/"):
            sent = [value for name, value in details.invocation_metadata if name == "authorization"]
            scheme, _, token = str(sent[0]).partition(" ") if len(sent) == 1 else ("", "", "")
            is_known = compare_digest(token.strip().encode("utf-8", "replace"), self.token)
            if scheme.lower() != "bearer" or not is_known:
                return self.rejection
        return await continuation(details)


def add_to_server(limits: RateLimits, server: Any) -> None:
    method: Any = grpc.unary_unary_rpc_method_handler(limits.answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"ShouldRateLimit": method}),))


async def open_envoy(
    decider: Decider, options: Options, address: tuple[str, int], certificates: Certificates | None = None
) -> EnvoyListener:
    """Open the gRPC listener; port 0 takes any free port."""
    descriptors = load(options.envoy_config) if options.envoy_config is not None else None
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(options.workers > 1)),
            ("grpc.max_receive_message_length", options.bounds.body),
            ("grpc.max_metadata_size", options.bounds.head),
            ("grpc.max_concurrent_streams", 1000),
            ("grpc.http2.max_pings_without_data", 2),
            ("grpc.keepalive_time_ms", 60_000),
        ],
        interceptors=() if options.token is None else (TokenCheck(options.token),),
        maximum_concurrent_rpcs=options.bounds.waiting,
    )
    limits = RateLimits(decider, descriptors)
    add_to_server(limits, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for service in ("", NAME):
        await checks.set(service, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = address
    shown_host = f"[{host}]" if ":" in host else host
    credentials = None if certificates is None else Credentials(certificates)
    try:
        if credentials is None:
            port = server.add_insecure_port(f"{shown_host}:{port}")
        else:
            port = server.add_secure_port(f"{shown_host}:{port}", credentials.server_credentials)
    except RuntimeError:  # older versions of grpcio return 0
        port = 0
    if not port:
        raise InvalidInput(
            f"--grpc: expected an address that is free, got '{shown_host}:{address[1]}'. "
            "Choose another port, or end what listens there."
        )
    await server.start()
    listener = EnvoyListener(server, checks, limits, options.envoy_config, (host, port), credentials)
    decider.reload_hooks.append(listener.reload)
    return listener

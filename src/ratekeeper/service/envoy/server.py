"""The gRPC door: Envoy's Rate Limit Service, version 3, with health and reflection.

With ``--envoy-config`` descriptors meet the limits of that file; all limits of a request are decided together, all or
nothing, so that what is refused costs nothing anywhere.  Without it a descriptor describes a request for the rules:
``remote_address``, ``method``, ``path``, ``host`` and ``header.NAME`` are what they say, and every other key is a fact
(``app:KEY``).  Statuses come in the order of the descriptors.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf import duration_pb2
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import InvalidInput, RatekeeperError, StoreUnavailable
from ratekeeper.identity.request import Request
from ratekeeper.keys import encode
from ratekeeper.service.envoy import answer as wire
from ratekeeper.service.envoy.config import Rate, limit_of, load
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from ratekeeper.decision import Decision
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.counters import RuleCounts
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.envoy.config import Descriptors
    from ratekeeper.service.options import Options
    from ratekeeper.stores.fallback import FallbackTable

    Entry = tuple[str, str]

log = logging.getLogger("ratekeeper")
Response = rls_pb2.RateLimitResponse
Status = Response.DescriptorStatus
OK, OVER = Response.OK, Response.OVER_LIMIT
NAME = "envoy.service.ratelimit.v3.RateLimitService"
UNITS = {"second": 1, "minute": 2, "hour": 3, "day": 4, "month": 5, "year": 6, "week": 7}
OVERRIDE_UNITS = {number: unit for unit, number in UNITS.items()}
PLAIN = ("remote_address", "method", "path", "host")
MOST_DESCRIPTORS = 100
MOST_KNOWN = 4096  # questions that are remembered
LONGEST_KNOWN = 512  # bytes


class DescriptorCheck:
    """One descriptor: what it is limited by, and what it takes."""

    __slots__ = ("check", "cost", "rate")

    def __init__(self, rate: Rate | None, check: Check | None, cost: int) -> None:
        self.rate = rate
        self.check = check
        self.cost = cost


class KnownDescriptor:
    """A question that was asked before: one descriptor, one enforced limit.

    ``table`` decides it by its key on a store that cannot block; ``desk`` by the encoded one where a store is away.
    """

    __slots__ = ("cost", "current", "desk", "encoded", "key", "ruled", "table")

    def __init__(
        self, rate: Rate, key: tuple[Any, ...], cost: int, table: Any, desk: FallbackTable | None, ruled: RuleCounts
    ) -> None:
        self.current = wire.counted(b"\x12", limit_message(rate).SerializeToString())
        self.key = key
        self.encoded = encode(key)
        self.cost = cost
        self.table = table
        self.desk = desk
        self.ruled = ruled


class RateLimits:
    """Answers Envoy, in bytes: most questions come again and again, and need not be read twice."""

    def __init__(self, keeper: Decider, descriptors: Descriptors | None) -> None:
        self.keeper = keeper
        self.descriptors = descriptors
        self.limits: dict[tuple[int, int], Any] = {}
        self.known: dict[bytes, KnownDescriptor] = {}
        keeper.caches.append(self.known)
        keeper.shelves.users.append(self.places)

    def places(self) -> Iterator[tuple[str, Any]]:
        """Every space that a descriptor is counted in, and its limit."""
        for rate in self.descriptors.rates if self.descriptors is not None else ():
            if rate.limit is not None:
                yield rate.path, rate.limit

    async def answer(self, raw: bytes, context: Any) -> bytes:
        """RateLimitService.ShouldRateLimit."""
        doors = self.keeper.tally.doors
        doors["grpc"] = doors.get("grpc", 0) + 1
        known = self.known.get(raw)
        if known is not None and not self.keeper.switches.is_killed:
            if known.table is not None:
                decision = known.table.check(known.key, known.cost)
            else:
                decision = self.keeper.stood_in(known.desk, known.encoded, known.cost)
            if decision is not None:
                known.ruled.count(decision)
                if decision.allowed:
                    return wire.answered(known.current, decision, decision.reset_after, None)
                self.keeper.refused(known.key)
                return wire.answered(known.current, decision, wait_of(decision), decision.retry_after)
        try:
            request = rls_pb2.RateLimitRequest.FromString(raw)
        except DecodeError:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a RateLimitRequest.")
        found = await self.should_rate_limit(request, context)
        self.remember(raw, request)
        return found.SerializeToString()

    def remember(self, raw: bytes, request: Any) -> None:
        if self.descriptors is None or len(request.descriptors) != 1 or len(raw) > LONGEST_KNOWN:
            return
        descriptor = request.descriptors[0]
        found, cost = self.descriptors.find(request.domain, entries_of(descriptor)), hits(request, descriptor)
        if found is None or descriptor.HasField("limit") or not cost:
            return
        rate, key = found
        if rate.limit is None or rate.is_shadow or (rate.name and rate.name in rate.replaces):
            return
        table, desk = self.keeper.counting(rate.path, rate.limit)
        if table is None and desk is None:
            return
        if len(self.known) >= MOST_KNOWN:
            self.known.clear()
        self.known[raw] = KnownDescriptor(rate, key, cost, table, desk, self.keeper.tally.of(rate.path))

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
            return await context.abort(grpc.StatusCode.UNAVAILABLE, f"the store does not answer: {error.why}")
        except RatekeeperError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    # By a configuration of envoyproxy/ratelimit.

    async def by_descriptors(self, request: Any) -> Any:
        asked = [self.asked(request, descriptor) for descriptor in request.descriptors]
        replaced = {name for own in asked if own.rate is not None for name in own.rate.replaces}
        for own in asked:
            if own.rate is not None and own.rate.name and own.rate.name in replaced:
                own.rate = own.check = None
        decisions = await self.decide(asked)
        statuses = [self.status(own, decisions.get(number)) for number, own in enumerate(asked)]
        tally = self.keeper.tally
        for own in asked:
            if own.rate is not None and own.check is None and not own.rate.is_unlimited:
                tally.bump(own.rate.path, "shadow_refused" if own.rate.is_shadow else "refused")
        return answered(statuses, [decisions.get(number) for number in range(len(asked))])

    def asked(self, request: Any, descriptor: Any) -> DescriptorCheck:
        entries = entries_of(descriptor)
        cost = hits(request, descriptor)
        found = self.descriptors.find(request.domain, entries) if self.descriptors is not None else None
        if descriptor.HasField("limit"):
            found = self.override(request.domain, entries, descriptor.limit, found)
        if found is None:
            return DescriptorCheck(None, None, cost)
        rate, key = found
        if rate.limit is None:
            return DescriptorCheck(rate, None, cost)
        return DescriptorCheck(rate, Check(rate.path, encode(key), rate.limit, cost or 1), cost)

    def override(self, domain: str, entries: Sequence[Entry], limit: Any, found: Any) -> tuple[Rate, tuple[Any, ...]]:
        """The limit that Envoy sends along, in the place of the configured one."""
        place = limit.requests_per_unit, limit.unit
        unit = OVERRIDE_UNITS.get(limit.unit)
        if unit is None:
            raise InvalidInput("limit: expected a unit from SECOND to WEEK, got an unknown one.")
        if place not in self.limits:
            if len(self.limits) >= self.keeper.options.bounds.names:
                self.limits.clear()
            self.limits[place] = limit_of(limit.requests_per_unit, unit)
        rate, key = found if found is not None else (None, (domain, *[part for entry in entries for part in entry]))
        path = rate.path if rate is not None else f"{domain}.override"
        shadow = rate is not None and rate.is_shadow
        return Rate(path, self.limits[place], unit=unit, count=limit.requests_per_unit, is_shadow=shadow), key

    async def decide(self, asked: list[DescriptorCheck]) -> dict[int, Decision]:
        """The decisions by number: enforced limits all or nothing, then those in shadow, each by itself."""
        found: dict[int, Decision] = {}
        killed = self.keeper.switches.is_killed
        closed = any(
            own.rate is not None and own.rate.limit is None and not own.rate.is_unlimited and not own.rate.is_shadow
            for own in asked
        )
        limited = [(number, own) for number, own in enumerate(asked) if own.check is not None and own.rate is not None]
        enforced = [one for one in limited if not one[1].rate.is_shadow]  # type: ignore[union-attr]
        looks = [one for one in enforced if not one[1].cost]
        takes = [one for one in enforced if one[1].cost]
        for group in (looks, takes):
            if group:
                refused = closed or not all(decision.allowed for decision in found.values())
                operation = "peek" if group is looks or refused or killed else "check"
                found |= await self.ask(operation, group)
        if not killed and not closed and all(decision.allowed for decision in found.values()):
            for one in limited:
                if one[1].rate.is_shadow:  # type: ignore[union-attr]
                    found |= await self.ask("check" if one[1].cost else "peek", [one])
        return found

    async def ask(self, operation: str, group: list[tuple[int, DescriptorCheck]]) -> dict[int, Decision]:
        plan = tuple([own.check for _, own in group if own.check is not None])
        outcome = self.keeper.ask(operation, plan)
        decisions = await outcome if hasattr(outcome, "__await__") else outcome
        if operation == "check":
            for (_, own), check, decision in zip(group, plan, decisions, strict=True):
                if own.rate is not None and own.rate.is_shadow and not decision.allowed:
                    self.keeper.tally.of(check.space).let_pass(decision, "shadow_refused")
                    continue
                self.keeper.tally.count(check.space, decision)
                if not decision.allowed:
                    self.keeper.refused(check.key)
        return {number: decision for (number, _), decision in zip(group, decisions, strict=True)}

    def status(self, own: DescriptorCheck, decision: Decision | None) -> Any:
        rate = own.rate
        killed = self.keeper.switches.is_killed
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
            limit_remaining=min(decision.remaining, 2**32 - 1),
            duration_until_reset=duration(decision.reset_after if decision.allowed else wait_of(decision)),
        )

    # By the rules.

    async def by_rules(self, request: Any) -> Any:
        statuses, verdicts = [], []
        for descriptor in request.descriptors:
            outcome: Any = self.keeper.check(described(entries_of(descriptor)))
            verdict: HttpVerdict = await outcome if hasattr(outcome, "__await__") else outcome
            status = Status(code=OK if verdict.allowed else OVER)
            if verdict.shown:
                status.limit_remaining = min(verdict.remaining, 2**32 - 1)
                seconds = verdict.reset_after if verdict.allowed else verdict.retry_after or verdict.reset_after
                status.duration_until_reset.CopyFrom(duration(seconds))
                limit_of_verdict(status, verdict)
            statuses.append(status)
            verdicts.append(verdict)
        refused = [verdict for verdict in verdicts if not verdict.allowed]
        found = Response(overall_code=OVER if refused else OK, statuses=statuses)
        for name, value in (refused or verdicts)[0].headers:
            if name not in (b"content-type", b"cache-control"):
                found.response_headers_to_add.append(header(name.decode(), value.decode("latin-1")))
        return found


def limit_message(rate: Rate) -> Any:
    return Response.RateLimit(requests_per_unit=rate.count, unit=UNITS[rate.unit], name=rate.name)


def entries_of(descriptor: Any) -> list[Entry]:
    entries = [(entry.key, entry.value) for entry in descriptor.entries]
    if not entries or not all(key for key, _ in entries):
        raise InvalidInput("descriptor: expected at least one entry, each with a key.")
    return entries


def hits(request: Any, descriptor: Any) -> int:
    """What a descriptor takes: its own number, where 0 only looks; else the request's, where 0 means 1."""
    if descriptor.HasField("hits_addend"):
        return whole_cost(descriptor.hits_addend.value, least=0)
    return request.hits_addend or 1


def described(entries: Sequence[Entry]) -> Request:
    plain = {key: value for key, value in entries if key in PLAIN}
    headers = [(key[7:], value) for key, value in entries if key.startswith("header.")]
    facts = {key: value for key, value in entries if key not in PLAIN and not key.startswith("header.")}
    return Request(
        plain.get("method", "GET"), plain.get("path", "/"), plain.get("remote_address"), headers,
        host=plain.get("host"), facts=facts or None,
    )  # fmt: skip


def limit_of_verdict(status: Any, verdict: HttpVerdict) -> None:
    """The binding limit, as far as Envoy's units can say it."""
    from ratekeeper.http.headers import binding

    label, _ = binding(verdict.shown)
    for unit, seconds in (("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400), ("week", 604_800)):
        if label.seconds == seconds:
            status.current_limit.unit = UNITS[unit]
            status.current_limit.requests_per_unit = min(label.count, 2**32 - 1)
            status.current_limit.name = label.name


def wait_of(decision: Decision) -> float:
    return decision.reset_after if decision.retry_after is None else decision.retry_after


def answered(statuses: list[Any], decisions: list[Decision | None]) -> Any:
    over = any(status.code == OVER for status in statuses)
    found = Response(overall_code=OVER if over else OK, statuses=statuses)
    limited = [
        (status, decision) for status, decision in zip(statuses, decisions, strict=True)
        if decision is not None and (status.code == OVER or not over)
    ]  # fmt: skip
    if not limited:
        return found
    if over:
        _, decision = max(limited, key=lambda one: wait_of(one[1]))
        if decision.retry_after is not None:
            found.response_headers_to_add.append(header("retry-after", str(max(1, -int(-decision.retry_after // 1)))))
    else:
        _, decision = min(limited, key=lambda one: one[1].remaining / one[1].limit)
    reset = wait_of(decision) if over else decision.reset_after
    for name, value in (
        ("x-ratelimit-limit", decision.limit),
        ("x-ratelimit-remaining", decision.remaining),
        ("x-ratelimit-reset", -int(-reset // 1)),
    ):
        found.response_headers_to_add.append(header(name, str(value)))
    return found


def header(name: str, value: str) -> Any:
    return base_pb2.HeaderValue(key=name, value=value)


def duration(seconds: float) -> Any:
    micros = round(seconds * SECOND)
    return duration_pb2.Duration(seconds=micros // SECOND, nanos=micros % SECOND * 1000)


class EnvoyListener:
    """A gRPC server with this one service."""

    name = "grpc"

    def __init__(
        self, server: Any, checks: Any, limits: RateLimits, config: Path | None, address: tuple[str, int]
    ) -> None:
        self.server = server
        self.checks = checks
        self.limits = limits
        self.config = config
        self.address = address

    def reload(self) -> None:
        """Read the configuration again; one that cannot be taken raises InvalidRules, and the old one stays."""
        if self.config is not None:
            self.limits.descriptors = load(self.config)
            self.limits.known.clear()

    async def turn_red(self) -> None:
        for service in ("", NAME):
            await self.checks.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def close(self, patience: float) -> None:
        await self.server.stop(patience)


def add_to_server(limits: RateLimits, server: Any) -> None:
    method: Any = grpc.unary_unary_rpc_method_handler(limits.answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, {"ShouldRateLimit": method}),))


async def open_envoy(keeper: Decider, options: Options, address: tuple[str, int]) -> EnvoyListener:
    """Open the gRPC door; port 0 takes any."""
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
        maximum_concurrent_rpcs=options.bounds.waiting,
    )
    limits = RateLimits(keeper, descriptors)
    add_to_server(limits, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    for service in ("", NAME):
        await checks.set(service, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    host, port = address
    place = f"[{host}]" if ":" in host else host
    try:
        port = server.add_insecure_port(f"{place}:{port}")
    except RuntimeError:  # older versions of grpcio return 0
        port = 0
    if not port:
        raise InvalidInput(
            f"--grpc: expected an address that is free, got '{place}:{address[1]}'. "
            "Choose another port, or end what listens there."
        )
    await server.start()
    door = EnvoyListener(server, checks, limits, options.envoy_config, (host, port))
    keeper.files.append(door.reload)
    return door

"""Envoy's messages, and the metadata of gRPC servers: an answer or a refusal, the same in the cache."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from envoy.service.ratelimit.v3 import rls_pb2
from google.protobuf.message import DecodeError

from fuzz.choices import Choices
from ratekeeper.outbound.response_limits import read_grpc
from ratekeeper.protobuf import read_fields, write_bytes, write_number
from ratekeeper.rules.policy import Policy
from ratekeeper.service.decider import Decider
from ratekeeper.service.envoy.config import Descriptors
from ratekeeper.service.envoy.rate_limits import INTERNAL, INVALID_ARGUMENT, RateLimits
from ratekeeper.service.http2_listener import CallFailed
from ratekeeper.service.options import Bounds, EnvoyOptions, Options
from ratekeeper.testing import FakeClock

BOUNDS = Bounds(names=16, tables=8_000_000)
RULES: dict[str, Any] = {
    "rules": [{"name": "all", "by": ["app:user", "ip"], "limit": "5/minute"}],
    "store": "memory://?max_keys=300",
}
CONFIG: dict[str, Any] = {
    "domain": "d",
    "descriptors": [
        {"key": "k", "rate_limit": {"unit": "minute", "requests_per_unit": 3}},
        {"key": "k", "value": "v", "rate_limit": {"unlimited": True}},
        {"key": "a", "descriptors": [{"key": "b", "rate_limit": {"unit": "hour", "requests_per_unit": 9}}]},
    ],
}


def descriptors() -> Descriptors:
    parsed = Descriptors()
    parsed.add(CONFIG, "limits.yaml")
    return parsed


async def ask(limits: RateLimits, raw: bytes) -> Any:
    try:
        return rls_pb2.RateLimitResponse.FromString(await limits.answer(raw))
    except CallFailed as error:
        code = error.code
    assert code != INTERNAL, "a request failed"
    return code


async def run(data: bytes) -> None:
    choices = Choices(data)
    choice = choices.number()
    has_config, is_compat = choice % 2, bool(choice // 2 % 2)
    raw = choices.rest()
    decider = Decider(Policy.parse(RULES, clock=FakeClock()), Options(bounds=BOUNDS))
    limits = RateLimits(decider, descriptors() if has_config else None, EnvoyOptions(compat=is_compat))
    first = await ask(limits, raw)
    for _ in range(3):
        again = await ask(limits, raw)
        assert type(again) is type(first), (first, again)
        if isinstance(first, rls_pb2.RateLimitResponse):
            assert len(again.statuses) == len(first.statuses)
            assert again.overall_code >= first.overall_code, "refused, then admitted, while no time passes"
    assert not sum(decider.counters.faults.values())
    decider.policy.close()
    try:
        parsed = rls_pb2.RateLimitRequest.FromString(raw)
    except DecodeError:
        assert first == INVALID_ARGUMENT
    else:
        written = write_bytes(1, parsed.domain.encode()) + write_number(3, parsed.hits_addend)
        assert dict(read_fields(written)) == {1: parsed.domain.encode()} | (
            {3: parsed.hits_addend} if parsed.hits_addend else {}
        )
    with suppress(ValueError):
        read_fields(raw)
    waits = read_grpc([("grpc-status-details-bin", raw)])
    assert waits.wait is None or waits.wait >= 0


def check(data: bytes) -> None:
    asyncio.run(run(data))

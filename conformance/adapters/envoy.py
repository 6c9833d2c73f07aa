"""Envoy's rate limit service (RLS v3) over gRPC.  The messages are small, and are written and read here by hand.

The server is started with the configuration that ``write_config`` writes, in the form of envoyproxy/ratelimit: the
domain ``conformance``; a descriptor ``limit`` with a value such as ``5_per_second``; in it a descriptor ``key``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from conformance.adapters.server import ServerSession
from conformance.limits import SECOND, Answer, Limit

UNITS = {1: "second", 60: "minute", 3600: "hour", 86_400: "day"}
COUNTS = (1, 2, 3, 4, 5, 10, 20, 100)
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OVER_LIMIT = 2


def write_config(path: Path) -> None:
    lines = ["domain: conformance", "descriptors:"]
    for unit in UNITS.values():
        for count in COUNTS:
            lines += [
                "  - key: limit",
                f"    value: {count}_per_{unit}",
                "    descriptors:",
                "      - key: key",
                "        rate_limit:",
                f"          unit: {unit}",
                f"          requests_per_unit: {count}",
            ]
    path.write_text("\n".join(lines) + "\n")


def number(value: int) -> bytes:
    """A varint."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)


def text(place: int, value: bytes) -> bytes:
    """A field of bytes."""
    return number(place << 3 | 2) + number(len(value)) + value


def request_of(limit: Limit, limiter: str, key: str, cost: int) -> bytes:
    entries = [("limit", f"{limit.count}_per_{UNITS[limit.period // SECOND]}"), ("key", f"{limiter}:{key}")]
    descriptor = b"".join(text(1, text(1, name.encode()) + text(2, value.encode())) for name, value in entries)
    return text(1, b"conformance") + text(2, descriptor) + number(3 << 3) + number(cost)


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Each field of a message: its number, and a number or bytes."""
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        tag = read()
        if tag & 7 == 0:
            yield tag >> 3, read()
        else:
            size = read() if tag & 7 == 2 else {1: 8, 5: 4}[tag & 7]
            yield tag >> 3, message[at : at + size]
            at += size


class EnvoySession(ServerSession):
    def connect(self) -> Any:
        import grpc

        return grpc.insecure_channel(f"127.0.0.1:{self.port}")

    def call(self, connection: Any, limiter: str, key: str, cost: int) -> Answer:
        import grpc

        if cost < 0:
            return Answer(False, error="hits_addend is an unsigned number")
        try:
            ask = connection.unary_unary(METHOD)
            reply = ask(request_of(self.limits[limiter][0], limiter, key, cost), timeout=30)
        except grpc.RpcError as error:
            return Answer(False, error=str(error.code()))
        code, remaining = 0, 0  # a field that is 0 is left out
        for place, value in fields_of(reply):
            if place == 1:
                code = value
            elif place == 2:
                remaining = dict(fields_of(value)).get(3, 0)
        return Answer(code != OVER_LIMIT, remaining)

"""A verdict as gRPC sends it: a code, the RateLimit headers, and a google.rpc.Status that says when to try again.

Four small messages need no library: Status { code = 1, message = 2, details = 3 }, Any { type_url = 1, value = 2 },
RetryInfo { retry_delay = 1 }, Duration { seconds = 1, nanos = 2 }.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from ratekeeper.adapters import framework

with framework(__name__):
    import grpc

from ratekeeper.protobuf import write_bytes, write_number
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from ratekeeper.http.verdict import HttpVerdict

    Trailers = tuple[tuple[str, str | bytes], ...]

CODES = {
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
    403: grpc.StatusCode.PERMISSION_DENIED,
    400: grpc.StatusCode.INVALID_ARGUMENT,
}
SENT = (b"ratelimit", b"x-ratelimit", b"retry-after")
RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


def trailers(verdict: HttpVerdict) -> Trailers:
    return tuple([(name.decode(), value.decode("latin-1")) for name, value in verdict.headers if name.startswith(SENT)])


def refusal_trailers(verdict: HttpVerdict, message: str) -> Trailers:
    """``trailers``, and when gRPC's own retries may try again; -1: never."""
    after = verdict.wait if verdict.response.jitter else verdict.retry_after
    micros = None if after is None else ceil(after * SECOND) or 1
    pushback = "-1" if micros is None else str(-(-micros // 1000))
    details = status_of(CODES[verdict.status].value[0], message, micros)
    return (*trailers(verdict), ("grpc-retry-pushback-ms", pushback), ("grpc-status-details-bin", details))


def status_of(code: int, message: str, micros: int | None) -> bytes:
    """Encode a status, with a RetryInfo of ``micros`` unless that is None."""
    details = b""
    if micros is not None:
        seconds, rest = divmod(micros, SECOND)
        duration = write_number(1, seconds) + write_number(2, rest * 1000)
        details = write_bytes(3, write_bytes(1, RETRY_INFO) + write_bytes(2, write_bytes(1, duration)))
    return write_number(1, code) + write_bytes(2, message.encode()) + details

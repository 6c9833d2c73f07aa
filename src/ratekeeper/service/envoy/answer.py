"""A RateLimitResponse as bytes, for the most frequent case: one descriptor, one limit.

The bytes are those that protobuf writes, without creating its objects.  Field numbers are those of rls.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.protobuf import write_varint
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from ratekeeper.decision import Decision

OK, OVER = 1, 2  # RateLimitResponse.Code
MOST_REMAINING = 2**32 - 1
HEADERS: dict[str, tuple[bytes, ...]] = {  # by style: the names of limit, remaining and seconds until the reset
    "x-ratelimit": (b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"),
    "ratelimit": (b"RateLimit-Limit", b"RateLimit-Remaining", b"RateLimit-Reset"),
    "off": (),
}


def length_delimited(tag: bytes, inner: bytes) -> bytes:
    return b"%b%b%b" % (tag, write_varint(len(inner)), inner)


def header(name: bytes, value: int) -> bytes:
    text = b"%d" % value
    return b"\x1a%c\x0a%c%b\x12%c%b" % (len(name) + len(text) + 4, len(name), name, len(text), text)


def response(current: bytes, decision: Decision, reset: float, retry: float | None, names: tuple[bytes, ...]) -> bytes:
    """The response for one descriptor; ``current`` is its serialized limit, ``reset`` and ``retry`` are seconds.

    ``names`` are those of its headers.
    """
    code = OK if decision.allowed else OVER
    micros = round(reset * SECOND)
    seconds, nanos = micros // SECOND, micros % SECOND * 1000
    duration = (b"\x08" + write_varint(seconds) if seconds else b"") + (b"\x10" + write_varint(nanos) if nanos else b"")
    remaining = decision.remaining
    status = b"\x08%c%b%b%b" % (
        code,
        current,
        b"\x18" + write_varint(min(remaining, MOST_REMAINING)) if remaining else b"",
        length_delimited(b"\x22", duration),
    )
    parts = [b"\x08%c" % code, length_delimited(b"\x12", status)]
    if code == OVER and retry is not None:
        parts.append(header(b"retry-after", max(1, -int(-retry // 1))))
    if names:
        limit, left, seconds_left = names
        parts += [
            header(limit, decision.limit),
            header(left, remaining),
            header(seconds_left, -int(-reset // 1)),
        ]
    return b"".join(parts)

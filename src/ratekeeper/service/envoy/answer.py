"""A RateLimitResponse as bytes, for the answer that is given most: one descriptor, one limit.

What protobuf's own objects would write, to the byte, without making any: field numbers are those of rls.proto.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.protobuf import write_varint
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from ratekeeper.decision import Decision

OK, OVER = 1, 2  # RateLimitResponse.Code
MOST_REMAINING = 2**32 - 1


def counted(tag: bytes, inner: bytes) -> bytes:
    return b"%b%b%b" % (tag, write_varint(len(inner)), inner)


def header(name: bytes, value: int) -> bytes:
    text = b"%d" % value
    return b"\x1a%c\x0a%c%b\x12%c%b" % (len(name) + len(text) + 4, len(name), name, len(text), text)


def answered(current: bytes, decision: Decision, reset: float, retry: float | None) -> bytes:
    """The answer to one descriptor under ``current``, its serialized limit; ``reset`` and ``retry`` in seconds."""
    code = OK if decision.allowed else OVER
    micros = round(reset * SECOND)
    seconds, nanos = micros // SECOND, micros % SECOND * 1000
    duration = (b"\x08" + write_varint(seconds) if seconds else b"") + (b"\x10" + write_varint(nanos) if nanos else b"")
    left = decision.remaining
    status = b"\x08%c%b%b%b" % (
        code,
        current,
        b"\x18" + write_varint(min(left, MOST_REMAINING)) if left else b"",
        counted(b"\x22", duration),
    )
    parts = [b"\x08%c" % code, counted(b"\x12", status)]
    if code == OVER and retry is not None:
        parts.append(header(b"retry-after", max(1, -int(-retry // 1))))
    parts += [
        header(b"x-ratelimit-limit", decision.limit),
        header(b"x-ratelimit-remaining", left),
        header(b"x-ratelimit-reset", -int(-reset // 1)),
    ]
    return b"".join(parts)

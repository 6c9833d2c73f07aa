"""``throttle_bytes``: limit the bytes per second of a stream.

>>> from ratekeeper.outbound import throttle_bytes
>>> from ratekeeper.testing import FakeClock
>>> clock = FakeClock()
>>> sum(len(piece) for piece in throttle_bytes([bytes(2_500_000)], "1 MB/s", clock=clock)), clock.now
(2500000, 2.4)

Chunks are cut to at most a tenth of a second's bytes; the first such piece passes without a wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ratekeeper.errors import InvalidLimit, did_you_mean, shown
from ratekeeper.limit import MOST, Limit
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.outbound.limits import expect_rate
from ratekeeper.outbound.outage import open_outbound
from ratekeeper.units import take_period

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

    from ratekeeper.clock import Clock
    from ratekeeper.keys import Key
    from ratekeeper.stores.protocol import Store

SIZES = {"b": 1, "byte": 1, "bytes": 1}
SIZES |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
SIZES |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
PIECES_PER_SECOND = 10


@overload
def throttle_bytes(
    chunks: Iterable[bytes],
    rate: str | Limit,
    *,
    key: Key = ...,
    store: str | Store = ...,
    name: str | None = ...,
    clock: Clock | None = ...,
) -> Iterator[bytes]: ...
@overload
def throttle_bytes(
    chunks: AsyncIterable[bytes],
    rate: str | Limit,
    *,
    key: Key = ...,
    store: str | Store = ...,
    name: str | None = ...,
    clock: Clock | None = ...,
) -> AsyncIterator[bytes]: ...
def throttle_bytes(
    chunks: Any,
    rate: str | Limit,
    *,
    key: Key = "all",
    store: str | Store = "memory://",
    name: str | None = None,
    clock: Clock | None = None,
) -> Any:
    """Yield ``chunks`` at ``rate``, such as ``"1 MB/s"``; async chunks give an async iterator.

    Streams with the same ``store``, ``name`` and ``key`` share the rate, also across processes.  While the store does
    not answer, they wait for it.
    """
    limit = rate if isinstance(rate, Limit) else parse_byte_rate(rate)
    expect_rate("rate", limit)
    name = name or f"bytes {limit}"
    is_async = hasattr(chunks, "__aiter__")
    opened: Any = store
    if isinstance(store, str) and not store.startswith("memory:"):
        opened, clock = open_outbound(store, clock, is_async), None
    if is_async:
        return athrottled(chunks, AsyncLimiter(limit, store=opened, name=name, clock=clock), key, limit.burst)
    return throttled(chunks, Limiter(limit, store=opened, name=name, clock=clock), key, limit.burst)


def throttled(chunks: Iterable[bytes], limiter: Limiter, key: Key, size: int) -> Iterator[bytes]:
    for chunk in chunks:
        for piece in cut(chunk, size):
            limiter.acquire(key, len(piece))
            yield piece


async def athrottled(chunks: AsyncIterable[bytes], limiter: AsyncLimiter, key: Key, size: int) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for piece in cut(chunk, size):
            await limiter.acquire(key, len(piece))
            yield piece


def cut(chunk: bytes, size: int) -> Iterator[bytes]:
    if len(chunk) <= size:
        return iter([chunk] if chunk else [])
    return (chunk[start : start + size] for start in range(0, len(chunk), size))


def parse_byte_rate(text: str) -> Limit:
    """Parse ``"1 MB/s"``, ``"512 KiB per second"`` or ``"1.5 GB/hour"`` as a limit on bytes."""
    place = f"rate {shown(text)}"
    if not isinstance(text, str):
        raise InvalidLimit(f"{place}: expected bytes and a time, such as '1 MB/s', got {shown(text)}.")
    size, slash, period = text.replace(" per ", "/").partition("/")
    digits = size.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = size.strip()[len(digits) :].strip().lower()
    whole, _, fraction = digits.replace("_", "").replace(",", "").partition(".")
    if not slash or not (whole + fraction).isdecimal() or not (whole + fraction).isascii() or len(digits) > 20:
        raise InvalidLimit(f"{place}: expected bytes and a time, such as '1 MB/s', got {shown(text)}.")
    if unit not in SIZES:
        advice = did_you_mean(unit, SIZES)
        raise InvalidLimit(f"{place}: expected B, kB, MB, GB, KiB, MiB or GiB, got {shown(unit)}.{advice}")
    micros, rest = take_period(period.lower().split(), place)
    if rest:
        raise InvalidLimit(f"{place}: expected nothing after the time, got {shown(' '.join(rest))}.")
    count = int(whole + fraction) * SIZES[unit] // 10 ** len(fraction)
    burst = min(MOST, max(1, count * 1_000_000 // micros // PIECES_PER_SECOND))
    return Limit(count, micros / 1_000_000, burst=burst)

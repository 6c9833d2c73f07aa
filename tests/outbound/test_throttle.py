"""Streams at so many bytes a second."""

import asyncio
import doctest
import sys

import pytest

from ratekeeper.errors import InvalidLimit, InvalidStore
from ratekeeper.outbound import throttle_bytes
from ratekeeper.outbound.throttle import parse_byte_rate
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock


def test_the_example_in_the_module_is_true():
    assert doctest.testmod(sys.modules["ratekeeper.outbound.throttle"]).failed == 0


def test_nothing_is_lost_and_no_second_has_more_than_its_share():
    clock = FakeClock()
    chunks = [bytes([number]) * size for number, size in enumerate([1, 70_000, 0, 250_000, 33, 8_000, 1])]
    times, got = [], b""
    for piece in throttle_bytes(iter(chunks), "100 kB/s", clock=clock):
        got += piece
        times.append((clock.now, len(piece)))
    assert got == b"".join(chunks)
    for start, _ in times:
        assert sum(size for at, size in times if start <= at < start + 1) <= 110_000
    assert clock.now == pytest.approx((len(got) - 10_000) / 100_000, abs=0.1)


def test_async_streams_share_a_rate():
    async def main():
        clock = FakeClock()
        store = MemoryStore(clock=clock)

        async def source():
            yield bytes(50_000)

        async def read():
            stream = throttle_bytes(source(), "100 kB/s", store=store)
            return sum([len(piece) async for piece in stream])

        assert await asyncio.gather(read(), read(), read()) == [50_000] * 3
        assert clock.now == pytest.approx(1.4)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("1 MB/s", "1000000/second burst 100000"),
        ("1MiB/s", "1048576/second burst 104857"),
        ("1.5 kB per second", "1500/second burst 150"),
        ("10 B/s", "10/second burst 1"),
        ("3 GB/hour", "3000000000/hour burst 83333"),
    ],
)
def test_rates(text, limit):
    assert str(parse_byte_rate(text)) == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 MB", "rate '1 MB': expected bytes and a time, such as '1 MB/s', got '1 MB'."),
        ("fast/s", "rate 'fast/s': expected bytes and a time, such as '1 MB/s', got 'fast/s'."),
        ("1 MiBi/s", "rate '1 MiBi/s': expected B, kB, MB, GB, KiB, MiB or GiB, got 'mibi'. Did you mean 'mib'?"),
        ("1 MB/s x", "rate '1 MB/s x': expected nothing after the time, got 'x'."),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(InvalidLimit) as caught:
        parse_byte_rate(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["redis://127.0.0.1:9/0", "redis://127.0.0.1:9/0?on_store_error=local"])
def test_a_stream_waits_for_its_store_unless_a_local_share_is_asked_for(text):
    if "local" in text:
        with pytest.raises(InvalidStore, match="expected local_share beside on_store_error=local"):
            throttle_bytes([b"a"], "1 MB/s", store=text)
    else:
        stream = throttle_bytes([b"a"], "1 MB/s", store=text)
        store = stream.gi_frame.f_locals["limiter"].store
        assert (store.settings.deadline, store.fallback.__class__.__name__) == (5.0, "NoFallback")
        store.close()

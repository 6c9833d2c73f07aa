"""Adaptive concurrency settles near the capacity of the server, and releases its places."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.adaptive_concurrency import PHASES, simulate
from ratekeeper.errors import InvalidInput
from ratekeeper.outbound import Adaptive, TooLate
from ratekeeper.outbound.adaptive import PROBE_EVERY, Gradient
from ratekeeper.testing import FakeClock
from tests import tier


@pytest.mark.parametrize("seed", range(tier.steps(4, 2)))
def test_it_settles_near_what_the_server_can_take_and_follows_it(seed):
    rows = simulate(seed)
    for workers, seconds in PHASES:
        settled = [row for row in rows if row.workers == workers][3:]
        assert len(settled) == seconds - 3
        assert sum(row.used for row in settled) / len(settled) > 0.95
        assert max(row.slowness for row in settled) < 2.0
        assert workers * 0.9 <= sorted(row.limit for row in settled)[len(settled) // 2] <= workers * 2


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 300), st.booleans()), max_size=200))
def test_the_limit_stays_within_its_bounds(seen):
    gradient = Gradient(5, 2, 50)
    for seconds, in_flight, failed in seen:
        assert 2 <= gradient.observe(seconds, in_flight, failed) <= 50


def test_failures_shrink_it_and_it_grows_only_while_it_is_used():
    gradient = Gradient(100, 1, 1000)
    for _ in range(10):
        gradient.observe(0.1, 100, failed=True)
    assert gradient.limit == int(100 * 0.9**10)
    for _ in range(500):
        gradient.observe(0.1, 3)
    assert gradient.limit == 34
    for _ in range(PROBE_EVERY - 501):
        gradient.observe(0.1, 300)
    grown = gradient.limit
    assert grown > 100
    gradient.observe(0.1, 300)
    assert gradient.limit == grown // 2  # the response time without load is measured again
    while gradient.probing:
        gradient.observe(0.1, 300)
    assert gradient.limit >= 0.85 * grown


def test_threads_and_tasks_share_the_places():
    async def main():
        clock = FakeClock()
        adaptive = Adaptive(start=1, most=3, clock=clock)
        with adaptive.hold():
            with pytest.raises(TooLate) as caught:
                async with adaptive.hold(timeout=0.5):
                    pass
            assert str(caught.value).startswith("adaptive: expected a turn in time, but it comes in ")
            assert str(caught.value).endswith(" s. Pass a longer timeout to hold().")
            assert adaptive.in_flight == 1
        async with adaptive.hold(timeout=0) as hold:
            hold.failed = True
        assert (adaptive.limit, adaptive.in_flight) == (1, 0)
        with pytest.raises(OSError, match="gone"):
            async with adaptive.hold():
                raise OSError("gone")
        task = asyncio.create_task(holding(adaptive))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert adaptive.in_flight == 0
        async with adaptive.hold(timeout=0):
            pass

    asyncio.run(main())


async def holding(adaptive):
    async with adaptive.hold():
        await asyncio.Event().wait()


def test_mistakes_raise_at_once():
    with pytest.raises(InvalidInput) as caught:
        Adaptive(start=5, most=4)
    with pytest.raises(InvalidInput, match="adaptive: expected memory:// or Redis"):
        Adaptive(store="shm://x")
    assert str(caught.value) == "adaptive: expected 1 <= least <= start <= most <= 65,536, got 1, 5, 4."


def test_calls_wait_for_the_store_and_have_no_local_share():
    store = Adaptive(store="redis://127.0.0.1:9/0")._store
    assert (store.settings.deadline, store.fallback.__class__.__name__) == (5.0, "NoFallback")
    store.close()

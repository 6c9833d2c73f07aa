"""Prefetched quota: fewer round trips for a hot key, and never more admitted than the limit promises."""

import asyncio
import itertools
import os
import random

import pytest

from ratekeeper import AsyncLimiter, InvalidStore, Limit, Limiter
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.prefetch import LASTS
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier
from tests.stores.redis.test_refusal_cache import Counted

prefixes = itertools.count()


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


def node(server, clock, prefix):
    return RedisStore(server.url, clock=clock, prefix=prefix, deadline=10)


def most_in_any_interval(admitted, burst, rate):
    """How far the admissions pass ``burst + rate * time`` in their worst interval; at most 0 is within the limit."""
    worst, level, low = 0.0, 0, float("inf")
    for at, cost in admitted:  # the largest of sum(cost) - rate * (t2 - t1) over all pairs
        low = min(low, level - rate * at)
        level += cost
        worst = max(worst, level - rate * at - low)
    return worst - burst


@pytest.mark.parametrize("lease", ["auto", 5, 50])
@pytest.mark.parametrize("text", ["100/second", "50/second burst 200 token_bucket", "1000/minute burst 20"])
@pytest.mark.parametrize("seed", range(tier.steps(3, 2)))
def test_several_nodes_together_keep_the_limit_exactly(redis_server, clock, text, lease, seed):
    chance = random.Random(f"{text} {lease} {seed}")
    prefix = f"lease{next(prefixes)}"
    stores = [node(redis_server, clock, prefix) for _ in range(3)]
    limit = Limit.parse(text)
    nodes = [Limiter(limit, store=store, name="hot", lease=lease) for store in stores]
    admitted = []
    for _ in range(tier.steps(1500, 600)):
        clock.move_to(clock.micros + chance.choice([0, 0, 100, 1_000, chance.randrange(20_000), 300_000 // 3]))
        cost = chance.choice([1, 1, 1, 2, 5])
        if chance.choice(nodes).check("k", cost=cost):
            admitted.append((clock.micros, cost))
    rate = limit.drain / limit.unit
    assert most_in_any_interval(admitted, limit.burst, rate) <= 1e-6
    for store in stores:
        store.close()


def test_a_hot_key_hardly_needs_the_store(redis_server, clock):
    store = node(redis_server, clock, f"lease{next(prefixes)}")
    counted = Counted(store)
    limiter = Limiter("10000/second", store=store, lease="auto")
    allowed = 0
    for _ in range(5000):
        clock.move_to(clock.micros + 200)  # half of what the limit admits
        allowed += limiter.check("k").allowed
    assert allowed == 5000
    assert counted.times < 200
    store.close()


def test_a_window_lease_ends_with_its_window(redis_server, clock):
    prefix = f"lease{next(prefixes)}"
    stores = [node(redis_server, clock, prefix) for _ in range(2)]
    nodes = [Limiter("100/second fixed_window", store=store, name="w", lease=40) for store in stores]
    chance = random.Random(1)
    windows = {}
    for _ in range(3000):
        clock.move_to(clock.micros + chance.choice([0, 1_000, 5_000]))
        if chance.choice(nodes).check("k"):
            window = clock.micros // 1_000_000
            windows[window] = windows.get(window, 0) + 1
    assert max(windows.values()) <= 100
    assert max(windows.values()) > 90
    for store in stores:
        store.close()


def test_what_is_left_comes_back_on_close_and_on_renewal(redis_server, clock):
    prefix = f"lease{next(prefixes)}"
    store, other = node(redis_server, clock, prefix), node(redis_server, clock, prefix)
    limiter = Limiter("1000 per 50 days", store=store, name="r", lease=100)
    seen = Limiter("1000 per 50 days", store=other, name="r")
    assert seen.check("k").remaining == 999
    for _ in range(3):
        limiter.check("k")
    assert seen.peek("k").remaining == 999 - 1 - 101  # one asked alone, then one with a chunk of 100
    limiter.check("k", cost=100)  # more than is left: that comes back, and a new chunk is taken
    assert seen.peek("k").remaining == 999 - 3 - 100 - 100
    clock.move_to(clock.micros + LASTS)
    limiter.check("k")  # too late to give the rest back: it is lost
    assert seen.peek("k").remaining == 999 - 3 - 100 - 100 - 101
    store.close()
    assert seen.peek("k").remaining == 999 - 3 - 100 - 100 - 1
    other.close()


def test_loops_ask_once_for_all_who_wait(redis_server, clock):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"lease{next(prefixes)}", deadline=10)
        limiter = AsyncLimiter("300 per 50 days", store=store, lease=20)
        admitted = 0
        client = redis_server.client()
        await limiter.check("warm")
        client.config_resetstat()
        for _ in range(10):
            answers = await asyncio.gather(*[limiter.check("k") for _ in range(40)])
            admitted += sum(map(bool, answers))
        assert 290 <= admitted <= 300
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] < 120
        await store.close()

    asyncio.run(main())


def test_a_forked_child_serves_none_of_its_parents_leases(redis_server, clock):
    store = node(redis_server, clock, f"lease{next(prefixes)}")
    limiter = Limiter("1000 per 50 days", store=store, lease=100)
    limiter.check("k")
    limiter.check("k")  # holds 100 more
    child = os.fork()
    if not child:
        code = 1
        try:
            held = limiter.check.__self__.quotas.by_key
            code = 0 if not held and limiter.check("k").reason == "" else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert limiter.peek("k").remaining == 1000 - 1 - 101 - 1
    store.close()


def test_mistakes_are_told(redis_server):
    with pytest.raises(InvalidStore) as caught:
        Limiter("5/minute sliding_log", store=redis_server.url, lease="auto")
    assert str(caught.value) == (
        "lease: expected one limit of gcra, token_bucket, fixed_window whose burst takes 20 ms or more to recover, "
        "got '5/minute sliding_log'."
    )
    with pytest.raises(InvalidStore) as caught:
        Limiter("5/minute", store=redis_server.url, lease=1)
    assert str(caught.value) == "limiter: expected lease to be 'auto' or a whole number above 1, got 1."


@pytest.mark.parametrize("key", ["k", "k" * 300, b"k", ("k", 1)], ids=["text", "long", "bytes", "tuple"])
def test_what_is_given_back_goes_to_the_key_it_was_taken_from(redis_server, clock, key):
    prefix = f"lease{next(prefixes)}"
    store, other = node(redis_server, clock, prefix), node(redis_server, clock, prefix)
    leased = Limiter("100/hour fixed_window", store=store, name="n", lease=10)
    assert all(leased.check(key) for _ in range(5))
    store.close()
    assert Limiter("100/hour fixed_window", store=other, name="n").peek(key).remaining == 95
    other.close()


@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
def test_a_prefetched_quota_is_served_without_asking(redis_server, clock, kind):
    async def answered(call, *arguments):
        answer = call(*arguments)
        return await answer if hasattr(answer, "__await__") else answer

    async def main():
        store = kind(redis_server.url, clock=clock, prefix=f"lease{next(prefixes)}", deadline=10)
        table = store.table("hot", Limit.parse("1000/hour fixed_window"), lease=10)
        assert table.check_now("k") is None  # nothing was prefetched yet
        assert await answered(table.check, "k")
        assert await answered(table.check, "k")  # 10 more are debited
        assert [bool(table.check_now(key, cost)) for key, cost in (("k", 4), ("k", 6), ("k", 1))] == [True, True, False]
        (quota,) = table.quotas.by_key.values()
        assert await answered(table.check, "k")
        with quota.lock:  # another thread asks for more
            assert table.check_now("k") is None
        assert table.check_now("k").remaining < 1000
        clock.advance(LASTS / 1e6)
        assert table.check_now("k") is None  # it has ended
        await answered(store.close)

    asyncio.run(main())

"""Leases in Lua and C beside the rule in Python, and on real servers beside a plain set."""

import asyncio
import random

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier
from tests.algorithms.test_concurrency import walk
from tests.twins.test_lua import NOW, random_steps, walk_together

LIMITS = [Limit.parse(text) for text in ("1 concurrent", "5 concurrent for 3 seconds", "300 concurrent for 1 ms")]


@pytest.mark.parametrize("seed", range(tier.steps(3, 2)))
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_lua_twin_agrees_step_by_step(redis_server, limit, seed):
    chance = random.Random(seed)
    steps = random_steps(chance, limit, 400)
    taken = [now for _, now, _, at in steps if at is None]
    steps = [(other, now, cost, at and chance.choice([at, *taken[-5:]])) for other, now, cost, at in steps]
    walk_together(redis_server, limit, steps)


@pytest.mark.parametrize("seed", range(tier.steps(3, 2)))
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_c_twin_agrees_step_by_step(limit, seed):
    chance = random.Random(seed)
    clock = FakeClock()
    pure, fast = MemoryStore(clock=clock), open_store("memory://", clock=clock)
    taken = [NOW]
    for _ in range(300):
        clock.move_to(max(0, clock.micros + chance.choice([0, 1, limit.micros // 7, limit.micros, -limit.micros // 3])))
        check = (Check("s", "k", limit, chance.choice([1, 1, 2, limit.count])),)
        if chance.random() < 0.6:
            ours, theirs = pure.check(check), fast.check(check)
            taken.append(clock.micros)
        else:
            at = chance.choice(taken[-8:])
            ours, theirs = pure.refund(check, at), fast.refund(check, at)
        assert ours == theirs
        assert pure.states(check) == fast.states(check)


@pytest.mark.parametrize("seed", range(2))
def test_a_server_counts_leases_as_a_set_does(any_server, seed):
    clock = FakeClock(start=1000.0)
    store = RedisStore(any_server.url, clock=clock, deadline=10)
    any_server.client().flushall()
    walk(lambda operation, *words: getattr(store, operation)(*words), clock, LIMITS[1], seed, 200)
    store.close()


def test_leases_are_shared_by_a_fleet_and_seen_at_once(redis_server):
    name = f"shared {random.random()}"
    one, two = (Limiter("2 concurrent", store=RedisStore(redis_server.url, deadline=10), name=name) for _ in range(2))
    with one.reserve("k"):
        with one.reserve("k"):
            assert not two.check("k")
            assert two.peek("k").remaining == 0
        assert two.peek("k").remaining == 1  # no refusal is remembered: a lease may come back at any moment
        with two.reserve("k", timeout=5):
            assert not one.reserve("k")
    assert two.peek("k").remaining == 2
    assert two.check("k")
    layout = two.store.translator.layout(two.name, two.limits)
    assert 0 < redis_server.client().pttl(layout.name("k") + layout.subjects[0].suffix) <= 62_000
    for limiter in (one, two):
        limiter.store.close()


def test_an_event_loop_waits_for_a_lease_of_another_process(redis_server):
    async def main():
        name = f"waiting {random.random()}"
        stores = [AsyncRedisStore(redis_server.url, deadline=10) for _ in range(2)]
        one, two = (AsyncLimiter("1 concurrent", store=store, name=name) for store in stores)
        lease = await one.reserve("k")
        waiter = asyncio.ensure_future(two.reserve("k", timeout=30))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not waiter.done()
        await lease.settle(0)
        assert await waiter
        for store in stores:
            await store.close()

    asyncio.run(main())

"""Leases in Lua and C beside the rule in Python, and on real servers beside a plain set."""

import asyncio
import random
import uuid

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check, LeaseCheck
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import SharedStore, remove
from ratekeeper.testing import FakeClock
from tests import tier
from tests.algorithms.test_concurrency import walk

LIMITS = [Limit.parse(text) for text in ("1 concurrent", "5 concurrent for 3 seconds", "300 concurrent for 1 ms")]


def random_call(chance, limit, now, notes):
    """An operation on leases, the check it is asked with, and its other arguments."""
    lease, cost = chance.choice([1, 2, 3, 2**64 - 1]), chance.choice([1, 1, 2, limit.count, limit.count + 1])
    lasts = chance.choice([limit.micros, limit.micros // 3 + 1, limit.micros * 2, 1])
    named = LeaseCheck("s", "k", limit, cost, None, lease, lasts)
    nobody = Check("s", "k", limit, cost)
    operation = chance.choice(
        ["check", "check", "check", "peek", "take", "refund", "renew", "end_leases", "end_leases"]
    )
    if operation == "refund":
        return operation, nobody, (now - chance.choice([0, 0, limit.micros // 7]),)
    if operation == "end_leases":
        noted_for = chance.choice([0, limit.micros]) if notes else 0
        return operation, named.having(chance.choice([0, 0, 1, 2]), noted_for), ()
    return operation, named if operation == "renew" or chance.random() < 0.6 else nobody, ()


def walk_beside_the_rule(make, limit, seed, steps, *, notes):
    """The same random calls on the rule in Python and on ``make(clock)``: the same answers and states."""
    chance = random.Random(seed)
    clock = FakeClock(start=1000.0)
    pure, twin = MemoryStore(clock=clock), make(clock)
    for number in range(steps):
        step = chance.choice([0, 1, limit.micros // 7, limit.micros // 2, limit.micros, -limit.micros // 3])
        clock.move_to(max(0, clock.micros + step))
        operation, check, more = random_call(chance, limit, clock.micros, notes)
        ours, theirs = (getattr(store, operation)((check,), *more) for store in (pure, twin))
        told = (number, operation, check, check.lease)
        assert [bool(each) for each in ours] == [bool(each) for each in theirs], told
        assert operation == "renew" or ours == theirs, told
        ((ends, ids, _),), ((twin_ends, twin_ids, _),) = (store.states((check,))[1] for store in (pure, twin))
        assert (ends, ids) == (twin_ends, twin_ids), told
    return twin


@pytest.mark.parametrize("seed", range(tier.steps(10, 3)))
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_lua_twin_agrees_step_by_step(any_server, limit, seed):
    any_server.client().flushall()
    walk_beside_the_rule(
        lambda clock: RedisStore(any_server.url, clock=clock, deadline=10), limit, seed, 150, notes=True
    ).close()


@pytest.mark.parametrize("seed", range(tier.steps(10, 3)))
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_c_twin_agrees_step_by_step(limit, seed):
    walk_beside_the_rule(lambda clock: open_store("memory://", clock=clock), limit, seed, 300, notes=False)


@pytest.mark.parametrize("seed", range(tier.steps(10, 3)))
@pytest.mark.parametrize("limit", LIMITS, ids=str)
def test_the_c_twin_agrees_step_by_step_in_shared_memory(limit, seed):
    store = walk_beside_the_rule(
        lambda clock: SharedStore(f"test-{uuid.uuid4().hex}", clock=clock, max_keys=100), limit, seed, 300, notes=False
    )
    store.close()
    remove(store.folder.name)


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

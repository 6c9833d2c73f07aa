"""A store that is slow but alive.  Delays are long, so that a busy machine does not show."""

import asyncio
import contextlib
import logging
import os
import threading
import time

import pytest

from ratekeeper import Limit, Limiter, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.native import core
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import slot_of
from tests import tier
from tests.real.faulty_proxy import FaultyProxy
from tests.real.load import Load
from tests.servers import Cluster, Server

pytestmark = [pytest.mark.real, tier.TIMED]
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
LIMIT = Limit.parse("40000 per 50 days")
PLAN = tuple([Check(f"s{number}", f"k{number}", LIMIT, 1) for number in range(6)])


@pytest.fixture
def cluster():
    cluster = Cluster(between=FaultyProxy)
    yield cluster
    cluster.close()


def make_late(cluster, seconds):
    for proxy in cluster.proxies:
        proxy.replies_late = seconds


def times(store, kind, many):
    """How long each of some checks of the plan takes, in seconds; a failure counts as well."""

    async def main():
        taken = []
        for _ in range(many):
            began = time.monotonic()
            with contextlib.suppress(StoreUnavailable):
                answer = store.check(PLAN)
                if kind == "async":
                    await answer
            taken.append(time.monotonic() - began)
        if kind == "async":
            await store.close()
        else:
            store.close()
        return taken

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_plan_over_several_slots_asks_them_side_by_side(cluster, kind):
    make_late(cluster, 0.3)
    store = (RedisStore if kind == "sync" else AsyncRedisStore)(cluster.url, deadline=10)
    _, *taken = times(store, kind, 3)
    assert 0.3 <= min(taken) < 0.9  # one after the other it would be 1.8


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_all_nodes_that_hang_cost_one_deadline(cluster, kind):
    store = (RedisStore if kind == "sync" else AsyncRedisStore)(cluster.url, deadline=0.5)

    async def main():
        answer = store.check(PLAN)
        if kind == "async":
            await answer
        for proxy in cluster.proxies:
            proxy.deaf = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.check(PLAN) if kind == "async" else store.check(PLAN)
        first = time.monotonic() - began
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await store.check(PLAN) if kind == "async" else store.check(PLAN)
        later = time.monotonic() - began
        closing = store.close()
        if kind == "async":
            await closing
        return first, later

    first, later = asyncio.run(main())
    assert 0.5 <= first < 0.9
    assert later < 0.4  # of all five


def test_the_slots_are_learned_although_each_command_takes_nearly_the_deadline(cluster):
    """Three seeds shared one deadline, so that none could answer: no decision was ever made by the store."""
    make_late(cluster, 0.2)
    limiter = Limiter(LIMIT, store=cluster.url, deadline=0.3, on_store_error="deny")
    reasons, until = [], time.monotonic() + (4 if SHORT else 8)
    while time.monotonic() < until:
        reasons.append(limiter.check(f"k{len(reasons) % 9}").reason)
        time.sleep(0.02)
    limiter.close()
    late = reasons[len(reasons) // 2 :]
    assert late.count("") > len(late) / 2


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_one_slot_took_is_given_back_in_the_background(cluster, kind):
    """One node hangs: the caller is told at the deadline, and the others get back what they took."""
    store = (RedisStore if kind == "sync" else AsyncRedisStore)(cluster.url, deadline=0.5)
    reader = RedisStore(cluster.url, deadline=10)
    here = [number for number, check in enumerate(PLAN) if owner(cluster, reader, check) != 0]

    async def main():
        answer = store.check(PLAN)
        if kind == "async":
            await answer
        cluster.proxies[0].deaf = True
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.check(PLAN) if kind == "async" else store.check(PLAN)
        took = time.monotonic() - began
        await asyncio.sleep(0.5)
        closing = store.close()
        if kind == "async":
            await closing
        return took

    assert 0.5 <= asyncio.run(main()) < 0.9
    cluster.proxies[0].deaf = False
    remaining = [decision.remaining for decision in reader.peek(tuple([PLAN[number] for number in here]))]
    reader.close()
    assert remaining == [LIMIT.count - 1] * len(here)


def owner(cluster, store, check):
    """The number of the node that has the key of a check."""
    name = store.translator.layout(check.space, check.limit).name(check.key)
    return cluster.servers.index(cluster.owner(slot_of(name)))


@pytest.fixture
def proxy():
    server = Server()
    proxy = FaultyProxy(server.port)
    yield proxy
    proxy.close()
    server.close()


@pytest.mark.skipif(core is None, reason="without the C core threads take turns")
@pytest.mark.parametrize("threads", [2, 16])
def test_threads_need_a_round_trip_below_the_deadline_not_below_half_of_it(proxy, threads):
    """Whoever came while a batch was under way waited for its answer first: two threads were never decided there."""
    proxy.replies_late = 0.3
    limiter = Limiter("1000000 per 50 days", store=proxy.url, deadline=0.5, on_store_error="deny")
    while limiter.check("warm").reason:
        time.sleep(0.1)
    reasons, until = [], time.monotonic() + (3 if SHORT else 10)

    def ask(number):
        time.sleep(0.1 * number / threads)  # so that they do not meet in one batch
        while time.monotonic() < until:
            reasons.append(limiter.check("k").reason)

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(threads)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    limiter.close()
    assert reasons.count("") >= 0.9 * len(reasons) > threads


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("late", [0.08, 0.4, 0.9])
def test_a_server_that_is_too_slow_is_away_and_does_not_come_and_go(proxy, kind, late, caplog):
    """The probe had a second, the decision 50 ms: the log had up to 71 lines in 20 seconds."""
    caplog.set_level(logging.INFO, "ratekeeper.store")
    proxy.replies_late = late
    with Load(kind, LIMIT, proxy.url, workers=4, deadline=0.05, on_store_error="deny") as load:
        time.sleep(3 if SHORT else 20)
    assert load.errors == []
    lines = [record.getMessage() for record in caplog.records if record.name == "ratekeeper.store"]
    assert len(lines) <= 3, lines
    assert "deadline" in lines[0] or "50 ms" in lines[0]

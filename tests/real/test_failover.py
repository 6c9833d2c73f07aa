"""Masters that die behind a sentinel or in a cluster, and slots that move, under load."""

import asyncio
import contextlib
import itertools
import os
import random
import time

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import slot_of
from tests.real.load import Load
from tests.servers import Cluster, Sentinel, Server
from tests.stores.redis.test_topology import move_slot

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
DEADLINE = 0.2
SLACK = 0.6
RECOVERY = 5.0
LIMIT = 40_000
prefixes = itertools.count()


def until(holds, seconds=40):
    """Wait for something that a server will do some time."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def watched():
    """A master, its replica, and a sentinel that knows both."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(2):
            replicates = {"replicaof": f"127.0.0.1 {servers[0].port}"} if number else {}
            servers.append(Server(**{"repl-diskless-sync-delay": 0, "repl-timeout": 60, **replicates}))
            stack.callback(servers[-1].close)
        until(lambda: servers[1].client().info("replication")["master_link_status"] == "up")
        sentinel = Sentinel(servers[0], patience=500)
        stack.callback(sentinel.close)
        until(lambda: sentinel.client().execute_command("SENTINEL", "REPLICAS", "main"))
        yield *servers, sentinel


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_failover_by_sentinel(watched, kind):
    master, replica, sentinel = watched
    limit = Limit.parse(f"{LIMIT} per 50 days")
    with Load(kind, limit, sentinel.url, deadline=DEADLINE) as load:
        load.wait(lambda decision: decision.reason == "")
        time.sleep(0.5)
        assert master.client().wait(1, 20_000) == 1  # the replica has all but the last moment
        master.kill()
        killed_at = time.monotonic()
        load.wait(lambda decision: decision.reason.startswith("local: "))
        until(lambda: replica.client().info("replication")["role"] == "master")
        recovers_after = load.wait(lambda decision: decision.reason == "")
        time.sleep(0.3)
    assert load.errors == []
    assert max(took for _, took, _ in load.answers) < DEADLINE + SLACK + load.lag
    assert recovers_after < RECOVERY + load.lag
    here, there = load.admitted(by_store=False), load.admitted(by_store=True)
    assert here <= LIMIT // 2
    # What the replica had not seen yet is lost: what was admitted within the lag of replication, not more.
    unseen = sum(decision.allowed for _, _, decision in load.between(killed_at - 0.05 - load.lag, killed_at))
    with contextlib.closing(Limiter(limit, store=replica.url, name="load", deadline=10)) as limiter:
        used = LIMIT - limiter.peek("k").remaining
    doubtful = sum(1 for _, _, decision in load.answers if decision.reason != "" and "no answer" in decision.reason)
    # What was admitted here was charged to the new master.
    assert there - unseen <= used <= there + here + doubtful + 16
    client = replica.client()
    assert all(client.pttl(name) > 0 for name in client.scan_iter("*"))


@pytest.fixture
def cluster():
    cluster = Cluster(patience=2000)
    yield cluster
    for server in cluster.servers:
        with contextlib.suppress(Exception):
            server.close()


def key_on(cluster, server, limit):
    """A key that this server has."""
    layout = RecordLayout("load", limit, b"rk")
    return next(key for key in map(str, range(1000)) if cluster.owner(slot_of(layout.name(key))) is server)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_dead_master_takes_only_its_own_keys_along(cluster, kind):
    limit = Limit.parse(f"{LIMIT} per 50 days")
    for server in cluster.servers:  # else all stop when one is missing
        server.client().config_set("cluster-require-full-coverage", "no")
    first, second, third = (key_on(cluster, server, limit) for server in cluster.servers)
    with contextlib.ExitStack() as stack:
        dead, *alive = (
            stack.enter_context(Load(kind, limit, cluster.url, workers=4, keys=(key,), deadline=DEADLINE))
            for key in (first, second, third)
        )
        for load in (dead, *alive):
            load.wait(lambda decision: decision.reason == "")
        time.sleep(0.2)
        cluster.servers[0].kill()
        began = time.monotonic()
        dead.wait(lambda decision: decision.reason.startswith("local: "))
        time.sleep(1 if SHORT else 4)  # longer than the cluster takes to call it failed
        ended = time.monotonic()
        cluster.servers[0].start()
        recovers_after = dead.wait(lambda decision: decision.reason == "")
    for load in (dead, *alive):
        assert load.errors == []
        assert max(took for _, took, _ in load.answers) < 2 * DEADLINE + SLACK + load.lag
    for load in alive:
        meanwhile = load.between(began, ended)
        assert len(meanwhile) > 20
        slow = [decision.reason for _, _, decision in meanwhile if decision.reason]
        assert len(slow) < len(meanwhile) / 20, slow[:3]  # a busy machine may miss a deadline, a dead neighbour not
    assert recovers_after < RECOVERY + 10 * DEADLINE + dead.lag  # its neighbours must take it in again


def test_slots_that_move_to_and_fro_under_load(cluster):
    limit = Limit.parse(f"{LIMIT} per 50 days")
    key = key_on(cluster, cluster.servers[0], limit)
    slot = slot_of(RecordLayout("load", limit, b"rk").name(key))
    source, target = cluster.servers[:2]
    with Load("async", limit, cluster.url, keys=(key,), deadline=5, on_store_error="deny") as load:
        load.wait(lambda decision: decision.reason == "")
        for _ in range(4 if SHORT else 30):
            for _ in move_slot(cluster, slot, source, target):
                time.sleep(0.02)
                load.wait(lambda decision: decision.reason == "")
            source, target = target, source
    assert load.errors == []
    assert {decision.reason for _, _, decision in load.answers} == {""}
    with contextlib.closing(Limiter(limit, store=cluster.url, name="load", deadline=10)) as limiter:
        assert LIMIT - limiter.peek(key).remaining == load.admitted(by_store=True) == len(load.answers)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_records_of_one_caller_that_move_one_by_one_are_never_taken_apart(cluster, kind):
    """Several limits of one key are three records of one slot: while they are on both sides, nobody decides."""
    limit = parse_limits(
        [f"{LIMIT} per 50 days", f"{LIMIT} per 49 days sliding_log", "60 per 1 millisecond sliding_log"]
    )
    layout = RecordLayout("load", limit, b"rk")
    key = next(key for key in map(str, range(1000)) if cluster.owner(slot_of(layout.name(key))) is cluster.servers[0])
    slot = slot_of(layout.name(key))
    source, target = cluster.servers[:2]
    ids = {server: server.client().execute_command("CLUSTER", "MYID").decode() for server in cluster.servers}
    with Load(kind, limit, cluster.url, workers=4, keys=(key,), deadline=5, on_store_error="deny") as load:
        load.wait(lambda decision: decision.reason == "")
        for _ in range(4 if SHORT else 20):
            target.client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
            source.client().execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
            while names := source.client().execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
                source.client().execute_command("MIGRATE", "127.0.0.1", target.port, names[0], 0, 5000)
                time.sleep(0.02)
            for server in (target, source, *cluster.servers):
                server.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
            load.wait(lambda decision: decision.reason == "")
            source, target = target, source
    assert load.errors == []
    assert {decision.reason for _, _, decision in load.answers} == {""}
    admitted = load.admitted(by_store=True)
    assert admitted > 100
    with contextlib.closing(Limiter(limit, store=cluster.url, name="load", deadline=10)) as limiter:
        parts = limiter.peek(key).parts()
    assert [LIMIT - part.remaining for part in parts[:2]] == [admitted, admitted]


def test_cancelled_plans_across_slots_leave_nothing_behind(redis_cluster):
    """The last limit refuses most plans: what the others took for them is given back, cancelled or not."""
    calls = 600 if SHORT else 10_000
    tight = calls // 10
    prefix = f"cancelled{next(prefixes)}"
    plan = (
        *[Check(name, name, Limit.parse("100000 per 50 days fixed_window"), 1) for name in ("ip", "user")],
        Check("all", "all", Limit.parse(f"{tight} per 50 days fixed_window"), 1),
    )

    async def main():
        chance = random.Random(5)
        store = AsyncRedisStore(redis_cluster.url, prefix=prefix, deadline=60, deny_cache=False)
        await store.peek(plan)
        cancelled = 0

        async def call():
            nonlocal cancelled
            task = asyncio.ensure_future(store.check(plan))
            for _ in range(chance.randrange(8)):
                await asyncio.sleep(0)
            if chance.random() < 0.75:
                task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                cancelled += 1

        for _ in range(calls // 20):
            await asyncio.gather(*[call() for _ in range(20)])
        # What was cancelled may still be on its way, and what it took on its way back.
        until_idle = time.monotonic() + 30
        while any(link.in_flight or link.pending for link in store.connections().servers.values()):
            assert time.monotonic() < until_idle
            await asyncio.sleep(0.01)
        await store.close()
        return cancelled

    assert asyncio.run(main()) > calls / 2
    store = RedisStore(redis_cluster.url, prefix=prefix, deadline=10)
    used = [answer.limit - answer.remaining for answer in store.peek(plan)]
    store.close()
    assert used == [tight, tight, tight]

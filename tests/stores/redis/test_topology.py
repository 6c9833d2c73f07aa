"""A cluster of three masters, and a master behind a sentinel: the contract, slots, and plans across slots."""

import asyncio
import itertools
import threading
from time import monotonic

import pytest
import trio

from ratekeeper import AsyncLimiter, Limit, Limiter, StoreUnavailable
from ratekeeper.check import Check
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.steps import adrive, drive
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import SlotMap, Topology, slot_of
from ratekeeper.stores.redis.url import RedisSettings
from ratekeeper.testing import StoreContract
from tests.stores.prepared import ThroughPrepared, ThroughTables
from tests.stores.redis.test_store import ENDLESS

prefixes = itertools.count()


class TestCluster(StoreContract):
    @pytest.fixture(autouse=True)
    def cluster(self, redis_cluster):
        self.store = RedisStore(redis_cluster.url, prefix=f"c{next(prefixes)}", deadline=10)
        yield
        self.store.close()

    def setup_method(self):
        """Waits for the cluster: see above."""

    def teardown_method(self):
        pass


class TestSentinel(TestCluster):
    @pytest.fixture(autouse=True)
    def cluster(self, redis_sentinel):
        self.store = RedisStore(redis_sentinel.url, prefix=f"s{next(prefixes)}", deadline=10)
        yield
        self.store.close()


class TestAsyncCluster(TestCluster):
    @pytest.fixture(autouse=True)
    def cluster(self, redis_cluster):
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        self.store = AsyncRedisStore(redis_cluster.url, prefix=f"c{next(prefixes)}", deadline=10)
        yield
        self.ask("close")
        self.loop.call_soon_threadsafe(self.loop.stop)
        thread.join()
        self.loop.close()

    def ask(self, operation, *arguments):
        async def answer():
            return await getattr(self.store, operation)(*arguments)

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result()


@pytest.mark.full  # the same promises by another way
class TestClusterThroughPrepared(ThroughPrepared, TestCluster):
    pass


@pytest.mark.full  # the same promises by another way
class TestClusterThroughTables(ThroughTables, TestCluster):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncClusterThroughPrepared(ThroughPrepared, TestAsyncCluster):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncClusterThroughTables(ThroughTables, TestAsyncCluster):
    pass


def test_slots_are_those_of_the_server(redis_cluster):
    client = redis_cluster.servers[0].client()
    for name in (b"plain", b"rk:api:{abc}", b"{}x", b"a{}{b}", b"{x", b"rk:a:{abc}.1r"):
        assert slot_of(name) == client.execute_command("CLUSTER", "KEYSLOT", name)


def test_user_text_chooses_no_slot_and_shows_in_no_name():
    layout = RecordLayout("log{in}", Limit.parse("5/minute"))
    names = [layout.name(f"{{t.g}}:{number}") for number in range(3_000)]
    assert len(set(names)) == 3_000
    assert all(b"t.g" not in name and name.startswith(b"rk:log_in_:{") for name in names)
    thirds = [0, 0, 0]
    for name in names:
        thirds[slot_of(name) * 3 // 16384] += 1
    assert all(800 < count < 1200 for count in thirds)
    # What belongs to one caller stays together: the record, and the logs beside it.
    both = RecordLayout("s", Limit.parse("5/minute"))
    assert slot_of(both.name("k")) == slot_of(both.name("k") + b".1r")


def test_a_secret_keys_the_digests():
    plain, keyed, other = (
        RecordLayout("s", Limit.parse("5/minute"), secret=secret) for secret in (b"", b"one secret", b"another")
    )
    assert len({layout.name("10.0.0.1") for layout in (plain, keyed, other)}) == 3


def plan_of(limit, cost=1, keys=("ip", "user", "global")):
    return tuple([Check(key, key, limit, cost) for key in keys])


def test_a_plan_across_slots_takes_all_or_nothing_under_load(redis_cluster):
    """Three subjects in three slots, the last with less room: what it refuses is given back to the others."""
    store = RedisStore(redis_cluster.url, prefix=f"c{next(prefixes)}", deadline=10, deny_cache=False)
    roomy, tight = Limit.parse("1000 per 50 days fixed_window"), Limit.parse("60 per 50 days fixed_window")
    plan = (*plan_of(roomy, keys=("ip", "user")), *plan_of(tight, keys=("global",)))
    slots = {slot_of(store.translator.layout(check.space, check.limit).name(check.key)) for check in plan}
    assert len(slots) == 3
    admitted = []

    def run():
        admitted.append(sum(all(store.check(plan)) for _ in range(40)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 60
    assert [decision.remaining for decision in store.peek(plan)] == [940, 940, 0]
    store.close()


def test_a_tag_in_the_prefix_keeps_plans_in_one_slot(redis_cluster):
    store = RedisStore(redis_cluster.url, prefix="{app}", deadline=10)
    plan = plan_of(Limit.parse("3 per 50 days"))
    names = [store.translator.layout(check.space, check.limit).name(check.key) for check in plan]
    assert {slot_of(name) for name in names} == {slot_of(b"app")}
    store.reset(plan)
    assert [all(store.check(plan)) for _ in range(5)] == [True] * 3 + [False] * 2
    store.close()


def move_slot(cluster, slot, source, target):
    """Move one slot and its keys, as a resharding does; yields halfway, where keys are on both sides."""
    ids = {server: server.client().execute_command("CLUSTER", "MYID").decode() for server in cluster.servers}
    target.client().execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    source.client().execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    yield
    while keys := source.client().execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.client().execute_command("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
    yield
    for server in (target, source, *cluster.servers):
        server.client().execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[target])


def test_a_slot_that_moves_under_load_loses_and_grants_nothing(redis_cluster):
    prefix = f"c{next(prefixes)}"
    limit = Limit.parse("400 per 50 days")
    key = "the one that moves"
    slot = slot_of(RecordLayout("moving", limit, prefix.encode()).name(key))
    source = redis_cluster.owner(slot)
    target = next(server for server in redis_cluster.servers if server is not source)

    async def main():
        store = AsyncRedisStore(redis_cluster.url, prefix=prefix, deadline=10, deny_cache=False)
        limiter = AsyncLimiter(limit, store=store, name="moving")
        admitted = 0
        reasons = set()

        async def run(calls):
            nonlocal admitted
            for _ in range(calls):
                decision = await limiter.check(key)
                admitted += decision.allowed
                reasons.add(decision.reason)

        await asyncio.gather(*[run(10) for _ in range(8)])
        for _ in move_slot(redis_cluster, slot, source, target):
            await asyncio.gather(*[run(10) for _ in range(8)])
        await asyncio.gather(*[run(30) for _ in range(8)])
        assert reasons == {""}
        assert admitted == 400
        assert store.connections().topology.slots.masters[slot] == ("127.0.0.1", target.port)
        await store.close()

    asyncio.run(main())
    sync = Limiter(limit, store=RedisStore(redis_cluster.url, prefix=prefix, deadline=10), name="moving")
    assert sync.peek(key).remaining == 0
    for _ in move_slot(redis_cluster, slot, target, source):  # as it was, for the other tests
        assert not sync.check(key)
    sync.store.close()


def test_no_key_is_left_without_a_time_to_live(redis_cluster):
    for server in redis_cluster.servers:
        client = server.client()
        assert ENDLESS not in [client.pttl(name) for name in client.scan_iter("*")]


def test_a_map_with_holes_is_an_unavailable_store():
    slots = SlotMap([("a", 1)])
    slots.learn([[0, 100, [b"", 7000, b"id"]], [101, 16383, [b"b", 7001, b"id"]]], ("a", 1))
    assert (slots.masters[0], slots.masters[16383]) == (("a", 7000), ("b", 7001))
    assert slots.addresses() == [("a", 7000), ("b", 7001), ("a", 1)]
    slots.learn([[0, 100, [b"?", 7000, b"id"]]], ("c", 1))
    assert (slots.masters[0], 16383 in slots.masters) == (("c", 7000), False)
    store = RedisStore("redis+cluster://127.0.0.1:1")
    with pytest.raises(StoreUnavailable, match="could not learn which node serves which slot"):
        store.check(plan_of(Limit.parse("1/minute")))
    store.close()


SENTINELS = "redis+sentinel://one:1,two:2,three:3/service"
NODES = "redis+cluster://one:1,two:2,three:3"


class Replies:
    """Answers the questions of a topology, and notes them."""

    def __init__(self, kind, url, *replies):
        self.kind = kind
        self.replies = list(replies)
        self.asked = []
        self.topology = Topology(RedisSettings(url), self.ask if kind == "threads" else self.ask_later)

    def ask(self, address, words, seconds):
        self.asked.append((address, words[0], round(seconds, 1)))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def ask_later(self, *question):
        await asyncio.sleep(0)
        return self.ask(*question)

    def run(self, steps):
        return drive(steps) if self.kind == "threads" else asyncio.run(adrive(steps))


@pytest.fixture(params=["threads", "tasks"])
def kind(request):
    return request.param


def test_sentinels_are_asked_one_after_the_other_and_leave_time_for_the_master(kind):
    far = Replies(kind, SENTINELS, OSError("refused"), None, [b"master", b"7"])
    assert far.run(far.topology.locate(("one", 1), False, monotonic() + 12)) == ("master", 7)
    assert far.asked == [
        (("one", 1), b"SENTINEL", 3.0),
        (("two", 2), b"SENTINEL", 4.0),
        (("three", 3), b"SENTINEL", 6.0),
    ]
    far = Replies(kind, SENTINELS, TimeoutError(), None, StoreUnavailable("s", "refused SENTINEL: NOAUTH"))
    with pytest.raises(StoreUnavailable, match=r"could not find the master \(.*refused SENTINEL: NOAUTH"):
        far.run(far.topology.find_master(monotonic() + 12))
    far = Replies(kind, SENTINELS, TimeoutError(), TimeoutError(), None)
    with pytest.raises(
        StoreUnavailable, match=r"could not find the master \(no sentinel knows the service 'service'\)"
    ):
        far.run(far.topology.find_master(monotonic() + 12))


def test_nodes_are_asked_one_after_the_other_for_the_slots(kind):
    slots = [[0, 16383, [b"node", 9, b"id"]]]
    far = Replies(kind, NODES, TimeoutError(), slots)
    topology = far.topology
    assert topology.node(b"{k}") is None
    far.run(topology.learn_slots(monotonic() + 12))
    assert far.asked == [(("one", 1), b"CLUSTER", 4.0), (("two", 2), b"CLUSTER", 6.0)]
    assert topology.node(b"{k}") == topology.learned_node(b"{k}") == ("node", 9)
    assert far.run(topology.locate(("node", 9), False, monotonic() + 12)) == ("node", 9)
    far.replies = [slots]
    assert far.run(topology.locate(("node", 9), True, monotonic() + 12)) == ("node", 9)
    assert far.asked[2:] == [(("node", 9), b"CLUSTER", 1.5)]  # one that is away may have been replaced


def test_a_map_that_nobody_tells_is_not_asked_for_at_once_again(kind):
    far = Replies(kind, NODES, *[TimeoutError()] * 3, *[OSError("refused")] * 3, [[1, 2, [b"node", 9]]])
    topology = far.topology
    with pytest.raises(StoreUnavailable, match=r"could not learn which node serves which slot \(no answer\)"):
        far.run(topology.learn_slots(monotonic() + 12))
    with pytest.raises(StoreUnavailable, match=r"could not learn which node serves which slot \(no answer\)"):
        topology.node(b"{k}")
    assert far.run(topology.locate(("one", 1), True, monotonic() + 12)) == ("one", 1)  # where it was, then
    assert "refused" in topology.breaker.why
    topology.breaker.probe_at = 0.0
    assert topology.node(b"{k}") is None
    far.run(topology.learn_slots(monotonic() + 12))
    with pytest.raises(StoreUnavailable, match=f"no node serves slot {slot_of(b'{k}')}"):
        topology.learned_node(b"{k}")


def test_the_log_says_that_others_serve_the_slots_of_a_dead_master(caplog):
    caplog.set_level("INFO", "ratekeeper.store")
    store = RedisStore("redis+cluster://127.0.0.1:1")
    connections = store.connections
    slots, old = connections.topology.slots, connections.server_at(("127.0.0.1", 1))
    slots.learn([[0, 16383, [b"127.0.0.1", 1]]], ("127.0.0.1", 1))
    old.breaker.trip(0.0, "lost the connection")
    connections.note_moved()
    assert not caplog.records  # its slots are still its own
    slots.learn([[0, 16383, [b"127.0.0.1", 2]]], ("127.0.0.1", 1))
    for _ in range(3):
        connections.note_moved()
    assert [record.getMessage() for record in caplog.records] == [
        "redis://127.0.0.1:1: other nodes serve its slots now"
    ]
    store.close()


@pytest.mark.parametrize("topology", ["redis_sentinel", "redis_cluster"])
def test_tasks_of_trio_get_exactly_the_limit(request, topology):
    url = request.getfixturevalue(topology).url

    async def main():
        store = AsyncRedisStore(url, prefix=f"t{next(prefixes)}", deadline=10)
        limiter = AsyncLimiter("9/hour", store=store)
        answers = []

        async def call():
            answers.append(await limiter.check("k"))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(call)
        assert [sum(map(bool, answers)), {answer.reason for answer in answers}] == [9, {""}]
        await store.close()

    trio.run(main)

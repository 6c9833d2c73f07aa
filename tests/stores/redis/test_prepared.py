"""Prepared plans and check_now on Redis: what is answered without asking, by whom, and in how many commands."""

import asyncio
import contextlib
import itertools
import random
import struct

import pytest

from ratekeeper import InvalidCost, InvalidKey, Limit
from ratekeeper.check import Check
from ratekeeper.keys import encode
from ratekeeper.limit import parse_limits
from ratekeeper.native import core
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.prepared import PreparedRequest
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests.servers import Server

prefixes = itertools.count()
LIMITS = [parse_limits(text) for text in ("100/minute", "2/minute", ["5/minute", "50/hour fixed_window"])]
ROWS = tuple((f"s{number}", limit, 1, None) for number, limit in enumerate(LIMITS))
NOWHERE = "redis://127.0.0.1:1/0"


class Asked:
    """A store, for threads or for an event loop, with its answers waited for."""

    def __init__(self, kind, url, **options):
        self.loop = asyncio.new_event_loop() if kind == "tasks" else None
        self.store = (AsyncRedisStore if self.loop else RedisStore)(url, **options)

    def do(self, function, *arguments):
        async def run():
            result = function(*arguments)
            return await result if hasattr(result, "__await__") else result

        return self.loop.run_until_complete(run()) if self.loop else function(*arguments)

    def close(self):
        self.do(self.store.close)
        if self.loop:
            self.loop.close()


@pytest.fixture(params=["threads", "tasks"])
def kind(request):
    return request.param


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


@pytest.fixture
def remote(kind, redis_server, clock):
    with contextlib.closing(
        Asked(kind, redis_server.url, clock=clock, prefix=f"prepared{next(prefixes)}", deadline=10)
    ) as asked:
        yield asked


@pytest.fixture
def away(kind, clock):
    with contextlib.closing(Asked(kind, NOWHERE, clock=clock, deadline=10)) as asked:
        yield asked


def commands(server):
    return server.client().info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]


def figures(decisions):
    return [(decision, decision.at, decision.reason, decision.parts()) for decision in decisions]


def test_a_refused_plan_is_answered_without_asking(remote, redis_server, clock):
    plan, keys = remote.store.prepare(ROWS), ("a", "b", "c")
    assert remote.do(plan.check_now, keys) is None
    assert remote.do(plan.check, keys)[0]
    assert remote.do(plan.check, keys)[0]
    assert remote.do(plan.check_now, keys) is None
    refused = remote.do(plan.check, keys)
    before = commands(redis_server)
    assert [remote.do(ask, keys) for ask in (plan.check_now, plan.check, plan.check)] == [refused] * 3
    assert (refused[0], [each.allowed for each in refused[1]]) == (False, [True, False, True])
    assert [each.remaining for each in refused[1]] == [98, 0, 3]
    table = remote.store.table("s1", LIMITS[1])
    assert remote.do(table.check_now, "b") == refused[1][1]
    assert remote.do(table.check_now, "fresh") is None
    clock.advance(10)
    assert [each.remaining for each in remote.do(plan.check, keys)[1]][:2] == [100, 0]
    assert commands(redis_server) == before + 1  # a cached refusal lasts a second at most
    clock.advance(20)
    assert remote.do(plan.check, keys)[0]


def test_what_is_cached_of_one_key_says_nothing_of_a_fresh_one(remote):
    plan = remote.store.prepare(ROWS)
    for _ in range(3):
        remote.do(plan.check, ("a", "b", "c"))
    assert remote.do(plan.check_now, ("new", "b", "c")) is None  # the figures of the first row are not known
    assert [each.remaining for each in remote.do(plan.check, ("new", "b", "c"))[1]] == [100, 0, 3]


@pytest.mark.parametrize(
    "keys", [("a", b"a", ("a", 1)), ("x" * 300, b"y" * 300, (b"z",)), (bytearray(b"ba"), "a", b"a")]
)
def test_keys_are_those_that_callers_name(remote, keys):
    plan = remote.store.prepare(ROWS)
    for _ in range(2):
        assert remote.do(plan.check, keys)[0]
    checks = [Check(space, encode(key), limit, 1) for (space, limit, _, _), key in zip(ROWS, keys, strict=True)]
    assert [each.remaining for each in remote.do(remote.store.peek, tuple(checks))] == [98, 0, 3]
    assert remote.do(plan.check, ("a", encode(b"a"), "c"))[0]  # bytes that look like an encoded key are another key


def test_bytes_that_look_like_an_encoded_key_are_another_key(remote):
    plan = remote.store.prepare((("s", LIMITS[1], 1, None),))
    table = remote.store.table("s", LIMITS[1])
    for _ in range(3):
        remote.do(plan.check, (b"a",))
    assert not remote.do(plan.check_now, (b"a",))[0]
    assert remote.do(plan.check_now, (b"ba",)) is None
    assert remote.do(table.check_now, b"ba") is None
    assert remote.do(plan.check, (b"ba",))[0]


def test_rows_without_a_limit_are_not_asked_about(remote, redis_server):
    unlimited = Limit.parse("unlimited")
    beside_one = remote.store.prepare((("u", unlimited, 1, None), ("one", LIMITS[1], 1, None)))
    answers = [remote.do(beside_one.check, ("a", "a")) for _ in range(3)]
    assert [(allowed, found[1].remaining) for allowed, found in answers] == [(True, 1), (True, 0), (False, 0)]
    plan = remote.store.prepare((("u", unlimited, 1, None), *ROWS))
    allowed, decisions = remote.do(plan.check, ("a", "a", "b", "c"))
    assert (allowed, decisions[0].limit, decisions[1].remaining) == (True, unlimited.capacity, 99)
    before = commands(redis_server)
    nothing = remote.store.prepare((("u", unlimited, 1, None),))
    assert remote.do(nothing.check_now, ("a",))[0]
    assert remote.do(nothing.check, ("a",))[0]
    assert remote.do(remote.store.table("u", unlimited).check_now, "a").allowed
    assert commands(redis_server) == before
    assert remote.do(remote.store.prepare(()).check_now, ()) == (True, ())


def test_a_key_that_stands_twice_pays_twice(remote, clock):
    rows = tuple(
        ("s", limit, cost, None) for limit, cost in ((Limit.parse("5/minute"), 2), (Limit.parse("5/minute"), 1))
    )
    plan, model = remote.store.prepare(rows), MemoryStore(clock=clock).prepare(rows)
    for keys in (("a", "b"), ("a", "a"), ("a", "a"), ("b", "b"), ("b", "a")):
        assert remote.do(plan.check, keys) == model.check(keys)


def test_wrong_keys_and_costs_are_told(remote):
    plan = remote.store.prepare(ROWS)
    for ask in (plan.check, plan.check_now):
        with pytest.raises(TypeError, match="check: expected a tuple of 3 keys, got"):
            remote.do(ask, ("a", "b"))
        with pytest.raises(InvalidKey, match="key: expected something that names the caller"):
            remote.do(ask, ("a", "", "b"))
    with pytest.raises(InvalidCost, match="cost: expected a whole number from 1"):
        remote.store.prepare((("s", LIMITS[0], 0, None),))


def test_plans_and_single_checks_travel_in_one_command(redis_server):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"prepared{next(prefixes)}", deadline=10)
        plan, alone = store.prepare(ROWS[:1] + ROWS[2:]), store.prepare(ROWS[:1])
        table = store.table("s0", LIMITS[0])
        await table.check("warm")
        before = commands(redis_server)
        single = [asyncio.ensure_future(table.check("k")) for _ in range(5)]
        prepared = [plan.check(("k", "c")) for _ in range(5)] + [alone.check(("k",)) for _ in range(5)]
        decisions = await asyncio.gather(*single)
        answers = await asyncio.gather(*prepared)
        assert all(decisions)
        assert all(allowed for allowed, _ in answers)
        assert commands(redis_server) <= before + 2
        left = [found[0].remaining for _, found in answers] + [each.remaining for each in decisions]
        assert sorted(left) == list(range(85, 100))
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "modes", [(None, None, None), ("allow", None, "local"), ("deny", "local", None), ("allow",) * 3]
)
def test_while_the_store_is_away_the_fallback_answers(away, clock, modes):
    rows = tuple((f"{space} {modes}", limit, 1, mode) for (space, limit, _, _), mode in zip(ROWS, modes, strict=True))
    keys = ("a", b"b", "c")
    checks = [Check(row[0], encode(key), *row[1:]) for row, key in zip(rows, keys, strict=True)]
    plan, tables = away.store.prepare(rows), [away.store.table(row[0], row[1], row[3]) for row in rows]
    first = away.do(plan.check, keys)  # learns that nobody is there, and answers all the same
    why = away.do(away.store.away)
    assert why
    for ask in (plan.check_now, plan.check, plan.check_now):
        answer = away.do(ask, keys)
        peeked = away.store.fall_back("peek", None, tuple(checks))
        assert answer[0] == all(each.allowed for each in answer[1])
        assert [each.reason for each in answer[1]] == [f"{mode or 'local'}: {why}" for mode in modes]
        assert [each.remaining for each in answer[1]] == [each.remaining for each in peeked]
    assert first[0] == ("deny" not in modes)
    for table, key, mode in zip(tables, keys, modes, strict=True):
        for ask in (table.check, table.check_now):
            assert away.do(ask, key).reason == f"{mode or 'local'}: {why}"


def test_the_fallback_goes_on_from_what_the_store_last_said(kind, clock):
    server = Server()
    asked = Asked(kind, server.url, clock=clock, deadline=1)
    try:
        rows = (("s", Limit.parse("10/hour"), 4, None), ("t", Limit.parse("100/hour"), 1, None))
        plan = asked.store.prepare(rows)
        assert asked.do(plan.check, ("k", "k"))[0]
        server.kill()
        answers = [asked.do(plan.check, ("k", "k")) for _ in range(2)]
        assert [allowed for allowed, _ in answers] == [False, False]  # 2 of 5 were used: 4 more are not there
        assert answers[0][1][0].reason.startswith("local: ")
        assert asked.do(plan.check_now, ("fresh", "k"))[0]
    finally:
        asked.close()
        server.close()


def test_a_cluster_answers_what_it_knows_without_asking(kind, redis_cluster, clock):
    asked = Asked(kind, redis_cluster.url, clock=clock, prefix=f"prepared{next(prefixes)}", deadline=10)
    plan, table = asked.store.prepare(ROWS), asked.store.table("s1", LIMITS[1])
    for _ in range(2):
        assert asked.do(plan.check, ("a", "b", "c"))[0]
    assert asked.do(plan.check_now, ("a", "b", "c")) is None
    assert not asked.do(plan.check, ("a", "b", "c"))[0]
    assert not asked.do(plan.check_now, ("a", "b", "c"))[0]
    assert not asked.do(table.check_now, "b").allowed
    asked.close()


def test_a_cluster_that_is_away_is_known_to_be(kind, clock):
    asked = Asked(kind, "redis+cluster://127.0.0.1:1", clock=clock, deadline=1)
    plan, table = asked.store.prepare(ROWS), asked.store.table("s1", LIMITS[1])
    allowed, decisions = asked.do(plan.check, ("a", "b", "c"))
    assert allowed
    assert decisions[0].reason.startswith("local: could not learn which node serves which slot")
    assert asked.do(plan.check_now, ("a", "d", "c"))[1][0].reason == decisions[0].reason
    assert asked.do(table.check_now, "b").reason == decisions[0].reason
    asked.close()


@pytest.mark.skipif(core is None, reason="the C core was not built")
def test_the_core_reads_buckets_as_python_does(redis_server):
    """States of more than 64 bits, keys that were refused before, and records that are full of keys."""
    chance = random.Random(5)
    limits = [Limit.parse("1000000000/minute"), Limit.parse("67108863/second"), Limit.parse("7/hour token_bucket")]
    rows = tuple((f"s{number}", limit, number + 1, None) for number, limit in enumerate(limits))
    store = RedisStore(redis_server.url)
    native, python = store.prepare(rows), store.prepare(rows)
    assert native.bucket_rows
    python.bucket_rows = ()
    layouts = [layout for layout, _, _ in native.rows]
    for step in range(300):
        keys = tuple([f"k{chance.randrange(5)}" for _ in rows])
        instant = 1_700_000_000_000_000 + step
        reply = b"".join(
            [struct.pack(">QQI", instant, instant + chance.randrange(10**9), chance.randrange(2**26)) for _ in rows]
        )
        answers = []
        for plan in (native, python):
            for layout in layouts:
                layout.refusals.by_key.clear()
                layout.refusals.note("k0", layout.limit, 1, layout.limit.rule.EMPTY, instant, 5)
            allowed, decisions = PreparedRequest(plan, keys, b"").read(reply, 7)
            kept = [(dict(layout.recent), layout.seen, sorted(layout.refusals.by_key)) for layout in layouts]
            answers.append((allowed, decisions, [decision.at for decision in decisions], kept))
        assert answers[0] == answers[1]
    for wrong in (b"", reply[:-1], reply + b"x"):
        with pytest.raises(ValueError, match="read_buckets"):
            core.read_buckets(wrong, native.bucket_rows, keys, 7, 10)
    with pytest.raises(TypeError, match="read_buckets"):
        core.read_buckets(reply, ((1, 2),) * 3, keys, 7, 10)
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_plans_that_travel_together_are_decided_one_after_the_other(redis_server, clock, seed):
    """In one command, with keys that many of them share; each answer is that of a store in this process."""
    chance = random.Random(seed)
    texts = ["9/minute", "20/minute fixed_window", ["40/minute sliding_window", "60/hour token_bucket"]]
    rows = tuple((f"s{number}", parse_limits(text), number + 1, None) for number, text in enumerate(texts))
    asked = Asked(
        "tasks", redis_server.url + "?deny_cache=off&deadline=10", clock=clock, prefix=f"prepared{next(prefixes)}"
    )
    plan, model = asked.store.prepare(rows), MemoryStore(clock=clock).prepare(rows)
    client = redis_server.client()
    asked.do(plan.check, ("warm", "warm", "warm"))  # a new server has to be sent the script first
    for _ in range(20):
        clock.advance(chance.choice([0.0, 0.5, 7.0, 61.0]))
        batch = [tuple([f"k{chance.randrange(size)}" for size in (9, 3, 1)]) for _ in range(chance.randrange(2, 60))]

        async def together(batch=batch):
            return await asyncio.gather(*[plan.check(keys) for keys in batch])

        client.config_resetstat()
        answers = asked.do(together)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] <= 2
        for keys, answer in zip(batch, answers, strict=True):
            assert answer == model.check(keys)
    assert all(client.pttl(key) > 0 for key in client.keys(f"prepared{next(prefixes) - 1}*"))
    asked.close()

"""Every store beside the exact model, on clocks that go back and forth over edges; the long form is in tests/real."""

import asyncio
import itertools
import random
import uuid

import pytest

from ratekeeper import Limit, native
from ratekeeper.check import Check
from ratekeeper.limit import empty_state
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import remove
from ratekeeper.testing import FakeClock
from tests import tier
from tests.laws import settlements
from tests.laws.walk import next_instant
from tests.twins.store_walk import LIMITS, figures, micros, walk

names = itertools.count()
needs_core = pytest.mark.skipif(native.core is None, reason="there is no C core")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_core), pytest.param("shm", marks=needs_core)])
def local(request):
    clock = FakeClock(start=1_000_000.0)
    name = f"walk-{uuid.uuid4().hex}"
    urls = {"native": "memory://", "shm": f"shm://{name}?max_keys=1000"}
    store = MemoryStore(clock=clock) if request.param == "pure" else open_store(urls[request.param], clock=clock)
    yield clock, {request.param: store}
    store.close()
    if request.param == "shm":
        remove(name)


@pytest.fixture(params=["off", "on"])
def remote(request, any_server):
    clock = FakeClock(start=1_000_000.0)
    options = {"deny_cache": request.param == "on", "prefix": f"walk-{next(names)}", "deadline": 10}
    store = RedisStore(any_server.url, clock=clock, **options)
    yield clock, {f"redis, cache {request.param}": store}
    store.close()


@pytest.mark.parametrize("seed", range(tier.steps(8, 1)))
def test_memory_answers_as_the_exact_model(local, seed):
    for limit in LIMITS:
        walk(*local, limit, seed, tier.steps(150, 50))


@pytest.mark.parametrize("seed", range(tier.steps(4, 1)))
def test_a_server_answers_as_the_exact_model(remote, seed):
    for limit in LIMITS:
        walk(*remote, limit, seed, tier.steps(150, 20))


@pytest.mark.parametrize("seed", range(tier.steps(10, 3)))
def test_settlements_in_memory_are_charged_in_full(local, seed):
    clock, stores = local
    for limit in settlements.LIMITS:
        settlements.walk(clock, *stores.values(), limit, seed, tier.steps(60, 30))


@pytest.mark.parametrize("seed", range(tier.steps(4, 1)))
def test_settlements_on_a_server_are_charged_in_full(remote, seed):
    clock, stores = remote
    for limit in settlements.LIMITS:
        settlements.walk(clock, *stores.values(), limit, seed, tier.steps(60, 20))


class Rules:
    """The pure rules on any number of keys.  Unlike a store they forget nothing, which a clock could step back to."""

    def __init__(self, clock):
        self.clock, self.states = clock, {}

    def check(self, plan):
        now, decided = self.clock.micros, []
        for check in plan:
            old = self.states.get((check.space, check.key), empty_state(check.limit))
            decided.append((check, old, *check.limit.rule.decide(old, now, check.limit, check.cost)))
        taken, answers = all(fits for *_, fits in decided), []
        for check, old, new, fits in decided:
            rule, state = check.limit.rule, new if taken or not fits else old
            self.states[check.space, check.key] = state
            wait = 0 if fits else rule.retry_after(state, now, check.limit, check.cost)
            left, reset = rule.remaining(state, now, check.limit), rule.reset_after(state, now, check.limit)
            answers.append((fits, left, wait, reset, 0))
        return answers


PLANS = [
    ["5/second fixed_window", "7 per 3 seconds"],
    ["5/second fixed_window", "7 per 3 seconds sliding_window"],
    ["7 per 3 seconds", "5/second sliding_window slices 4", "9 per 2 seconds fixed_window"],
]


@pytest.mark.parametrize("seed", range(tier.steps(6, 2)))
def test_checks_that_travel_together_are_answered_as_if_alone(any_server, seed):
    """The script answers many checks in one call: those of records from after now too."""

    async def main():
        chance, clock = random.Random(seed), FakeClock(start=1_000_000.0)
        options = {"deny_cache": False, "prefix": f"walk-{next(names)}", "deadline": 10}
        store, rules = AsyncRedisStore(any_server.url, clock=clock, **options), Rules(clock)
        for texts in PLANS:
            limits = [Limit.parse(text) for text in texts]
            logs = [Limit.parse("5 per 2 seconds sliding_log"), Limit.parse("90 per 2 seconds sliding_log")]
            for step in range(tier.steps(60, 20)):
                clock.move_to(next_instant(chance, chance.choice(limits), clock.micros))
                plans = []
                for key in chance.sample("abcdefgh", 4):
                    chosen = chance.choice([limits, limits, limits[:1], logs[:1], logs[1:]])
                    plans.append(tuple([Check(f"{limit}", key, limit, chance.choice([1, 1, 2])) for limit in chosen]))
                replies = await asyncio.gather(*[store.check(plan) for plan in plans])
                for plan, answers in zip(plans, replies, strict=True):
                    assert [figures(answer) for answer in answers] == rules.check(plan), (texts, seed, step)
                    assert {answer.at for answer in answers} == {clock.micros}
        await store.close()

    asyncio.run(main())


def test_a_record_from_after_now_is_kept_until_it_has_recovered(redis_server):
    clock = FakeClock(start=1_000_000.0)
    store = RedisStore(redis_server.url, clock=clock, deadline=10, prefix=f"walk-{next(names)}")
    client, day = redis_server.client(), 86_400_000_000
    for text in (
        "5/day fixed_window", "5/day sliding_window", "5/day sliding_window slices 3", "5/day sliding_log",
        "5/day", "5/day token_bucket", "5/day leaky_bucket",
    ):  # fmt: skip
        limit = Limit.parse(text)
        layout = store.translator.layout("kept", limit)
        name = layout.name(text) + layout.subjects[0].suffix
        bucket = layout.subjects[0].stamp
        clock.move_to(20 * day)
        assert store.check((Check("kept", text, limit, 5 if bucket else 1),))[0]
        usual = client.pttl(name)
        clock.move_to(19 * day if bucket else 20 * day - 10)
        decision = store.check((Check("kept", text, limit, 1),))[0]
        assert bool(decision) != bool(bucket)
        assert client.pttl(name) >= max(1.9 * usual, decision.reset_after * 1000), text
    store.close()


EDGES = [
    ("10/minute fixed_window", 20),  # ten before the edge, and ten after it
    ("10/minute sliding_window", 10),
    ("10/minute sliding_window slices 4", 10),
    ("10/minute sliding_log", 10),
    ("100/minute sliding_log", 100),
    ("10/minute", 10),
    ("10/minute token_bucket", 10),
    ("10/minute leaky_bucket", 10),
    ("10/minute burst 1", 1),
]


def tremble(clock, stores, text):
    limit, admitted = Limit.parse(text), 0
    (store,) = stores.values()
    for _ in range(tier.steps(100)):
        for now in (600_000_000 - 1_000, 600_000_000 + 1_000):  # two milliseconds back and forth
            clock.move_to(now)
            plan = (Check("tremble", "k", limit, 1),)
            admitted += sum([store.check(plan)[0].allowed for _ in range(limit.count + 2)])
    return admitted


@pytest.mark.parametrize(("text", "most"), EDGES)
def test_a_clock_that_trembles_over_an_edge_unlocks_nothing_in_a_store(local, text, most):
    assert tremble(*local, text) == most


@pytest.mark.parametrize(("text", "most"), EDGES)
def test_a_clock_that_trembles_over_an_edge_unlocks_nothing_on_a_server(remote, text, most):
    assert tremble(*remote, text) == most


@pytest.mark.parametrize("text", [text for text, _ in EDGES])
def test_a_failover_to_a_server_a_few_milliseconds_behind_unlocks_nothing(redis_server, valkey_server, text):
    """The replica has the records and another clock: what one server admitted, the other counts."""
    limit, edge = Limit.parse(text), 600_000_000
    prefix, admitted = f"walk-{next(names)}", 0
    clocks = [FakeClock(start=0), FakeClock(start=0)]
    servers = [redis_server, valkey_server]
    stores = [
        RedisStore(server.url, clock=clock, prefix=prefix, deadline=10, deny_cache=False)
        for server, clock in zip(servers, clocks, strict=True)
    ]
    layout = stores[0].translator.layout("failover", limit)
    name = layout.name("k") + layout.subjects[0].suffix
    for round_trip in range(6):
        here, there = round_trip % 2, 1 - round_trip % 2
        clocks[here].move_to(edge + (1_000 if here == 0 else -2_000) + 100 * round_trip)  # the other is 3 ms behind
        for _ in range(limit.count + 2):
            admitted += stores[here].check((Check("failover", "k", limit, 1),))[0].allowed
        record = servers[here].client().get(name)
        servers[there].client().set(name, record, px=600_000)
    assert admitted == limit.capacity
    for store in stores:
        store.close()


def test_figures_are_whole_microseconds():
    assert (micros(None), micros(0.000_001), micros(86_400.000_001)) == (None, 1, 86_400_000_001)

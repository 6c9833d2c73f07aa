"""Every store on a clock that goes back and forth over edges: the answers of the pure rules at each step.

What the rules themselves promise there is in tests/laws/test_clocks.py.
"""

import asyncio
import itertools
import random
import uuid

import pytest

from ratekeeper import Limit, native
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.layout import LONGEST_WHOLE
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import remove
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import random_cost, walk_limits
from tests import tier
from tests.laws.models import model_of
from tests.laws.walk import moved
from tests.twins.clocks import next_instant

names = itertools.count()
LIMITS = [
    *walk_limits(),
    *[Limit.parse(text) for text in ("100/second sliding_log", "3 concurrent for 2 seconds", "70 concurrent for 1 ms")],
    parse_limits(["9/second fixed_window", "100/minute sliding_log", "20/minute"]),
    parse_limits(["9/second fixed_window", "14 per 2 seconds sliding_window slices 3"]),
]
needs_core = pytest.mark.skipif(native.core is None, reason="there is no C core")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_core), pytest.param("shm", marks=needs_core)])
def local(request):
    clock = FakeClock(start=1_000_000.0)
    name = f"clocks-{uuid.uuid4().hex}"
    urls = {"native": "memory://", "shm": f"shm://{name}?max_keys=1000"}
    store = MemoryStore(clock=clock) if request.param == "pure" else open_store(urls[request.param], clock=clock)
    yield clock, store
    store.close()
    if request.param == "shm":
        remove(name)


@pytest.fixture(params=["off", "on"])
def remote(request, any_server):
    clock = FakeClock(start=1_000_000.0)
    options = {"deny_cache": request.param == "on", "prefix": f"clocks-{next(names)}", "deadline": 10}
    store = RedisStore(any_server.url, clock=clock, **options)
    yield clock, store
    store.close()


def figures(decision):
    return (
        decision.allowed,
        decision.remaining,
        decision.retry_after,
        decision.reset_after,
        decision.delay,
        decision.at,
    )


def same(found, expected):
    return [figures(decision) for decision in found] == [figures(decision) for decision in expected]


def ask(store, way, plan):
    if way == "table":
        return [store.table(check.space, check.limit).check(check.key, check.cost) for check in plan]
    if way == "prepared":
        more = (None,) if isinstance(store, RedisStore) else ()  # on_store_error
        ready = store.prepare(tuple([(check.space, check.limit, check.cost, *more) for check in plan]))
        return ready.check(tuple([check.key for check in plan]))[1]
    return getattr(store, way)(plan)


def walk(clock, store, seed, steps):
    """Steps of each limit beside the pure rules: checks in every way, and a look after each."""
    chance = random.Random(seed)
    for number, limit in enumerate(LIMITS):
        starts = [1_000_000_000_000, 1_790_000_000_000_000]
        if not any(part.algorithm == "sliding_log" and part.count > LONGEST_WHOLE for part in limit.parts):
            starts.append(0)  # the ring of a server does not tell an entry at the instant 0 from none
        clock.move_to(chance.choice(starts))
        pure = MemoryStore(clock=clock)
        for step in range(steps):
            clock.move_to(next_instant(chance, limit, clock.micros))
            plan = (Check(f"{number}", f"{seed}", limit, random_cost(chance, limit)),)
            where = (str(limit), seed, step)
            if chance.random() < 0.1:
                at = max(0, clock.micros - chance.choice([0, 0, 1, limit.parts[0].micros // 3]))
                assert same(store.refund(plan, at), pure.refund(plan, at)), where
            else:
                way = chance.choice(["check", "check", "table", "prepared"])
                assert same(ask(store, way, plan), ask(pure, way, plan)), where
            assert same(store.peek(plan), pure.peek(plan)), where
    return steps * len(LIMITS)


@pytest.mark.parametrize("seed", range(tier.steps(8, 1)))
def test_memory_answers_as_the_rules_do(local, seed):
    walk(*local, seed, tier.steps(150, 40))


@pytest.mark.parametrize("remote", ["off"], indirect=True)  # a cached refusal neither repairs a state nor forgets units
@pytest.mark.parametrize("seed", range(tier.steps(4, 1)))
def test_a_server_answers_as_the_rules_do(remote, seed):
    walk(*remote, seed, tier.steps(150, 30))


def walk_with_model(clock, store, limit, seed, steps):
    """The same beside the exact model, which knows of steps back of less than one period."""
    chance, model, furthest = random.Random(seed), model_of(limit), clock.micros
    for step in range(steps):
        now = moved(chance, limit, clock.micros, furthest)
        clock.move_to(now)
        cost = random_cost(chance, limit)
        fits, wait = model.fits(now, cost), model.retry_after(now, cost)
        if fits:
            model.record(now, cost)
            furthest = max(furthest, now)
        delay = model.delay(now) if fits else 0
        expected = (fits, model.remaining(now), wait, model.reset_after(now), delay)
        decision = store.check((Check("model", f"{limit} {seed}", limit, cost),))[0]
        waits = None if decision.retry_after is None else round(decision.retry_after * 1e6)
        found = (
            decision.allowed,
            decision.remaining,
            waits,
            round(decision.reset_after * 1e6),
            round(decision.delay * 1e6),
        )
        assert found == expected, (str(limit), seed, step)
    return steps


SINGLE = [limit for limit in walk_limits() if isinstance(limit, Limit) and limit.micros < 10**10]


def test_memory_answers_as_the_exact_model_does(local):
    clock, store = local
    for limit in SINGLE:
        walk_with_model(clock, store, limit, 1, tier.steps(200, 30))


def test_a_server_answers_as_the_exact_model_does(remote):
    clock, store = remote
    for limit in SINGLE:
        walk_with_model(clock, store, limit, 1, tier.steps(200, 30))


class Rules:
    """The pure rules on any number of keys.  Unlike a store they forget nothing, which a clock could step back to."""

    def __init__(self, clock):
        self.clock, self.states = clock, {}

    def check(self, plan):
        now, decided = self.clock.micros, []
        for check in plan:
            old = self.states.get((check.space, check.key), check.limit.rule.EMPTY)
            decided.append((check, old, *check.limit.rule.decide(old, now, check.limit, check.cost)))
        taken, answers = all(fits for *_, fits in decided), []
        for check, old, new, fits in decided:
            rule, state = check.limit.rule, new if taken or not fits else old
            self.states[check.space, check.key] = state
            wait = 0 if fits else rule.retry_after(state, now, check.limit, check.cost) / 1e6
            left, reset = rule.remaining(state, now, check.limit), rule.reset_after(state, now, check.limit)
            answers.append((fits, left, wait, reset / 1e6, 0.0, now))
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
        options = {"deny_cache": False, "prefix": f"clocks-{next(names)}", "deadline": 10}
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
                found = await asyncio.gather(*[store.check(plan) for plan in plans])
                for plan, answers in zip(plans, found, strict=True):
                    assert [figures(answer) for answer in answers] == rules.check(plan), (texts, seed, step)
        await store.close()

    asyncio.run(main())


def test_a_record_from_after_now_is_kept_until_it_has_recovered(redis_server):
    clock = FakeClock(start=1_000_000.0)
    store = RedisStore(redis_server.url, clock=clock, deadline=10, prefix=f"clocks-{next(names)}")
    client = redis_server.client()
    for text in ("5/day fixed_window", "5/day sliding_window", "5/day sliding_window slices 3", "5/day sliding_log"):
        limit = Limit.parse(text)
        layout = store.translator.layout("kept", limit)
        name = layout.name("k") + layout.subjects[0].suffix
        clock.move_to(86_400_000_000 * 20)
        assert store.check((Check("kept", "k", limit, 1),))[0]
        usual = client.pttl(name)
        clock.move_to(86_400_000_000 * 20 - 10)
        decision = store.check((Check("kept", "k", limit, 1),))[0]
        assert decision
        assert client.pttl(name) >= max(1.9 * usual, decision.reset_after * 1000)
    store.close()


@pytest.mark.parametrize(
    "text", ["10/minute fixed_window", "10/minute sliding_window", "10/minute sliding_log", "10/minute"]
)
def test_a_clock_that_trembles_over_an_edge_unlocks_nothing_in_a_store(local, text):
    tremble(*local, text)


@pytest.mark.parametrize(
    "text", ["10/minute fixed_window", "10/minute sliding_window", "10/minute sliding_log", "10/minute"]
)
def test_a_clock_that_trembles_over_an_edge_unlocks_nothing_on_a_server(remote, text):
    tremble(*remote, text)


def tremble(clock, store, text):
    limit, admitted = Limit.parse(text), 0
    for _ in range(tier.steps(100)):
        for now in (600_000_000 - 1_000, 600_000_000 + 1_000):
            clock.move_to(now)
            admitted += sum(bool(store.check((Check("tremble", "k", limit, 1),))[0]) for _ in range(12))
    assert admitted == (20 if "fixed" in text else 10)

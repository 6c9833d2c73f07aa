"""An event loop on a real server: tasks share commands, loops follow one another, callers are cancelled."""

import asyncio
import itertools
import random

import pytest

from ratekeeper import AsyncLimiter, InvalidInput, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.request import CheckRequest
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier

prefixes = itertools.count()
ALL = ["gcra", "token_bucket", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"]


@pytest.fixture
def store(redis_server):
    made = RedisStore(redis_server.url, prefix=f"loop{next(prefixes)}", deadline=10)
    yield made
    made.close()


# While the server is idle, of 62 the first 32 go ahead; and one alone, if the last one was alone too.
@pytest.mark.parametrize(("before", "many", "commands"), [(2, 4, 1), (2, 10, 2), (1, 4, 2)])
def test_a_loop_sends_one_command_for_all_callers_of_a_turn(redis_server, before, many, commands):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"loop{next(prefixes)}", deadline=10)
        limiters = [AsyncLimiter(Limit(40, "50 days", algorithm=name), store=store) for name in ALL]
        for _ in range(2):  # connected
            await asyncio.gather(*[limiters[0].check("warm") for _ in range(before)])
        client = redis_server.client()
        client.config_resetstat()
        calls = [limiter.check("k") for limiter in limiters for _ in range(many)]
        calls += [limiters[0].peek("k"), limiters[0].refund("other")]
        answers = await asyncio.gather(*calls)
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == commands
        for number in range(len(ALL)):
            part = answers[number * many : number * many + many]
            assert [decision.remaining for decision in part] == list(range(39, 39 - many, -1))
        assert answers[len(ALL) * many].remaining == 40 - many
        await store.close()

    asyncio.run(main())


def test_keys_and_costs_that_must_be_looked_at(redis_server):
    """Keys of other kinds are counted by what they are; a cost that is none takes nothing."""
    prefix = f"loop{next(prefixes)}"
    limiter = Limiter("9 per 50 days", store=RedisStore(redis_server.url, prefix=prefix, deadline=10))
    kinds = ["k" * 300, b"k", ("k", 1), "k"]

    class Cost(int):
        pass

    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=prefix, deadline=10)
        other = AsyncLimiter("9 per 50 days", store=store)
        for wrong in (0, -1, 1.5, "1", None, 2**63):
            with pytest.raises(InvalidInput):
                limiter.check("k", wrong)
            with pytest.raises(InvalidInput):
                await other.check("k", wrong)
        for key in kinds:
            assert limiter.check(key, Cost(2)).remaining == 7
            assert (await other.check(key, Cost(2))).remaining == 5
        assert (await other.check(bytearray(b"k"))).remaining == 4
        await store.close()

    asyncio.run(main())
    limiter.store.close()


def test_one_that_is_likely_to_stay_alone_is_sent_at_once(redis_server):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"loop{next(prefixes)}", deadline=10)
        link, layout = store.connections().server, store.translator.layout("s", Limit.parse("5/second"))

        def ask():
            return link.ask(CheckRequest(layout, "k", 1))

        await ask()
        first, second = ask(), ask()
        assert len(link.pending) == 1  # the first one alone; the second finds the server busy
        link.flush()
        await asyncio.gather(first, second)
        third = ask()
        assert len(link.pending) == 1  # the last one was not alone
        await third
        last = ask()
        assert link.pending == []
        await last
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(tier.steps(6, 2)))
def test_plans_of_one_command_are_decided_like_one_after_the_other(redis_server, seed):
    chance = random.Random(seed)
    limits = [Limit(chance.choice([3, 9]), "minute", algorithm=name) for name in ALL]
    limits += [Limit.parse("150/minute sliding_log"), parse_limits(["5/second", "20/minute", "30/hour fixed_window"])]

    def some_plan():
        if chance.random() < 0.6:  # many that differ in their key only
            limit, cost = chance.choice(limits), chance.choice([1, 1, 1, 2])
            return [(Check(str(limit), str(chance.randrange(3)), limit, cost),) for _ in range(chance.randrange(1, 5))]
        subjects = chance.choices(limits, k=chance.choice([2, 3, 3, 4]))
        return [
            tuple([Check(str(limit), str(chance.randrange(3)), limit, chance.choice([1, 2])) for limit in subjects])
        ]

    async def main():
        clock = FakeClock()
        model = MemoryStore(clock=clock)
        options = {"prefix": f"loop{next(prefixes)}", "deadline": 10, "deny_cache": False}
        store = AsyncRedisStore(redis_server.url, clock=clock, **options)
        refused = 0
        for _ in range(60):
            clock.advance(chance.choice([0.0, 0.1, 1.0, 7.0, 60.0]))
            plans = [plan for _ in range(6) for plan in some_plan()]
            answers = await asyncio.gather(*[ask(store, plan) for plan in plans])
            for plan, answer in zip(plans, answers, strict=True):
                expected = model.check(plan)
                assert [figures(one) for one in answer] == [figures(one) for one in expected], plan
                refused += not all(answer)
        assert refused > 50
        await store.close()

    async def ask(store, plan):
        return await store.check(plan)

    def figures(one):
        return one.allowed, one.remaining, one.retry_after, one.reset_after, one.delay

    asyncio.run(main())


def test_a_cancelled_caller_neither_blocks_nor_gets_another_answer(redis_server):
    async def main():
        store = AsyncRedisStore(redis_server.url, prefix=f"loop{next(prefixes)}", deadline=10)
        limiter = AsyncLimiter("100000 per 50 days", store=store)
        await limiter.check("warm")
        kept = cancelled = 0
        for turn in range(300):
            tasks = [asyncio.ensure_future(limiter.check(f"{turn} {number}", cost=number + 1)) for number in range(8)]
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            for number in range(turn % 8):
                tasks[number].cancel()
            for number, answer in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
                if isinstance(answer, asyncio.CancelledError):
                    cancelled += 1
                else:
                    kept += 1
                    assert answer.remaining == 100_000 - number - 1
        assert kept + cancelled == 2400
        assert cancelled > 500
        await store.close()

    asyncio.run(main())


def test_a_store_serves_one_loop_after_the_other(redis_server):
    store = AsyncRedisStore(redis_server.url, prefix=f"loop{next(prefixes)}", deadline=10)
    limiter = AsyncLimiter("5 per 50 days", store=store)

    async def once():
        try:
            return await limiter.check("k")
        finally:
            await store.close()

    assert [asyncio.run(once()).remaining for _ in range(3)] == [4, 3, 2]

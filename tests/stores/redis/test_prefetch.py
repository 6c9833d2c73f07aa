"""Prefetched quota: fewer round trips for a hot key, and never more admitted than the limit promises."""

import asyncio
import itertools
import os
import random
import subprocess
import sys

import pytest

from ratekeeper import AsyncLimiter, InvalidInput, InvalidStore, Limit, Limiter
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.prefetch import LASTS, returned
from ratekeeper.stores.redis.request import PrefetchRequest
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from tests import tier
from tests.stores.redis.test_refusal_cache import Counted

prefixes = itertools.count()


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


def node(server, clock, prefix, **options):
    return RedisStore(server.url, clock=clock, prefix=prefix, deadline=10, **options)


def most_in_any_interval(admitted, burst, rate):
    """How far the admissions pass ``burst + rate * time`` in their worst interval; at most 0 is within the limit."""
    worst, level, low = 0.0, 0, float("inf")
    for at, cost in admitted:  # the largest of sum(cost) - rate * (t2 - t1) over all pairs
        low = min(low, level - rate * at)
        level += cost
        worst = max(worst, level - rate * at - low)
    return worst - burst


@pytest.mark.parametrize("prefetch", ["auto", 5, 50])
@pytest.mark.parametrize("text", ["100/second", "50/second burst 200 token_bucket", "1000/minute burst 20"])
@pytest.mark.parametrize("seed", range(tier.steps(3, 2)))
def test_several_nodes_together_keep_the_limit_exactly(redis_server, clock, text, prefetch, seed):
    chance = random.Random(f"{text} {prefetch} {seed}")
    prefix = f"prefetch{next(prefixes)}"
    stores = [node(redis_server, clock, prefix) for _ in range(3)]
    limit = Limit.parse(text)
    nodes = [Limiter(limit, store=store, name="hot", prefetch=prefetch) for store in stores]
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
    limiter = Limiter("10000/second", store=store, prefetch="auto")
    allowed = 0
    for _ in range(5000):
        clock.move_to(clock.micros + 200)  # half of what the limit admits
        allowed += limiter.check("k").allowed
    assert allowed == 5000
    assert counted.times < 200
    store.close()


def test_a_windows_quota_ends_with_its_window(redis_server, clock):
    prefix = f"prefetch{next(prefixes)}"
    stores = [node(redis_server, clock, prefix) for _ in range(2)]
    nodes = [Limiter("100/second fixed_window", store=store, name="w", prefetch=40) for store in stores]
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
    prefix = f"prefetch{next(prefixes)}"
    store, other = node(redis_server, clock, prefix), node(redis_server, clock, prefix)
    limiter = Limiter("1000 per 50 days", store=store, name="r", prefetch=100)
    seen = Limiter("1000 per 50 days", store=other, name="r")
    assert seen.check("k").remaining == 999
    for _ in range(3):
        limiter.check("k")
    assert seen.peek("k").remaining == 999 - 1 - 101  # one asked alone, then one with a chunk of 100
    limiter.check("k", cost=100)  # more than is left: that comes back, and a new chunk is taken
    assert seen.peek("k").remaining == 999 - 3 - 100 - 100
    clock.move_to(clock.micros + LASTS)
    limiter.check("k")  # its time is over: the rest comes back, and a new chunk is taken
    assert seen.peek("k").remaining == 999 - 3 - 100 - 1 - 100
    store.close()
    assert seen.peek("k").remaining == 999 - 3 - 100 - 1
    other.close()


def test_loops_ask_once_for_all_who_wait(redis_server, clock):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"prefetch{next(prefixes)}", deadline=10)
        limiter = AsyncLimiter("300 per 50 days", store=store, prefetch=20)
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


def test_a_forked_child_serves_none_of_its_parents_quotas(redis_server, clock):
    store = node(redis_server, clock, f"lease{next(prefixes)}")
    limiter = Limiter("1000 per 50 days", store=store, prefetch=100)
    limiter.check("k")
    limiter.check("k")  # holds 100 more
    child = os.fork()
    if not child:
        code = 1
        try:
            held = limiter.check.__self__.quotas.by_key
            code = 0 if not held and limiter.check("k").reason == "" else 2
            store.close()  # what the child prefetched itself is given back
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert limiter.peek("k").remaining == 1000 - 1 - 101 - 1
    store.close()


def test_mistakes_are_told(redis_server):
    advice = "Write prefetch: quota that is taken in advance. A lease is a slot of a concurrency limit."
    for make in (Limiter, AsyncLimiter):
        with pytest.raises(InvalidInput) as caught:
            make("5/minute", store=redis_server.url, lease="auto")
        assert str(caught.value).endswith(f", got 'lease'. {advice}")
        with pytest.raises(InvalidStore) as caught:
            make("5/minute", store=f"{redis_server.url}?lease=auto")
        assert str(caught.value) == f"store redis://: expected a known option, got 'lease'. {advice}"
    with pytest.raises(InvalidStore) as caught:
        Limiter("5/minute sliding_log", store=redis_server.url, prefetch="auto")
    assert str(caught.value) == (
        "prefetch: expected one limit of gcra, token_bucket, fixed_window whose burst takes 20 ms or more to recover, "
        "got '5/minute sliding_log'."
    )
    with pytest.raises(InvalidStore) as caught:
        Limiter("5/minute", store=redis_server.url, prefetch=1)
    assert str(caught.value) == "limiter: expected prefetch to be 'auto' or a whole number above 1, got 1."


@pytest.mark.parametrize("key", ["k", "k" * 300, b"k", ("k", 1)], ids=["text", "long", "bytes", "tuple"])
def test_what_is_given_back_goes_to_the_key_it_was_taken_from(redis_server, clock, key):
    prefix = f"prefetch{next(prefixes)}"
    store, other = node(redis_server, clock, prefix), node(redis_server, clock, prefix)
    prefetching = Limiter("100/hour fixed_window", store=store, name="n", prefetch=10)
    assert all(prefetching.check(key) for _ in range(5))
    store.close()
    assert Limiter("100/hour fixed_window", store=other, name="n").peek(key).remaining == 95
    other.close()


@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
def test_a_prefetched_quota_is_served_without_asking(redis_server, clock, kind):
    async def answered(call, *arguments):
        answer = call(*arguments)
        return await answer if hasattr(answer, "__await__") else answer

    async def main():
        store = kind(redis_server.url, clock=clock, prefix=f"prefetch{next(prefixes)}", deadline=10)
        table = store.table("hot", Limit.parse("1000/hour fixed_window"), prefetch=10)
        assert table.check_now("k") is None  # nothing was prefetched yet
        assert await answered(table.check, "k")
        assert await answered(table.check, "k")  # 10 more are debited
        assert [bool(table.check_now(key, cost)) for key, cost in (("k", 4), ("k", 6), ("k", 1))] == [True, True, False]
        assert await answered(table.check, "k")
        assert table.check_now("k").remaining < 1000
        clock.advance(LASTS / 1e6)
        assert table.check_now("k") is None  # it has ended
        await answered(store.close)

    asyncio.run(main())


SIZES = ["auto", 100]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", ["2000/day", "2000/day token_bucket", "2000/day fixed_window"])
def test_closing_a_limiter_gives_all_of_its_quotas_back(redis_server, clock, text, size):
    """The limiter dropped its table before the store could give back what that had prefetched."""
    prefix = f"prefetch{next(prefixes)}"

    def url(**options):
        return f"{redis_server.url}?" + "&".join(f"{name}={value}" for name, value in options.items())

    def left(name):
        other = Limiter(text, store=url(prefix=prefix), name=name, clock=clock, deadline=10)
        try:
            return other.peek("k").remaining
        finally:
            other.close()

    limiter = Limiter(text, store=url(prefix=prefix), name="sync", clock=clock, prefetch=size, deadline=10)
    for _ in range(60):
        clock.advance(0.001)
        assert limiter.check("k")
    assert left("sync") < 1940  # so that there is something to give back
    limiter.close()
    assert left("sync") == 1940

    async def main():
        options = {"prefix": prefix, "prefetch": size}
        limiter = AsyncLimiter(text, store=url(**options), name="async", clock=clock, deadline=10)
        for _ in range(60):
            clock.advance(0.001)
            assert await limiter.check("k")
        assert left("async") < 1940
        await limiter.close()
        assert left("async") == 1940

    asyncio.run(main())


@pytest.mark.parametrize("kind", [RedisStore, AsyncRedisStore])
def test_a_limiter_that_shares_its_store_gives_back_when_it_is_closed(redis_server, clock, kind):
    async def finished(outcome):
        return await outcome if hasattr(outcome, "__await__") else outcome

    async def main():
        store = kind(redis_server.url, clock=clock, prefix=f"prefetch{next(prefixes)}", deadline=10)
        make = Limiter if kind is RedisStore else AsyncLimiter
        prefetching = make("1000/day", store=store, name="n", prefetch=50)
        other = make("1000/day", store=store, name="n")
        for _ in range(3):
            await finished(prefetching.check("k"))
        assert (await finished(other.peek("k"))).remaining == 1000 - 2 - 50
        await finished(prefetching.close())
        assert (await finished(other.peek("k"))).remaining == 1000 - 3
        await finished(store.close())

    asyncio.run(main())


def test_closing_gives_thousands_of_keys_back_in_few_commands(redis_server, clock):
    store = node(redis_server, clock, f"prefetch{next(prefixes)}")
    limiter = Limiter("1000/day", store=store, name="n", prefetch=50)
    keys = [f"key {number}" for number in range(500)]
    for key in keys * 2:
        assert limiter.check(key)
    client = redis_server.client()
    client.config_resetstat()
    limiter.close()
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 8  # of up to 64 keys each
    seen = Limiter("1000/day", store=store, name="n")
    assert {seen.peek(key).remaining for key in keys} == {998}
    store.close()


def test_a_process_that_ends_without_closing_gives_back(redis_server):
    program = (
        "from ratekeeper import Limiter\n"
        f"limiter = Limiter('1000/day', store='{redis_server.url}?deadline=10', name='ends', prefetch=50)\n"
        "for _ in range(3): limiter.check('k')\n"
        "print(limiter.peek('k').remaining)\n"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (printed.stdout, printed.stderr) == ("948\n", "")
    seen = Limiter("1000/day", store=f"{redis_server.url}?deadline=10", name="ends")
    assert seen.peek("k").remaining == 997
    seen.close()


WALKED = ["100/second", "7/minute burst 900", "999983 per 7 hours token_bucket", "50/second fixed_window"]


@pytest.mark.parametrize("text", WALKED)
def test_the_server_gives_back_what_the_rule_says(any_server, clock, text):
    """The twins: ``returned`` here, and the one in upkeep.lua, over random walks of debits and late refunds."""
    store = node(any_server, clock, f"prefetch{next(prefixes)}")
    limit = Limit.parse(text)
    layout = store.translator.layout("walk", limit)
    chance, state, debits, differs = random.Random(text), limit.rule.EMPTY, [], 0
    for _ in range(tier.steps(600, 300)):
        clock.move_to(clock.micros + chance.choice([0, 1, 999, chance.randrange(50_000), chance.randrange(3_000_000)]))
        now = clock.micros
        unused, at = debits.pop(chance.randrange(len(debits))) if debits and chance.random() < 0.6 else (0, 0)
        least = chance.choice([0, 1, 1, 2, limit.capacity // 3 + 1])
        cost = least + chance.choice([0, 1, 5, limit.capacity // 2]) if least else 0
        request = PrefetchRequest(layout, "k", least, cost, unused, at)
        answer, taken, _ = store.ask(Read(request))
        before = state
        if unused:
            state = returned(state, now, limit, unused, at)
            differs += state != before
        expected = 0
        for wanted in dict.fromkeys((cost, least)) if least else ():
            state, fits = limit.rule.decide(state, now, limit, wanted)
            if fits:
                expected = wanted
                break
        assert (taken, answer.allowed, answer.at) == (expected, bool(expected), now)
        assert answer.remaining == limit.rule.remaining(state, now, limit)
        assert answer.reset_after == limit.rule.reset_after(state, now, limit) / 1e6
        if taken:
            debits.append((chance.randrange(1, taken + 1), now))
    assert differs > 10
    store.close()


class Read:
    """A request of which the test sees the whole answer."""

    def __init__(self, request):
        self.request = request
        self.read = request.answer

    def __getattr__(self, name):
        return getattr(self.request, name)


@pytest.mark.parametrize("text", ["100/second burst 400", "50/second burst 60 token_bucket"])
def test_a_give_back_that_is_late_breaks_no_bound(redis_server, clock, text):
    """A quota of long ago came back into a bucket that had refilled: 506 were admitted where 420 may be."""
    prefix = f"prefetch{next(prefixes)}"
    limit = Limit.parse(text)
    rate = limit.drain / limit.unit * 1e6
    for late in (0, 0.05, 0.19, 1.0, 5.0, 60.0):
        store, other = (node(redis_server, clock, prefix, deny_cache=False) for _ in range(2))
        prefetching = Limiter(limit, store=store, name=f"late {late}", prefetch=1000)
        greedy = Limiter(limit, store=other, name=f"late {late}", prefetch=1000)
        prefetching.check("k")
        prefetching.check("k")  # holds a quarter of the burst
        held = prefetching.check.__self__.quotas.by_key["k"].left
        clock.advance(late)
        admitted = [(clock.micros, 1) for _ in range(limit.burst * 2) if greedy.check("k")]
        store.close()  # gives it back now
        admitted += [(clock.micros, 1) for _ in range(limit.burst * 2) if greedy.check("k")]
        assert held > 10
        assert most_in_any_interval([(0.0, 0), *((at / 1e6, cost) for at, cost in admitted)], limit.burst, rate) <= 1e-6
        other.close()


@pytest.mark.parametrize("seed", range(tier.steps(12, 4)))
def test_many_nodes_with_delayed_give_backs_keep_the_limit(redis_server, clock, seed):
    """Requests of eight nodes reach the server when they like: each node's view of time is its own."""
    chance = random.Random(seed)
    limit = Limit.parse(chance.choice(["200/second burst 400", "1000/second burst 250 token_bucket"]))
    prefix = f"prefetch{next(prefixes)}"
    stores = [node(redis_server, clock, prefix, deny_cache=False) for _ in range(8)]
    nodes = [Limiter(limit, store=store, name="n", prefetch=chance.choice(["auto", 200])) for store in stores]
    admitted, returning = [], []
    for _ in range(tier.steps(2500, 900)):
        clock.move_to(clock.micros + chance.choice([0, 0, 0, 100, 5_000, chance.randrange(60_000)]))
        limiter = chance.choice(nodes)
        if chance.random() < 0.05:  # give-backs that hang in the network
            table = limiter.check.__self__
            returning += [(table.store, request) for request in table.quotas.leftovers(table.layout)]
        elif chance.random() < 0.05 and returning:
            store, request = returning.pop(chance.randrange(len(returning)))
            store.send_all([request])
        elif limiter.check("k"):
            admitted.append((clock.micros, 1))
    assert most_in_any_interval(admitted, limit.burst, limit.drain / limit.unit) <= 1e-6
    for store in stores:
        store.close()

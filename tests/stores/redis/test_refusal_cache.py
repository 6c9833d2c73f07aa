"""Refusals that are remembered: not one admission lost or gained, and hardly a round trip."""

import asyncio
import os
import random
import select
from contextlib import AsyncExitStack, closing

import pytest
import uvloop

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.limit import empty_state
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.refusal_cache import LONGEST, MOST, RefusalCache
from ratekeeper.stores.redis.request import CheckRequest
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.testing.contract import random_cost, walk_limits
from ratekeeper.units import SECOND
from tests.servers import Server

numbers = iter(range(1_000_000))


@pytest.fixture
def clock():
    return FakeClock(start=1_000_000.0)


def open_store(server, clock, **options):
    return RedisStore(server.url, clock=clock, prefix=f"refusals{next(numbers)}", deadline=10, **options)


class Counted:
    """How often the store was asked."""

    def __init__(self, store):
        self.times = 0
        speak = store.connections.speak

        def count(link, request, since):
            self.times += 1
            return speak(link, request, since)

        store.connections.speak = count


def test_a_remembered_refusal_costs_no_round_trip_and_ends_on_time(redis_server, clock):
    store = open_store(redis_server, clock)
    counted = Counted(store)
    limiter = Limiter("10/second burst 2", store=store)
    assert limiter.check("k", cost=2)
    assert [bool(limiter.check("k")) for _ in range(100)] == [False] * 100
    assert counted.times == 2
    clock.advance(0.099_999)
    late = limiter.check("k")
    assert (late.allowed, late.retry_after, late.remaining) == (False, 0.000_001, 0)
    assert counted.times == 2
    clock.advance(0.000_001)
    assert limiter.check("k")
    assert counted.times == 3
    store.close()


def test_a_refusal_of_a_long_log_is_told_again_only_while_nothing_has_left_the_window(redis_server, clock):
    store = open_store(redis_server, clock)
    counted, limiter = Counted(store), Limiter("100/second sliding_log", store=store)
    for at, cost, left, asked in ((0, 60, 40, 1), (4, 30, 10, 2), (5, 80, 10, 3), (9, 80, 10, 3), (11, 80, 70, 4)):
        clock.move_to(100 * SECOND + at * SECOND // 10)
        decision = limiter.check("k", cost)
        assert (decision.remaining, counted.times) == (left, asked)
    assert (decision.allowed, decision.retry_after) == (False, 0.3)
    store.close()


def test_a_refusal_too_short_to_cache_ends_an_earlier_one(redis_server, clock):
    """The clock steps back, and the key is mended: what was known of it before is outdated."""
    store = open_store(redis_server, clock)
    limiter, began = Limiter("5 per 7 microseconds", store=store), clock.micros
    assert limiter.check("k", cost=5)
    assert limiter.check("k", cost=6).retry_after is None  # holds for one second
    clock.move_to(began - 20)
    assert limiter.check("k").retry_after == 0.000_007
    clock.move_to(began)
    assert limiter.check("k", cost=6).reset_after == 0.0
    store.close()


def test_an_admission_tells_when_the_next_would_be_refused(redis_server, clock):
    store = open_store(redis_server, clock)
    counted = Counted(store)
    limiter = Limiter("10/second burst 2", store=store)
    assert [bool(limiter.check("k", cost=2)), bool(limiter.check("k"))] == [True, False]
    for asked in (3, 4, 5):
        clock.advance(0.1)
        assert [bool(limiter.check("k")) for _ in range(5)] == [True] + [False] * 4
        assert counted.times == asked
    clock.advance(10)
    assert [bool(limiter.check("k")) for _ in range(5)] == [True] * 2 + [False] * 3
    store.close()


@pytest.mark.parametrize("cancelled", ["", "before it was sent", "after it was sent"])
def test_one_asks_for_all_when_a_refusal_is_over(redis_server, clock, cancelled):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"refusals{next(numbers)}", deadline=10)
        limiter = AsyncLimiter("10/second burst 2", store=store)
        assert await limiter.check("k", cost=2)
        assert not await limiter.check("k")
        asked = []
        link = store.connections().server
        ask = link.ask
        if cancelled == "before it was sent":  # at once, unless the server has something to do
            busy = ask(CheckRequest(store.translator.layout("other", Limit.parse("5/second")), "k", 1))
            link.flush()
        link.ask = lambda request: asked.append(request) or ask(request)
        clock.advance(0.1)
        tasks = [asyncio.ensure_future(limiter.check("k")) for _ in range(20)]
        await asyncio.sleep(0)
        assert [len(asked), len(link.pending)] == [1, cancelled == "before it was sent"]
        if cancelled:
            tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        if cancelled:  # the others ask for themselves
            assert isinstance(answers.pop(0), asyncio.CancelledError)
        if cancelled == "before it was sent":
            assert (await busy)[0].allowed
        is_taken = cancelled == "after it was sent"  # by the one that did not wait for its answer
        assert [answer.allowed for answer in answers] == [not is_taken] + [False] * (len(answers) - 1)
        assert {answer.retry_after for answer in answers[1:]} == {0.1}
        if cancelled == "after it was sent":  # what it was told may come before they ask
            assert 1 <= len(asked) <= 20
        else:
            assert len(asked) == (20 if cancelled else 1)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_that_is_there_is_taken_before_the_loop_looks(redis_server, clock, loop):
    async def main(store):
        limiter = AsyncLimiter("10/second burst 2", store=store)
        assert await limiter.check("k", cost=2)
        assert not await limiter.check("k")
        clock.advance(0.1)
        first = asyncio.ensure_future(limiter.check("k"))
        await asyncio.sleep(0)
        link = store.connections().server
        assert select.select([link.wire.file], [], [], 10)[0]  # the loop stands still meanwhile
        with pytest.raises(StopIteration) as second:  # not one step of waiting
            limiter.check("k").send(None)
        assert (second.value.value.allowed, second.value.value.retry_after) == (False, 0.1)
        assert not first.done()
        assert await first
        wire = link.wire
        wire.transport.close()
        wire.file, other = os.pipe()  # the number may be another's by now
        os.write(other, b"not ours")
        wire.glance()
        assert os.read(wire.file, 100) == b"not ours"
        os.close(wire.file)
        os.close(other)

    async def closed():  # uvloop cannot be closed after an error otherwise
        async with AsyncExitStack() as stack:
            store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"refusals{next(numbers)}", deadline=10)
            stack.push_async_callback(store.close)
            await main(store)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(closed())


def test_nobody_waits_long_for_the_answer_to_another(redis_server, clock):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"refusals{next(numbers)}", deadline=10)
        limiter = AsyncLimiter("10/second burst 2", store=store)
        assert await limiter.check("k", cost=2)
        assert not await limiter.check("k")
        link, loop, timers = store.connections().server, asyncio.get_running_loop(), []
        ask, link.ask = link.ask, lambda request: loop.create_future()  # never answered
        loop.call_later = lambda seconds, *call: timers.append((seconds, *call)) or asyncio.Handle(print, (), loop)
        clock.advance(0.1)
        first = asyncio.ensure_future(limiter.check("k"))
        others = [asyncio.ensure_future(limiter.check("k")) for _ in range(5)]
        await asyncio.sleep(0)
        link.ask = ask
        ((seconds, let_go, waiting),) = timers
        assert (seconds, len(waiting)) == (1.0, 5)  # a tenth of the deadline
        let_go(waiting)
        del loop.call_later
        answers = await asyncio.gather(*others)
        assert [answer.allowed for answer in answers] == [True] + [False] * 4
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not await limiter.check("k")
        await store.close()

    asyncio.run(main())


def test_a_server_that_dies_when_a_refusal_is_over_holds_nobody_up(clock):
    server = Server()

    async def main():
        store = AsyncRedisStore(server.url, clock=clock, deadline=10)
        limiter = AsyncLimiter("10/second burst 2", store=store)
        assert await limiter.check("k", cost=2)
        assert not await limiter.check("k")
        clock.advance(0.1)
        server.kill()
        answers = await asyncio.gather(*[limiter.check("k") for _ in range(20)])
        assert {answer.reason.partition(": ")[0] for answer in answers} == {"local"}
        assert [answer.allowed for answer in answers] == [False] * 20  # as the server had told it, but for its share
        await store.close()

    try:
        asyncio.run(main())
    finally:
        server.close()


def test_who_may_be_admitted_or_has_another_loop_asks_for_itself(redis_server, clock):
    async def main():
        store = AsyncRedisStore(redis_server.url, clock=clock, prefix=f"refusals{next(numbers)}", deadline=10)
        limiter = AsyncLimiter("10/second burst 3", store=store)
        refusals = store.translator.layout(limiter.name, limiter.limits).refusals
        with closing(asyncio.new_event_loop()) as other:
            for key, loop, cost in (("a", asyncio.get_running_loop(), 1), ("b", other, 2)):
                assert await limiter.check(key, cost=3)
                assert not await limiter.check(key, cost=2)
                clock.advance(0.2)
                refusals.by_key[key].asking = loop, []
                assert await limiter.check(key, cost)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("by_table", [False, True])
def test_answers_are_those_of_the_rule_with_and_without_a_round_trip(redis_server, clock, by_table):
    store = open_store(redis_server, clock)
    counted = Counted(store)
    asked = refused = 0
    for seed, limit in enumerate([*walk_limits(), Limit.parse("200/second sliding_log")]):
        chance = random.Random(seed)
        state, key = empty_state(limit), f"walker {seed}"
        micros = min(part.micros for part in getattr(limit, "limits", (limit,)))
        table = store.table("walk", limit)
        for _ in range(100):
            clock.move_to(clock.micros + chance.choice([0, 0, 1, chance.randrange(micros // 5 + 2)]))
            now, cost = clock.micros, random_cost(chance, limit)
            state, allowed = limit.rule.decide(state, now, limit, cost)
            if by_table:
                decision = table.check(key, cost)
            else:
                (decision,) = store.check((Check("walk", key, limit, cost),))
            wait = limit.rule.retry_after(state, now, limit, cost)
            told = 0.0 if allowed else None if wait is None else wait / SECOND
            assert (decision.allowed, decision.retry_after) == (allowed, told)
            assert decision.remaining == limit.rule.remaining(state, now, limit)
            asked, refused = asked + 1, refused + (not allowed)
    assert counted.times < asked - refused / 4
    store.close()


def test_a_smaller_cost_is_asked_and_may_pass(redis_server, clock):
    store = open_store(redis_server, clock)
    limiter = Limiter("5/minute", store=store)
    assert limiter.check("k", cost=3)
    assert not limiter.check("k", cost=4)
    assert limiter.check("k", cost=2)
    assert limiter.check("k", cost=4).remaining == 0
    store.close()


def test_what_gives_back_ends_a_refusal(redis_server, clock):
    store = open_store(redis_server, clock)
    limiter = Limiter("5/minute fixed_window", store=store, name="n")
    raised = Limiter("6/minute fixed_window", store=store, name="n")
    for give in (lambda: limiter.refund("k"), lambda: limiter.reset("k"), lambda: raised.refund("k")):
        limiter.reset("k")
        assert limiter.check("k", cost=5)
        assert not limiter.check("k")
        give()
        assert limiter.check("k")
    limiter.reset("k")
    assert limiter.check("k", cost=5)
    assert not limiter.check("k")
    assert raised.check("k")  # another limit never takes a refusal for its own
    store.close()


def test_what_another_node_gives_back_is_seen_after_a_second_at_most(redis_server, clock):
    store = open_store(redis_server, clock)
    other = RedisStore(redis_server.url, clock=clock, prefix=store.settings.prefix, deadline=10)
    limiter, elsewhere = (Limiter("5/hour", store=each, name="n") for each in (store, other))
    assert limiter.check("k", cost=5)
    assert not limiter.check("k")
    elsewhere.reset("k")
    assert not limiter.check("k")
    clock.advance(LONGEST / 1e9)
    assert limiter.check("k")
    store.close()
    other.close()


def test_a_plan_is_refused_by_what_is_known_of_one_of_its_checks(redis_server, clock):
    store = open_store(redis_server, clock)
    counted = Counted(store)
    roomy, tight = Limit.parse("100/minute"), Limit.parse("2/minute")
    plan = (Check("ip", "1.2.3.4", roomy, 1), Check("user", "me", tight, 1))
    assert all(store.check(plan))
    assert all(store.check(plan))
    answers = [store.check(plan) for _ in range(10)]
    assert counted.times == 3
    assert {tuple(decision.allowed for decision in answer) for answer in answers} == {(True, False)}
    assert {tuple(decision.remaining for decision in answer) for answer in answers} == {(98, 0)}
    fresh = (Check("ip", "5.6.7.8", roomy, 1), plan[1])  # nothing is known of this address
    assert [decision.remaining for decision in store.check(fresh)] == [100, 0]
    assert counted.times == 4
    store.close()


def test_it_can_be_switched_off(redis_server, clock):
    store = open_store(redis_server, clock, deny_cache=False)
    counted = Counted(store)
    limiter = Limiter("1/minute", store=store)
    assert [bool(limiter.check("k")) for _ in range(5)] == [True] + [False] * 4
    assert counted.times == 5
    store.close()


def test_the_memory_of_refusals_is_bounded(redis_server, clock):
    store = open_store(redis_server, clock)
    limit = Limit.parse("1/minute")
    refusals = store.translator.layout("s", limit).refusals
    for number in range(2 * MOST):
        refusals.note(f"k{number}", limit, 2, 0, clock.micros, clock.nanos())
        assert len(refusals.by_key) <= MOST
    store.close()


def test_as_long_as_one_asks_for_all_one_can_be_admitted_at_most():
    chance, worth = random.Random(8), 0
    for limit in [*walk_limits(), Limit.parse("10/second"), Limit.parse("2 per 5 seconds sliding_log")]:
        rule, refusals = limit.rule, RefusalCache(enabled=True)
        state, now = empty_state(limit), 10**12
        for _ in range(60):
            now += chance.choice([0, 1, chance.randrange(min(part.micros for part in limit.parts))])
            cost = random_cost(chance, limit)
            state, allowed = rule.decide(state, now, limit, cost)
            if allowed:
                continue
            refusals.note("k", limit, cost, state, now, sent=now * 1000)
            refusal = refusals.by_key.pop("k", None)
            if refusal is None or not refusal.is_just_over(limit, cost, refusal.until):
                continue
            worth += 1
            for nanos in (refusal.until, refusal.until + refusal.alone_for - 1000, refusal.until + refusal.alone_for):
                after, first = rule.decide(state, nanos // 1000, limit, cost)
                _, second = rule.decide(after, nanos // 1000, limit, cost)
                is_over = refusal.is_just_over(limit, cost, nanos)
                assert is_over == (nanos < refusal.until + refusal.alone_for)
                assert not (is_over and first and second)
            assert not refusal.is_just_over(limit, cost, refusal.until - 1)
    assert worth > 100


@pytest.mark.parametrize("seed", range(6))
def test_a_caller_that_waits_as_told_is_never_early(seed):
    """Told by when it was asked, callers came back before the store could admit them: half of them, at 10 ms."""
    chance = random.Random(seed)
    cached = 0
    for limit in [*walk_limits(), Limit.parse("10/second"), Limit.parse("2 per 5 seconds sliding_log")]:
        rule, clock = limit.rule, FakeClock(start=chance.randrange(10**6))
        refusals = RefusalCache(enabled=True, nanos=clock.nanos)
        ahead = chance.randrange(10**12)  # how far the store's clock, in microseconds, is ahead of ours
        state = empty_state(limit)
        for _ in range(60):
            sent = clock.nanos()
            clock.move_to(clock.micros + chance.choice([0, 40, chance.randrange(20_000)]))  # on the way
            now = clock.micros + ahead
            cost = random_cost(chance, limit)
            state, allowed = rule.decide(state, now, limit, cost)
            clock.move_to(clock.micros + chance.choice([0, 40, chance.randrange(20_000)]))  # on the way back
            if not allowed:
                refusals.note("k", limit, cost, state, now, sent)
                wait = rule.retry_after(state, now, limit, cost)
                clock.move_to(clock.micros + chance.choice([0, 1, chance.randrange(2_000)]))
                told = refusals.known("k", limit, cost, clock.nanos())
                if told is not None and wait is not None:
                    cached += 1
                    back = clock.micros + round(told.retry_after * SECOND)  # and the way to the store comes on top
                    assert back + ahead >= now + wait
                    assert back + ahead <= now + wait + 20_000  # late by no more than the way back
                    assert refusals.by_key["k"].until <= (now + wait - ahead) * 1000
            clock.move_to(clock.micros + chance.randrange(min(part.micros for part in limit.parts)))
    assert cached > 30

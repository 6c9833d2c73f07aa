"""Limiter and AsyncLimiter: the methods, their errors, and waiting."""

import asyncio
import copy
import pickle
import threading

import pytest

from ratekeeper import (
    AsyncLimiter,
    Closed,
    Decision,
    InvalidCost,
    InvalidInput,
    Limit,
    Limiter,
    MemoryStore,
)
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.testing import FakeClock

BAD_COSTS = [0, -1, -(10**30), True, False, 1.0, 1.5, float("nan"), float("inf"), "1", "", None, b"1", [1], 10**30, 1j]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("cost", BAD_COSTS, ids=repr)
def test_a_bad_cost_is_an_error_and_changes_nothing(algorithm, cost):
    limiter = Limiter("5/minute", algorithm=algorithm, clock=FakeClock())
    limiter.check("k", cost=2)
    before = limiter.peek("k")
    for operation in (limiter.check, limiter.peek, limiter.acquire, limiter.reserve, limiter.refund):
        with pytest.raises(InvalidCost):
            operation("k", cost=cost)
        with pytest.raises(InvalidCost):
            operation("new", cost=cost)
    assert limiter.peek("k") == before
    assert limiter.peek("new").remaining == 5


def test_the_message_of_a_bad_cost():
    with pytest.raises(InvalidCost) as caught:
        Limiter("5/minute").check("k", cost=0.5)
    assert str(caught.value) == "cost: expected a whole number from 1 to 999,999,999,999,999, got 0.5."
    with pytest.raises(InvalidCost, match="too long to show"):
        Limiter("5/minute").check("k", cost=10**5000)


class Seven:
    def __index__(self):
        return 7


def test_other_integers_are_taken_at_their_word():
    assert Limiter("9/minute").check("k", cost=Seven()).remaining == 2


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_cost_above_the_capacity_never_passes(algorithm):
    limiter = Limiter("5/minute", algorithm=algorithm, clock=FakeClock())
    decision = limiter.check("k", cost=6)
    assert (decision.allowed, decision.retry_after, decision.remaining) == (False, None, 5)
    waited = limiter.acquire("k", cost=6, timeout=None)
    assert (waited.allowed, waited.retry_after) == (False, None)
    assert limiter.clock.now == 0


def test_several_limits_report_the_binding_one():
    clock = FakeClock(start=1000.0)
    limiter = Limiter(["2/second", "3 per 10 seconds fixed_window"], clock=clock)
    assert [(d.limit, d.remaining) for d in (limiter.check("k"), limiter.check("k"))] == [(2, 1), (2, 0)]
    refused = limiter.check("k")
    assert (refused.allowed, refused.limit, refused.retry_after) == (False, 2, 0.5)
    assert [part.allowed for part in refused.parts()] == [False, True]
    clock.advance(0.5)
    assert limiter.check("k").remaining == 0
    clock.advance(1)
    refused = limiter.check("k")
    assert (refused.limit, refused.retry_after, refused.remaining) == (3, 8.5, 0)
    assert limiter.peek("k", cost=4).retry_after is None


def test_a_leaky_bucket_delays_in_turn_and_refuses_when_full():
    limiter = Limiter("10/second burst 4", algorithm="leaky_bucket", clock=FakeClock())
    answers = [limiter.check("k") for _ in range(5)]
    assert [d.delay for d in answers] == [0.0, 0.1, 0.2, 0.3, 0.0]
    assert [d.allowed for d in answers] == [True] * 4 + [False]
    assert answers[4].retry_after == 0.1


def test_acquire_waits_exactly_as_long_as_needed():
    for algorithm in ALGORITHMS:
        clock = FakeClock(start=100.0)
        limiter = Limiter("2/second", algorithm=algorithm, clock=clock)
        limiter.check("k", cost=2)
        wait = limiter.peek("k").retry_after
        decision = limiter.acquire("k", timeout=5)
        turn = 1.0 if algorithm == "leaky_bucket" else wait  # waits to join the queue, and then in it
        assert decision.allowed
        assert decision.delay == 0.0
        assert clock.now == pytest.approx(100 + turn) if algorithm == "leaky_bucket" else clock.now == 100 + turn


def test_acquire_refuses_at_once_what_cannot_be_met():
    for algorithm in ALGORITHMS:
        clock = FakeClock()
        limiter = Limiter("2/minute", algorithm=algorithm, clock=clock)
        limiter.check("k", cost=2)
        before = limiter.peek("k")
        decision = limiter.acquire("k", timeout=3)
        assert not decision.allowed
        assert decision.retry_after > 3
        assert clock.now == 0
        assert limiter.peek("k") == before


def test_a_timeout_must_be_a_time():
    for wrong in (-1, float("nan"), float("inf"), "2", object()):
        with pytest.raises(InvalidInput):
            Limiter("2/minute").acquire("k", timeout=wrong)


def test_waiters_are_served_in_the_order_they_came_small_or_large():
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("10/second", clock=clock)
        await limiter.check("k", cost=10)
        served = []

        async def wait(name, cost):
            assert (await limiter.acquire("k", cost)).allowed
            served.append((name, clock.now))

        costs = [8, 1, 1, 5, 1]
        await asyncio.gather(*[wait(name, cost) for name, cost in enumerate(costs)])
        assert served == [(0, 0.8), (1, 0.9), (2, 1.0), (3, 1.5), (4, 1.6)]
        assert not limiter._flows().queue.waiting

    asyncio.run(main())


def test_a_waiter_is_told_at_once_if_those_ahead_take_too_long():
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.check("k")
        ahead = [asyncio.create_task(limiter.acquire("k")) for _ in range(5)]
        await asyncio.sleep(0)
        late = await limiter.acquire("k", timeout=5.5)
        assert (late.allowed, late.retry_after, clock.now) == (False, 6.0, 0.0)
        assert (await limiter.acquire("other", timeout=0)).allowed  # waiting for one key holds up no other
        in_time = asyncio.create_task(limiter.acquire("k", timeout=6.0))
        assert all(decision.allowed for decision in await asyncio.gather(*ahead))
        assert (await in_time).allowed
        assert clock.now == 6.0

    asyncio.run(main())


def test_a_cancelled_waiter_gives_its_place_back():
    async def main():
        for algorithm in ALGORITHMS:
            clock = FakeClock(start=100.0)
            limiter = AsyncLimiter("1/second", algorithm=algorithm, clock=clock)
            await limiter.check("k")
            tasks = [asyncio.create_task(limiter.acquire("k")) for _ in range(3)]
            for _ in range(3):
                await asyncio.sleep(0)
            tasks[0].cancel()
            tasks[1].cancel()
            decision = await tasks[2]
            assert decision.allowed
            first = Limiter("1/second", algorithm=algorithm, clock=FakeClock(start=100.0))
            first.check("k")
            first.acquire("k")
            assert clock.now == first.clock.now, algorithm
            assert [task.cancelled() for task in tasks] == [True, True, False]
            assert not limiter._flows().queue.waiting

    asyncio.run(main())


def test_a_cancelled_turn_in_a_leaky_bucket_is_given_back():
    async def main():
        clock = FakeClock(auto=False)
        limiter = AsyncLimiter("1/second burst 3", algorithm="leaky_bucket", clock=clock)
        assert (await limiter.acquire("k")).allowed
        task = asyncio.create_task(limiter.acquire("k"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await limiter.peek("k")).remaining == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await limiter.peek("k")).remaining == 2

    asyncio.run(main())


def test_waiting_follows_a_clock_that_only_the_test_moves():
    async def main():
        clock = FakeClock(auto=False)
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.check("k")
        task = asyncio.create_task(limiter.acquire("k", timeout=2))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.999999)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done()
        clock.advance(0.000001)
        assert (await task).allowed

    asyncio.run(main())


def test_threads_wait_in_turn():
    clock = FakeClock()
    limiter = Limiter("10/second", clock=clock)
    limiter.check("k", cost=10)
    served = []

    def wait():
        if limiter.acquire("k", timeout=60):
            served.append(clock.micros)

    threads = [threading.Thread(target=wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(served) == 20
    assert clock.now >= 2.0
    assert not limiter._flows().queue.waiting


def test_a_competitor_makes_a_waiter_wait_again_but_not_past_its_deadline():
    class Greedy(FakeClock):
        def sleep(self, micros):
            super().sleep(micros)
            limiter.check("k")  # somebody else is quicker

    clock = Greedy()
    limiter = Limiter("1/second", clock=clock)
    limiter.check("k")
    decision = limiter.acquire("k", timeout=3.5)
    assert not decision.allowed
    assert decision.retry_after == 1.0
    assert clock.now == 3.0


@pytest.mark.parametrize("priority", ["high", 1.5, None, True])
def test_a_priority_is_a_whole_number(priority):
    for limiter in (Limiter("2/minute"), AsyncLimiter("2/minute")):
        with pytest.raises(InvalidInput, match="priority: expected a whole number, got "):
            limiter.reserve("k", priority=priority)
    with pytest.raises(InvalidInput, match="priority: expected a whole number, got "):
        Limiter("2/minute").acquire("k", priority=priority)


def test_a_closed_limiter_says_so():
    with Limiter("2/minute", name="api") as limiter:
        assert limiter.check("k")
    for call in (limiter.check, limiter.peek, limiter.acquire, limiter.reserve, limiter.refund, limiter.reset):
        with pytest.raises(Closed) as caught:
            call("k")
        assert str(caught.value) == "limiter 'api': expected an open limiter, but it was closed. Make a new one."

    async def main():
        async with AsyncLimiter("2/minute") as limiter:
            assert await limiter.check("k")
        with pytest.raises(Closed):
            await limiter.check("k")

    asyncio.run(main())


def test_a_block_around_a_call_is_not_limited_and_says_so():
    limiter, aio = Limiter("2/minute", name="api"), AsyncLimiter("2/minute", name="api")
    unused = (
        "limiter 'api': expected calls of the limiter inside {0!r}, which closes it at the end, got none: nothing was "
        "limited. To limit a block, write: {0} limiter.reserve(key)."
    )
    again = (
        "limiter 'api': expected an open limiter, but the end of a {0!r} block has closed it. "
        "To limit a block, write: {0} limiter.reserve(key)."
    )
    with pytest.warns(RuntimeWarning) as warned, limiter:
        pass
    assert [str(each.message) for each in warned] == [unused.format("with")]
    with pytest.raises(Closed) as caught, limiter:
        pass
    assert str(caught.value) == again.format("with")

    async def main():
        with pytest.warns(RuntimeWarning) as warned:
            async with aio:
                pass
        assert [str(each.message) for each in warned] == [unused.format("async with")]
        with pytest.raises(Closed) as caught:
            async with aio:
                pass
        assert str(caught.value) == again.format("async with")

    asyncio.run(main())


def test_closing_twice_is_no_error():
    with Limiter("2/minute") as limiter:
        limiter.close()

    async def main():
        async with AsyncLimiter("2/minute") as limiter:
            await limiter.close()

    asyncio.run(main())


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_limiter_is_not_copied_by_accident(way):
    with pytest.raises(InvalidInput, match="limiter 'api': expected to be made where it is used"):
        way(Limiter("2/minute", name="api"))


def test_wrong_arguments_of_methods_name_the_public_class():
    with pytest.raises(TypeError, match=r"^Limiter\.limit\(\) got an unexpected keyword argument 'timout'"):
        Limiter("5/minute").limit(timout=3)
    with pytest.raises(TypeError, match=r"^AsyncLimiter\.acquire\(\) got an unexpected keyword argument 'timout'"):
        AsyncLimiter("5/minute").acquire("k", timout=3)


def test_limiters_share_a_store_and_are_told_apart_by_name():
    store = MemoryStore(clock=FakeClock())
    first, again = Limiter("1/minute", store=store), Limiter("1/minute", store=store)
    other, named = Limiter("2/minute", store=store), Limiter("1/minute", store=store, name="login")
    assert first.check("k")
    assert not again.check("k")
    assert other.check("k")
    assert named.check("k")
    first.close()
    assert not again.check("k")


def test_a_decision_is_frozen_equal_by_its_answers_and_survives_pickling():
    limiter = Limiter("3/second", clock=FakeClock())
    decision = limiter.check("k")
    with pytest.raises(AttributeError):
        decision.allowed = False
    again = pickle.loads(pickle.dumps(decision))
    assert again == decision == Decision(True, 3, 2, 0.0, 0.333334, 0.0)
    assert hash(again) == hash(decision)
    assert again != limiter.check("k")
    assert repr(decision) == (
        "Decision(allowed=True, limit=3, remaining=2, retry_after=0.0, reset_after=0.333334, delay=0.0)"
    )
    limits = pickle.loads(pickle.dumps(Limit.parse("10/second burst 20 token_bucket")))
    assert str(limits) == "10/second burst 20 token_bucket"


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_threads_are_admitted_exactly_the_limit(algorithm, threads, monkeypatch):
    import sys

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        limiter = Limiter("200 per 300 days", algorithm=algorithm)
        ready = threading.Barrier(threads)
        admitted = []

        def run():
            ready.wait()
            admitted.append(sum(bool(limiter.check("k")) for _ in range(400 // threads + 5)))

        workers = [threading.Thread(target=run) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sum(admitted) == 200
    finally:
        sys.setswitchinterval(before)

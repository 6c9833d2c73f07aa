"""Waiting in a queue: priorities, plans of several checks, and queues left by closing, forking and dead loops."""

import asyncio
import gc
import os
import threading

import pytest

from ratekeeper import AsyncLimiter, Closed, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.flow.acquire import acquire, acquire_plan
from ratekeeper.flow.drive import adrive
from ratekeeper.flow.queue import WaitQueue, predict_wait
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock
from tests.flow.replies import YES, read, result, wanted


def test_a_higher_priority_goes_first_but_not_before_whoever_is_first_in_line():
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.check("k")
        served = []

        async def wait(name, priority):
            assert (await limiter.acquire("k", priority=priority)).allowed
            served.append((name, clock.now))

        async with asyncio.TaskGroup() as tasks:
            for name, priority in [("a", 0), ("b", 0), ("c", 5), ("d", 1), ("e", 5), ("f", -1), ("g", 0)]:
                tasks.create_task(wait(name, priority))
        assert served == [(name, float(turn)) for turn, name in enumerate("acedbgf", start=1)]
        assert not limiter._flows().queue.waiting

    asyncio.run(main())


def test_whoever_is_overtaken_past_its_deadline_is_refused_at_the_deadline():
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.check("k")
        first = asyncio.create_task(limiter.acquire("k"))
        second = asyncio.create_task(limiter.acquire("k", timeout=2.5))
        await asyncio.sleep(0)
        urgent = [asyncio.create_task(limiter.acquire("k", priority=1)) for _ in range(2)]
        late = await second
        assert (late.allowed, clock.now) == (False, 2.5)
        assert all(await asyncio.gather(first, *urgent))
        assert clock.now == 3.0

    asyncio.run(main())


def test_a_newcomer_is_told_the_truth_about_those_it_stands_behind():
    async def main():
        limiter = AsyncLimiter("1/second", clock=FakeClock())
        await limiter.check("k")
        tasks = [asyncio.create_task(limiter.acquire("k", priority=0)) for _ in range(4)]
        await asyncio.sleep(0)
        low = await limiter.acquire("k", timeout=4.5, priority=-1)
        high = await limiter.acquire("k", timeout=1.5, priority=1)
        assert (low.allowed, low.retry_after) == (False, 5.0)
        assert (high.allowed, high.retry_after) == (False, 2.0)
        for task in tasks:
            task.cancel()

    asyncio.run(main())


def plan(requests, tokens, cost):
    return (Check("requests", "k", Limit.parse(requests), 1), Check("tokens", "k", Limit.parse(tokens), cost))


def test_a_plan_waits_until_all_of_it_fits_and_takes_nothing_before():
    async def main():
        clock = FakeClock()
        store, queue = MemoryStore(clock=clock), WaitQueue()
        served = []

        async def wait(cost, patience=None):
            wanted = plan("60/minute burst 2", "600/minute burst 100", cost)
            flow = acquire_plan(queue, "k", wanted, patience, clock)
            decisions = await adrive(flow, store, clock, queue)
            served.append((cost, all(decisions), clock.now))
            return decisions

        # Requests come back at 1 a second, tokens at 10 a second.
        await asyncio.gather(wait(100), wait(50), wait(1), wait(1))
        assert served == [(100, True, 0.0), (50, True, 5.0), (1, True, 5.1), (1, True, 6.0)]
        never = await wait(101)
        assert [decision.retry_after for decision in never] == [None, None]
        late = await wait(100, patience=1_000_000)
        assert not any(late)
        assert late[0].retry_after == 9.2

    asyncio.run(main())


def test_a_prediction_survives_a_clock_that_stepped_back():
    clock = FakeClock(start=10**6)
    store, queue = MemoryStore(clock=clock), WaitQueue()
    wanted = plan("60/minute burst 2", "600/minute burst 100", 100)
    assert all(store.check(wanted))
    clock.advance(-1000)

    async def main():
        return await adrive(acquire_plan(queue, "k", wanted, None, clock), store, clock, queue)

    assert all(asyncio.run(main()))
    assert clock.now == 10**6 - 1000 + 10 + 9.9  # a burst, and the slack of that limit


def queue_up(limiter, number, outcomes):
    """That many threads waiting for ``k``: the first for time, the others for their turn."""

    def wait():
        try:
            outcomes.append(limiter.acquire("k"))
        except Closed as error:
            outcomes.append(error)

    threads = []
    for place in range(1, number + 1):
        threads.append(threading.Thread(target=wait))
        threads[-1].start()
        while not waiting(limiter, place):
            pass
    return threads


def waiting(limiter, number):
    line = limiter._flows().queue.waiting.get("k", ())
    return len(line) == number and all(waiter.wake.__name__ != "wake_nothing" for waiter in list(line)[1:])


def test_whoever_waits_when_a_limiter_is_closed_is_told():
    clock = FakeClock(auto=False)
    limiter = Limiter("1/second", clock=clock, name="api")
    assert limiter.check("k")
    outcomes = []
    sleeper, *others = queue_up(limiter, 3, outcomes)
    limiter.close()
    for thread in others:  # at once, though time stands still
        thread.join(10)
    clock.advance(1)
    sleeper.join(10)
    assert [str(outcome) for outcome in outcomes] == [
        "limiter 'api': expected an open limiter, but it was closed. Make a new one."
    ] * 3
    assert not limiter._flows().queue.waiting


def test_tasks_that_wait_when_a_limiter_is_closed_are_told():
    async def main():
        clock = FakeClock(auto=False)
        limiter = AsyncLimiter("1/second", clock=clock)
        await limiter.check("k")
        tasks = [asyncio.ensure_future(limiter.acquire("k")) for _ in range(3)]
        for _ in range(5):
            await asyncio.sleep(0)
        await limiter.close()
        clock.advance(1)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Closed] * 3

    asyncio.run(main())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it has threads: that is the point
def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent():
    clock = FakeClock(auto=False)
    limiter = Limiter("1/second", clock=clock)
    limiter.check("k")
    outcomes = []
    threads = queue_up(limiter, 2, outcomes)
    child = os.fork()
    if not child:
        clock.auto = True
        os._exit(0 if limiter.acquire("k", timeout=1) else 1)
    assert os.waitpid(child, 0)[1] == 0
    while any(thread.is_alive() for thread in threads):
        clock.advance(1)
    assert all(outcomes)
    assert len(outcomes) == 2


def test_tasks_of_a_loop_that_was_closed_do_not_stop_those_of_another():
    clock = FakeClock(auto=False)
    limiter = AsyncLimiter("1/second", clock=clock)
    asyncio.run(limiter.check("k"))
    dead = asyncio.new_event_loop()
    tasks = [dead.create_task(limiter.acquire("k")) for _ in range(3)]
    for _ in range(5):
        dead.run_until_complete(asyncio.sleep(0))
    assert len(limiter._flows().queue.waiting["k"]) == 3
    dead.close()
    for task in tasks:
        task._log_destroy_pending = False
    clock._sleepers.clear()
    del tasks, task
    gc.collect()
    assert not limiter._flows().queue.waiting
    clock.auto = True
    assert asyncio.run(limiter.acquire("k"))


def test_a_turn_that_has_come_wakes_at_once():
    queue, woken = WaitQueue(), []
    first, second = queue.join("key", (1,)), queue.join("key", (1,))
    queue.when_first(first, lambda: woken.append("first"))
    queue.when_first(second, lambda: woken.append("second"))
    assert woken == ["first"]
    queue.leave(first, served=True)
    assert woken == ["first", "second"]
    queue.leave(second, served=True)
    assert not queue.waiting


def test_whoever_leaves_from_the_middle_wakes_nobody():
    queue, woken = WaitQueue(), []
    waiters = [queue.join("key", (1,)) for _ in range(3)]
    for waiter in waiters:
        predict_wait((wanted(),), (0,), (0,), queue.ahead(waiter), waiter)
    assert [waiter.predicted[0] for waiter in waiters] == [0, 1_000_000, 2_000_000]
    queue.when_first(waiters[2], lambda: woken.append(2))
    queue.leave(waiters[1], served=False)
    assert woken == []
    assert [waiter.predicted for waiter in queue.waiting["key"]] == [None, None]
    assert predict_wait((wanted(),), (0,), (0,), queue.ahead(waiters[2]), waiters[2]) == 1_000_000


def test_a_cost_ahead_that_can_never_pass_holds_up_nobody():
    queue = WaitQueue()
    queue.join("key", (99,))
    waiter = queue.join("key", (1,))
    assert predict_wait((wanted(),), (0,), (0,), queue.ahead(waiter), waiter) == 0


def test_a_forked_child_begins_with_empty_queues():
    """In the child itself nobody measures what is run: see also the test with a real fork."""
    queue, clock = WaitQueue(), FakeClock()
    before = acquire(queue, wanted(), None, clock)
    next(before)
    queue.in_child()
    after = acquire(queue, wanted(), None, clock)
    assert read(next(after)) == ("Ask", "check")  # first in line
    assert result(before, (YES,)) is YES  # a place that is gone is left in peace
    assert result(after, (YES,)) is YES
    assert not queue.waiting

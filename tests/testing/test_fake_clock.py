"""One clock for all threads and tasks: a sleeper has slept, and a task that can run is not overtaken."""

import asyncio
import itertools
import sys
import threading

import pytest
import uvloop

from ratekeeper import AsyncLimiter
from ratekeeper.testing import FakeClock


def at_once(work):
    """``work(1)`` to ``work(6)`` in threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)


def test_threads_that_sleep_at_once_never_turn_the_clock_back():
    clock, short = FakeClock(), []

    def work(number):
        for _ in range(2_000):
            until = clock.micros + number
            clock.sleep(number)
            if clock.micros < until:
                short.append(number)

    at_once(work)
    assert short == []


def test_what_threads_add_is_added():
    clock = FakeClock()
    at_once(lambda number: [clock.advance(number) for _ in range(1_000)])
    assert clock.now == 21_000.0


def test_the_clock_waits_for_every_task_that_can_run():
    async def main():
        clock, times = FakeClock(), []

        async def work(turns):
            for _ in range(turns):
                await asyncio.sleep(0)
            times.append(clock.now)
            await clock.asleep(1_000_000)
            times.append(clock.now)

        await asyncio.gather(work(0), work(50), work(100))
        assert times == [0.0, 0.0, 0.0, 1.0, 1.0, 1.0]

    asyncio.run(main())


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_the_clock_moves_on_for_a_task_that_waits_for_it_without_sleeping(new_loop):
    async def main():
        clock, other = FakeClock(), FakeClock()
        sleeps = [clock.asleep(3_000_000), clock.asleep(5_000_000), other.asleep(7_000_000)]
        tasks = [asyncio.create_task(sleep) for sleep in sleeps]
        while clock.now < 5:  # noqa: ASYNC110 - as a test of a user may
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert (clock.now, other.now) == (5.0, 7.0)

    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()


LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


def run(new_loop, main):
    loop = new_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


@LOOPS
@pytest.mark.parametrize(("tasks", "timeout", "ends"), [(30, 20, 15.0), (30, None, 15.0), (200, 200, 117.0)])
def test_the_clock_does_not_overtake_tasks_that_wait_with_a_timeout(new_loop, tasks, timeout, ends):
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("5 per 3 seconds sliding_log", clock=clock)
        decisions = await asyncio.gather(*[limiter.acquire("k", timeout=timeout) for _ in range(tasks)])
        return sum(decision.allowed for decision in decisions), clock.now

    assert run(new_loop, main()) == (tasks, ends)


@LOOPS
def test_the_clock_waits_for_a_long_chain_of_callbacks(new_loop):
    """Futures and callbacks that no task runs: each schedules the next one."""

    async def main():
        clock, loop, links = FakeClock(), asyncio.get_running_loop(), 40
        futures = [loop.create_future() for _ in range(links)]
        for one, other in itertools.pairwise(futures):
            one.add_done_callback(lambda _, other=other: other.set_result(None))

        async def sleeper():
            await clock.asleep(1_000_000)

        sleeping = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        futures[0].set_result(None)
        await futures[-1]
        reached = clock.now
        await sleeping
        return reached, clock.now

    assert run(new_loop, main()) == (0.0, 1.0)


def test_a_loop_has_its_own_methods_again_when_no_clock_needs_them():
    async def main():
        loop, clocks = asyncio.get_running_loop(), [FakeClock(), FakeClock()]
        before = vars(loop).copy()
        await asyncio.gather(*[clock.asleep(1_000_000 * (1 + index)) for index, clock in enumerate(clocks)])
        for _ in range(20):
            await asyncio.sleep(0)
        assert vars(loop) == before
        return [clock.now for clock in clocks]

    assert run(uvloop.new_event_loop, main()) == [1.0, 2.0]


def test_a_cancelled_sleep_does_not_move_the_clock():
    async def main():
        clock = FakeClock()
        long = asyncio.create_task(clock.asleep(9_000_000))
        await asyncio.sleep(0)
        long.cancel()
        await clock.asleep(1_000_000)
        assert clock.now == 1.0
        await clock.asleep(1_000_000)  # after a time without sleepers
        assert clock.now == 2.0

    asyncio.run(main())

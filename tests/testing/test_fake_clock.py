"""One clock for all threads and tasks: a sleeper has slept, and a task that can run is not overtaken."""

import asyncio
import sys
import threading

import pytest
import uvloop

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

"""pace(): threads, tasks, functions, loops."""

import asyncio
import doctest
import threading

import pytest

from ratekeeper.outbound import Pace, TooLate, pace
from ratekeeper.outbound import pace as pace_module
from ratekeeper.testing import FakeClock


def test_the_example_in_the_module_is_true():
    import sys

    assert doctest.testmod(sys.modules["ratekeeper.outbound.pace"]).failed == 0
    assert pace_module is Pace


def test_a_function_is_called_at_a_pace():
    clock = FakeClock()

    @pace("4/second", clock=clock)
    def now(word):
        return word, clock.now

    assert [now(word) for word in "abc"] == [("a", 0.0), ("b", 0.25), ("c", 0.5)]


def test_an_async_function_is_called_at_a_pace():
    async def main():
        clock = FakeClock()

        @pace("4/second", clock=clock)
        async def now(word):
            return word, clock.now

        assert await asyncio.gather(*[now(word) for word in "abc"]) == [("a", 0.0), ("b", 0.25), ("c", 0.5)]

    asyncio.run(main())


def test_a_block_and_a_loop_wait_for_their_turn():
    async def main():
        clock = FakeClock()
        steady = Pace("2/second", clock=clock)
        with steady:
            pass
        async with steady:
            assert clock.now == 0.5
        assert [item async for item in steady.aeach("ab")] == ["a", "b"]
        assert clock.now == 1.5

        async def letters():
            yield "c"

        assert [item async for item in steady.aeach(letters())] == ["c"]
        assert clock.now == 2.0

    asyncio.run(main())


def test_threads_and_tasks_wait_in_one_queue():
    clock = FakeClock()
    steady = Pace("10/second", clock=clock)
    turns = []

    def run():
        for _ in range(10):
            steady.wait()
            turns.append(clock.micros)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def main():
        await asyncio.gather(*[steady.turn() for _ in range(10)])

    asyncio.run(main())
    for thread in threads:
        thread.join()
    assert clock.now >= 3.9  # forty turns, a tenth of a second apart


def test_keys_costs_and_deadlines():
    clock = FakeClock()
    steady = Pace("60/minute burst 10 leaky_bucket", clock=clock, max_wait=5)
    for key in ("a", "b"):
        assert steady.wait(key, cost=5)
    assert clock.now == 0.0
    steady.wait("a")
    assert clock.now == 5.0
    steady.wait("a", cost=8)
    with pytest.raises(TooLate, match="expected a turn in time, but it comes in 8 s"):
        steady.wait("a")
    with pytest.raises(TooLate, match="this cost can never pass a capacity of 10"):
        steady.wait("a", cost=11)

"""The clock of tests is one for all threads: whoever sleeps has slept, whatever others do meanwhile."""

import sys
import threading

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

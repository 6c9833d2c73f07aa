"""The default clock: all that follow it change over together, and nobody is kept alive by following."""

import asyncio
import gc
import threading

from ratekeeper import clock
from ratekeeper.testing import FakeClock


class Follower:
    def __init__(self):
        self.clock = clock.follow(self)

    def use_clock(self, new):
        self.clock = new


def test_followers_change_over_together():
    one, two = Follower(), Follower()
    fake = FakeClock()
    before = clock.set_default(fake)
    try:
        late = Follower()
        assert one.clock is two.clock is late.clock is fake
    finally:
        assert clock.set_default(before) is fake
    assert one.clock is two.clock is late.clock is before


def test_a_follower_that_is_gone_is_forgotten():
    follower = Follower()
    assert follower in clock.following()
    number = id(follower)
    del follower
    gc.collect()
    assert number not in map(id, clock.following())


def test_the_clock_of_the_machine_never_steps_back_and_waits_no_less_than_told():
    began = clock.MONOTONIC.nanos()
    clock.MONOTONIC.sleep(1)
    asyncio.run(clock.MONOTONIC.asleep(1))
    asyncio.run(clock.MONOTONIC.asleep(3_000))
    assert clock.MONOTONIC.nanos() - began >= 3_000_000


def test_a_gate_opens_or_time_is_up():
    gate = threading.Lock()
    assert clock.MONOTONIC.wait(gate, None)
    assert not clock.MONOTONIC.wait(gate, 1)
    assert not clock.MONOTONIC.wait(gate, -5)

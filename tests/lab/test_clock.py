"""The virtual clock is a clock."""

from ratekeeper import Limiter
from ratekeeper.lab.clock import VirtualClock


def test_the_virtual_clock_is_a_clock():
    from _thread import allocate_lock

    clock = VirtualClock(5)
    limiter = Limiter("1/second", clock=clock)
    assert limiter.check("a")
    assert limiter.acquire("a", timeout=2)  # takes no time
    assert clock.nanos() == 1_000_005_000
    gate = allocate_lock()
    assert clock.wait(gate, 10)
    assert not clock.wait(gate, 10)
    assert clock.nanos() == 1_000_015_000

"""Reservations: settled for what was used, given back on an error, once."""

import asyncio

import pytest

from ratekeeper import (
    AlreadySettled,
    AsyncLimiter,
    InvalidCost,
    Limiter,
    LimitExceeded,
)
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.testing import FakeClock


def test_a_reservation_settles_for_what_was_used():
    for algorithm in ALGORITHMS:
        limiter = Limiter("100/minute", algorithm=algorithm, clock=FakeClock(start=600.0))
        with limiter.reserve("k", cost=40) as reservation:
            assert limiter.peek("k").remaining == 60
            assert reservation.settle(10).remaining == 90
        with limiter.reserve("k", cost=10) as reservation:
            assert reservation.settle(30).remaining == 60
        with limiter.reserve("k", cost=10) as reservation:
            reservation.settle(10)
        with limiter.reserve("k", cost=10):
            pass  # kept as reserved
        assert limiter.peek("k").remaining == 40
        with limiter.reserve("k", cost=5) as reservation:
            assert reservation.settle(1000).remaining == 0  # charged as far as it is there


def test_an_exception_gives_everything_back():
    limiter = Limiter("100/minute", clock=FakeClock())

    def fail():
        with limiter.reserve("k", cost=40):
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert limiter.peek("k").remaining == 100


def test_a_reservation_settles_once():
    limiter = Limiter("100/minute", clock=FakeClock())
    reservation = limiter.reserve("k", cost=40)
    assert reservation
    for wrong in (-1, 1.5, True, None):
        with pytest.raises(InvalidCost):
            reservation.settle(wrong)
    reservation.settle(0)
    with pytest.raises(AlreadySettled) as caught:
        reservation.settle(0)
    assert str(caught.value) == "reservation: expected to be settled once, but it was settled already."
    assert limiter.peek("k").remaining == 100


def test_a_refused_reservation_takes_nothing_and_raises_when_entered():
    limiter = Limiter("10/minute", clock=FakeClock())
    refused = limiter.reserve("k", cost=11)
    assert not refused
    assert refused.decision.retry_after is None
    with pytest.raises(AlreadySettled, match="was refused"):
        refused.settle(0)
    with pytest.raises(LimitExceeded) as caught, refused:
        raise AssertionError
    assert caught.value.decision == refused.decision
    assert limiter.peek("k").remaining == 10


def test_a_reservation_of_a_window_that_passed_gives_nothing_to_the_next():
    clock = FakeClock()
    limiter = Limiter("10/minute", algorithm="fixed_window", clock=clock)
    reservation = limiter.reserve("k", cost=8)
    clock.advance(60)
    limiter.check("k", cost=5)
    reservation.settle(0)
    assert limiter.peek("k").remaining == 5


def test_async_reservations():
    async def main():
        limiter = AsyncLimiter("100/minute", clock=FakeClock())
        async with limiter.reserve("k", cost=40) as reservation:
            assert (await reservation.settle(10)).remaining == 90
        reservation = await limiter.reserve("k", cost=90)
        assert reservation
        assert not await limiter.reserve("k", cost=1)
        with pytest.raises(LimitExceeded):
            async with limiter.reserve("k"):
                raise AssertionError
        await reservation.settle(0)
        with pytest.raises(KeyError):
            async with limiter.reserve("k", cost=90):
                raise KeyError
        assert (await limiter.peek("k")).remaining == 90
        assert (await limiter.refund("k", cost=3)).remaining == 93
        await limiter.reset("k")
        assert (await limiter.peek("k")).remaining == 100

    asyncio.run(main())


def test_a_lease_that_is_free_is_taken_without_waiting():
    """On the real clock: time that passes while the store answers is no wait."""
    limiter = Limiter("1 concurrent")
    with limiter.reserve("k", timeout=0) as lease:
        assert lease
        assert not limiter.reserve("k", timeout=0)
    assert limiter.reserve("k", timeout=0)

"""Decorated functions, sync and async, and what cannot be decorated."""

import asyncio
import functools

import pytest

from ratekeeper import (
    AsyncLimiter,
    InvalidCost,
    InvalidInput,
    Limiter,
    LimitExceeded,
)
from ratekeeper.testing import FakeClock


def test_decorators():
    limiter = Limiter("2/minute", clock=FakeClock(), name="work")

    @limiter.limit(key=lambda user, **_: user)
    def work(user, n=1):
        """Work."""
        return user, n

    assert (work.__name__, work.__doc__) == ("work", "Work.")
    assert work("ann") == ("ann", 1)
    assert work(user="ann", n=2) == ("ann", 2)
    with pytest.raises(LimitExceeded) as caught:
        work("ann")
    assert str(caught.value) == "work: limit of 2 reached. Try again in 30 s."
    assert caught.value.retry_after == 30.0
    assert work("bob") == ("bob", 1)

    @limiter.limit
    def bare():
        return "done"

    assert bare() == bare() == "done"
    with pytest.raises(LimitExceeded):
        bare()

    @limiter.limit(key="fixed", cost=lambda n: n)
    def costly(n):
        return n

    assert costly(2) == 2
    with pytest.raises(LimitExceeded) as caught:
        costly(3)
    assert str(caught.value) == ("work: this cost can never pass a capacity of 2. Raise the limit or split the call.")

    @limiter.limit(key="patient", timeout=60)
    def patient():
        return limiter.clock.now

    assert [patient() for _ in range(3)] == [0.0, 0.0, 30.0]


def test_decorators_of_async_functions():
    async def main():
        for limiter in (Limiter("2/minute", clock=FakeClock()), AsyncLimiter("2/minute", clock=FakeClock())):

            @limiter.limit(key=lambda user: user)
            async def work(user):
                await asyncio.sleep(0)
                return user

            assert [await work("ann"), await work("ann")] == ["ann", "ann"]
            with pytest.raises(LimitExceeded):
                await work("ann")

    asyncio.run(main())


def test_decorators_refuse_what_cannot_work_when_they_are_applied():
    limiter = Limiter("2/minute")
    with pytest.raises(InvalidInput, match="expected a function"):
        limiter.limit("user")
    with pytest.raises(InvalidInput):
        limiter.limit(key="")(print)
    with pytest.raises(InvalidCost):
        limiter.limit(cost=0)(test_decorators)
    with pytest.raises(InvalidInput, match="AsyncLimiter must be awaited"):
        AsyncLimiter("2/minute").limit(key="x")(test_decorators)


def test_what_cannot_be_decorated_is_told():
    with pytest.raises(InvalidInput, match=r"limit: expected a key, as functools.partial.* has no name to count under"):
        Limiter("2/minute").limit(functools.partial(int, "5"))
    assert Limiter("2/minute").limit(key="k")(functools.partial(int, "5"))() == 5

    def lines():
        yield 1

    async def alines():
        yield 1

    for generator in (lines, alines):  # the lease would be given back before the first line
        with pytest.raises(InvalidInput, match=r"lines: expected a function whose call ends .* '2 concurrent' is held"):
            Limiter("2 concurrent").limit(key="k")(generator)
    assert list(Limiter("2/minute").limit(key="k")(lines)()) == [1]

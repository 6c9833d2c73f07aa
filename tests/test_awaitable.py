"""A forgotten ``await`` raises: of the C core and of its twin in Python alike."""

import asyncio
import gc
import inspect
import warnings
import weakref
from collections.abc import Coroutine
from unittest.mock import create_autospec

import pytest

from ratekeeper import AsyncLimiter, Closed, InvalidInput, Policy, RatekeeperError, Request
from ratekeeper.awaitable import AsyncCall, AsyncMethod, PureAsyncCall
from ratekeeper.errors import NotAwaited
from ratekeeper.outbound import AsyncBudget
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.testing import FakeClock

KINDS = [PureAsyncCall] if AsyncCall is PureAsyncCall else [PureAsyncCall, AsyncCall]


async def later(value, *, error=None):
    await asyncio.sleep(0)
    if error is not None:
        raise error
    return value


def at_once(value, cost=1):
    return value, cost


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def message(use, name="AsyncLimiter.check", advice=""):
    advice = advice or f"Write: await ….{name.rpartition('.')[2]}(…)."
    return f"{name}: expected the call to be awaited, got {use} without that. {advice}"


def uses(make):
    """Each use of what ``make`` returns as if it were the result, with what the error calls it."""
    yield lambda: bool(make()), "its truth value"
    yield lambda: not make(), "its truth value"
    yield lambda: make() and 1, "its truth value"
    yield lambda: make().allowed, "its attribute 'allowed'"
    yield lambda: make().retry_after, "its attribute 'retry_after'"
    yield lambda: make() == True, "a comparison"  # noqa: E712
    yield lambda: make() != 3, "a comparison"
    yield lambda: make() < 3, "a comparison"
    yield lambda: make() >= 3, "a comparison"
    yield lambda: any([make()]), "its truth value"


@pytest.mark.parametrize(("function", "is_async"), [(later, True), (at_once, False)])
def test_a_call_that_is_not_awaited_raises_and_teaches(kind, function, is_async):
    call = kind(function, "AsyncLimiter.check", is_async).call
    for use, what in uses(lambda: call("user:42")):
        with pytest.raises(NotAwaited) as caught:
            use()
        assert str(caught.value) == message(what)
        assert isinstance(caught.value, (InvalidInput, AttributeError, TypeError, RatekeeperError))


@pytest.mark.parametrize("store", ["memory://", "redis"])
def test_every_method_of_an_async_limiter(store, request):
    if store == "redis":
        store = AsyncRedisStore(request.getfixturevalue("redis_server").url, prefix="awaited", deadline=10)
    limiter = AsyncLimiter("1/minute", store=store)
    for name in ("check", "peek", "acquire", "refund"):
        for use, what in uses(lambda name=name: getattr(limiter, name)("user:42")):
            with pytest.raises(NotAwaited) as caught:
                use()
            assert str(caught.value) == message(what, f"AsyncLimiter.{name}")

    async def main():
        assert await limiter.check("user:42")  # nothing was taken before
        assert not await limiter.check("user:42", cost=1)
        await limiter.reset("user:42")
        await limiter.close()
        if isinstance(store, AsyncRedisStore):
            await store.close()
        with pytest.raises(Closed):
            await limiter.check("user:42")

    asyncio.run(main())


def test_every_method_of_a_policy_and_a_budget():
    policy = Policy.parse({"rules": [{"name": "all", "limit": "1/minute"}]})
    budget = AsyncBudget(tokens="10/minute")
    calls = {
        "Policy.acheck": lambda: policy.acheck(Request()),
        "Policy.acheck_message": lambda: policy.acheck_message(Request()),
        "AsyncBudget.left": lambda: budget.left(),
    }
    for name, make in calls.items():
        for use, what in uses(make):
            with pytest.raises(NotAwaited) as caught:
                use()
            assert str(caught.value) == message(what, name)
    assert [asyncio.run(policy.acheck(Request())).allowed for _ in range(2)] == [True, False]


def test_a_reservation_is_awaited_or_entered_with_async_with():
    limiter, budget = AsyncLimiter("2/minute"), AsyncBudget(tokens="10/minute")
    cases = [
        (lambda: bool(limiter.reserve("a")), message("the reservation", "AsyncLimiter.reserve")),
        (lambda: limiter.reserve("a").decision, message("the reservation", "AsyncLimiter.reserve")),
        (
            lambda: limiter.reserve("a").__enter__(),
            message("'with'", "AsyncLimiter.reserve", "Write: async with limiter.reserve(…)."),
        ),
        (lambda: bool(budget.reserve(tokens=1)), message("its truth value", "AsyncBudget.reserve")),
        (
            lambda: budget.reserve(tokens=1).__enter__(),
            message("'with'", "AsyncBudget.reserve", "Write: async with budget.reserve(…)."),
        ),
    ]
    for use, text in cases:
        with pytest.raises(NotAwaited) as caught:
            use()
        assert str(caught.value) == text
    with pytest.raises(NotAwaited), limiter.reserve("a"):
        raise AssertionError("never entered")

    async def main():
        async with limiter.reserve("a", 2) as reservation:
            assert reservation
            with pytest.raises(NotAwaited):
                bool(reservation.settle(1))
            await reservation.settle(1)
        assert (await limiter.reserve("a")).decision.allowed
        assert not await limiter.reserve("a")
        assert await budget.reserve(tokens=10)
        assert not await budget.reserve(tokens=10)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            limiter.reserve("a").nothing  # noqa: B018

    asyncio.run(main())


def test_it_is_a_coroutine_for_everything_that_takes_one(kind):
    slow = kind(later, "later", True).call
    quick = kind(at_once, "at_once", False).call

    async def main():
        assert await slow(1) == 1
        assert await quick("a", cost=5) == ("a", 5)
        assert await quick(cost=5, value="a") == ("a", 5)
        assert await asyncio.gather(slow(1), quick(2), slow(value=3)) == [1, (2, 1), 3]
        assert await asyncio.create_task(slow(1)) == 1
        assert await asyncio.wait_for(slow(1), 10) == 1
        assert await asyncio.ensure_future(quick(1)) == (1, 1)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(slow(7))
        assert task.result() == 7
        assert isinstance(slow(1), Coroutine)
        assert inspect.isawaitable(slow(1))
        with pytest.raises(ZeroDivisionError):
            await slow(1, error=ZeroDivisionError())
        with pytest.raises(TypeError):
            await quick()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(main())
    assert asyncio.run(slow(1)) == 1


def test_it_is_cancelled_closed_and_thrown_into_as_a_coroutine(kind):
    seen = []

    async def waiting(value):
        try:
            await asyncio.Event().wait()
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    call = kind(waiting, "waiting", True).call

    async def main():
        task = asyncio.create_task(call(1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pending = call(1)
        pending.send(None)
        pending.close()
        pending.close()
        with pytest.raises(RuntimeError, match=r"^cannot reuse already awaited waiting$"):
            await pending
        fresh = call(1)
        for error in ((KeyError("x"),), (KeyError, KeyError("x")), (KeyError,)):
            with pytest.raises(KeyError):
                fresh.throw(*error)

    asyncio.run(main())
    assert seen == ["CancelledError", "GeneratorExit"]


def test_awaiting_twice_raises(kind):
    async def main(call):
        await call
        with pytest.raises(RuntimeError, match=r"^cannot reuse already awaited f$"):
            await call

    asyncio.run(main(kind(later, "f", True).call(1)))
    asyncio.run(main(kind(at_once, "f", False).call(1)))


def test_it_never_runs_before_it_is_awaited_and_warns_if_it_never_is(kind):
    ran = []
    call = kind(ran.append, "AsyncLimiter.check", False).call
    with pytest.warns(RuntimeWarning, match=r"^AsyncLimiter\.check was never awaited$"):
        call("user:42")
    assert ran == []


def test_calls_live_in_dictionaries_and_lists(kind):
    call = kind(at_once, "f", False).call
    first, second = call(1), call(2)
    assert {first: 1, second: 2}[first] == 1
    assert first in [first, second]
    assert repr(first) == "<call of f to be awaited>"
    first.close()
    second.close()


def test_nothing_keeps_arguments_or_results_alive(kind):
    class Thing: ...

    thing = Thing()
    alive = weakref.ref(thing)
    call = kind(at_once, "f", False).call
    pending = call(thing)
    del thing
    assert alive() is not None
    pending.close()
    assert alive() is None


class Forever:
    def __await__(self):
        while True:
            yield


def test_a_cycle_through_a_call_that_waits_is_collected(kind):
    class Thing: ...

    async def waiting(thing):
        await Forever()

    thing = Thing()
    alive = weakref.ref(thing)
    thing.call = kind(waiting, "waiting", True).call(thing)
    thing.call.send(None)
    del thing
    gc.collect()
    assert alive() is None


def test_wrong_arguments_raise_where_the_call_is_written(kind):
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        kind(later, "later", True).call()


def test_mocks_and_signatures_see_async_methods():
    for name in ("check", "peek", "acquire", "refund", "reset"):
        assert inspect.iscoroutinefunction(getattr(AsyncLimiter, name)), name
    mock = create_autospec(AsyncLimiter, instance=True)
    mock.check.return_value = True
    assert asyncio.run(mock.check("user:42")) is True
    limiter = AsyncLimiter("1/minute")
    assert list(inspect.signature(limiter.acquire).parameters) == ["key", "cost", "timeout", "priority"]
    assert limiter.acquire.__doc__ == AsyncLimiter.acquire.__doc__
    assert isinstance(vars(AsyncLimiter)["acquire"], AsyncMethod)


def test_the_decorator_and_waiting_still_work():
    clock = FakeClock()
    limiter = AsyncLimiter("1/second", clock=clock)

    async def main():
        assert await limiter.acquire("a")
        assert await limiter.acquire("a", timeout=2)
        assert clock.now == 1.0

    asyncio.run(main())

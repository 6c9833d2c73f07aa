"""The same limiter on asyncio, uvloop and trio: the same answers, the same waits, and no place lost by cancelling."""

from uuid import uuid4

import anyio
import pytest

from ratekeeper import AsyncLimiter, Policy, Request
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.clock import MonotonicClock
from ratekeeper.errors import LimitExceeded
from ratekeeper.event_loop import is_trio_task, running_loop, shielded
from ratekeeper.outbound import pace
from ratekeeper.stores import AsyncRedisStore
from ratekeeper.testing import FakeClock
from tests.servers import closed_port

LOOPS = {
    "asyncio": {"backend": "asyncio"},
    "uvloop": {"backend": "asyncio", "backend_options": {"use_uvloop": True}},
    "trio": {"backend": "trio"},
}


@pytest.fixture(params=LOOPS)
def run(request):
    return lambda main, *arguments: anyio.run(main, *arguments, **LOOPS[request.param])


def test_the_running_loop(run):
    async def main():
        assert running_loop() is running_loop()
        assert not running_loop().is_closed()
        return running_loop()

    assert run(main).is_closed()
    assert not is_trio_task()
    with pytest.raises(RuntimeError, match="no running event loop"):
        running_loop()


def test_what_is_shielded_goes_on_in_a_cancelled_task(run):
    async def main():
        with anyio.CancelScope() as scope:
            scope.cancel()
            with shielded(), pytest.raises(LimitExceeded):
                async with AsyncLimiter("1 concurrent for 1 minute", clock=clock).reserve("k", 2):
                    pass

    clock = FakeClock()
    run(main)


def test_calls_wait_in_turn_and_a_cancelled_one_leaves_the_queue(run):
    clock = FakeClock()
    limiter = AsyncLimiter("2/second burst 1", clock=clock)
    served = []

    async def call(number, scopes):
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            assert await limiter.acquire("k", timeout=60)
            served.append((number, clock.now))

    async def main():
        scopes = []
        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(call, number, scopes)
                await anyio.wait_all_tasks_blocked()
            scopes[2].cancel()
        assert not await limiter.acquire("k", timeout=0.1)
        assert not limiter._flows().queue.waiting

    run(main)
    assert [number for number, _ in served] == [number for number in range(5) if number in dict(served)]
    assert [instant for _, instant in served] == [0.5 * at for at in range(len(served))]
    assert len(served) in (4, 5)  # the third may have been served before it was cancelled


def test_a_call_that_is_cancelled_while_it_waits_gives_its_place_in_a_leaky_bucket_back(run):
    clock = FakeClock(auto=False)
    limiter = AsyncLimiter("1/second burst 3", algorithm="leaky_bucket", clock=clock)

    async def main():
        assert (await limiter.check("k")).delay == 0
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(limiter.acquire, "k")
                await anyio.wait_all_tasks_blocked()
                assert (await limiter.peek("k")).remaining == 1
                scope.cancel()
        assert (await limiter.peek("k")).remaining == 2

    run(main)


def test_a_wait_for_the_turn_ends_at_its_deadline(run):
    clock = FakeClock()
    limiter = AsyncLimiter("1 concurrent for 1 minute", clock=clock)

    async def main():
        async with limiter.reserve("k"):
            decision = await limiter.acquire("k", timeout=2)
            assert not decision
            assert clock.now == 2
        assert await limiter.acquire("k", timeout=2)

    run(main)


def test_pace_and_a_policy_with_a_delay(run):
    clock = FakeClock()
    paced = pace("2/second", clock=clock)
    policy = Policy.parse({"rules": [{"name": "r", "limit": "10/second", "by": "all"}]}, clock=clock)

    async def main():
        async for _ in paced.aeach("abc"):
            pass
        return [bool(await policy.acheck(Request(peer="192.0.2.1"))) for _ in range(11)]

    assert run(main) == [True] * 10 + [False]
    assert 1.0 <= clock.now < 1.05  # pacing leaves the server a margin


def test_every_call_on_redis(run, redis_server):
    async def main():
        limiter = AsyncLimiter("5/hour", store=f"{redis_server.url}?deadline=10s", name=uuid4().hex)
        assert [bool(await limiter.check("k")) for _ in range(7)] == [True] * 5 + [False] * 2
        await limiter.refund("k", 3)
        assert (await limiter.peek("k")).remaining == 3
        async with limiter.reserve("k", 2) as reservation:
            await reservation.settle(1)
        assert (await limiter.peek("k")).remaining == 2
        await limiter.reset("k")
        assert (await limiter.acquire("k", timeout=5)).remaining == 4
        both = AsyncLimiter(["4/hour", "9/day"], store=f"{redis_server.url}?deadline=10s", name=uuid4().hex)
        assert [bool(await both.check("k")) for _ in range(5)] == [True] * 4 + [False]
        await limiter.close()
        await both.close()

    run(main)


def test_many_tasks_get_exactly_the_limit_of_a_redis_store(run, redis_server):
    async def main():
        limiter = AsyncLimiter("50/hour", store=f"{redis_server.url}?deadline=10s", name=uuid4().hex)
        decisions = []

        async def ask():
            decisions.extend([await limiter.check("k") for _ in range(4)])

        async with anyio.create_task_group() as group:
            for _ in range(25):
                group.start_soon(ask)
        assert sum(map(bool, decisions)) == 50
        await limiter.close()

    run(main)


@pytest.mark.parametrize("kind", ["reserve", "acquire"])
def test_a_task_that_is_cancelled_before_during_or_after_the_question_holds_no_place(run, redis_server, kind):
    async def main():
        url = f"{redis_server.url}?deadline=10s"
        limiter = AsyncLimiter("20 concurrent for 1 hour", store=url, name=uuid4().hex)
        assert (await limiter.peek("k")).remaining == 20  # connected

        async def hold(scope):
            timeout = None if kind == "reserve" else 30.0
            with scope:
                async with limiter.reserve("k", timeout=timeout):
                    await anyio.sleep_forever()

        for turns in range(12):  # from before the question to after its answer
            scope = anyio.CancelScope()
            async with anyio.create_task_group() as group:
                if turns == 0:
                    scope.cancel()
                group.start_soon(hold, scope)
                for _ in range(turns):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        async with limiter.reserve("k", 20, timeout=30.0):  # a request that was withdrawn is given back soon
            pass
        await limiter.close()

    run(main)


@pytest.mark.parametrize("kind", ["limiter", "request"])
def test_a_cancelled_call_gives_its_place_back_to_redis(run, redis_server, kind, monkeypatch):
    sleeping = []
    sleep = MonotonicClock.asleep

    async def asleep(self, micros):
        sleeping[0].set()
        await sleep(self, micros)

    async def main():
        sleeping.append(anyio.Event())
        store = AsyncRedisStore(f"{redis_server.url}?deadline=10s")
        rule = {"name": uuid4().hex, "limit": "10/minute burst 8", "algorithm": "leaky_bucket", "by": "all"}
        limiter = AsyncLimiter(rule["limit"], store=store, name=rule["name"], algorithm="leaky_bucket")
        policy, request = Policy.parse({"rules": [rule]}, store=store), Request(peer="192.0.2.1")

        async def call():
            await (limiter.acquire("k") if kind == "limiter" else RequestLimits().acheck(policy, request))

        await call()
        with anyio.fail_after(30), anyio.CancelScope() as scope:
            async with anyio.create_task_group() as group:
                group.start_soon(call)  # would wait six seconds
                await sleeping[0].wait()
                scope.cancel()
        delay = (await (limiter.check("k") if kind == "limiter" else policy.acheck(request))).delay
        assert delay <= 6  # the second place again, not the third
        await store.close()

    monkeypatch.setattr(MonotonicClock, "asleep", asleep)
    run(main)


def test_prefetched_quotas_are_used_and_given_back(run, redis_server):
    async def main():
        store = AsyncRedisStore(f"{redis_server.url}?deadline=10s")
        limiter = AsyncLimiter("100/hour", store=store, name=uuid4().hex, prefetch=10)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await limiter.check("k")
        assert [bool(await limiter.check("k")) for _ in range(5)] == [True] * 5
        await limiter.close()
        again = AsyncLimiter("100/hour", store=store, name=limiter.name)
        assert (await again.peek("k")).remaining in (94, 95)  # the cancelled call may have been answered
        await store.close()

    run(main)


def test_a_store_that_is_away_has_a_fallback(run, caplog):
    async def main():
        with closed_port() as port:
            limiter = AsyncLimiter("4/hour", store=f"redis://127.0.0.1:{port}")
            assert [bool(await limiter.check("k")) for _ in range(3)] == [True, True, False]  # half of the limit
            await limiter.close()

    run(main)


@pytest.mark.full  # it starts a cluster
def test_a_plan_in_several_slots_of_a_cluster(run, redis_cluster):
    async def main():
        store = AsyncRedisStore(f"{redis_cluster.url}?deadline=10s")
        limiter = AsyncLimiter("3/hour", store=store, name=uuid4().hex)
        for key in "abc":
            assert [bool(await limiter.check(key)) for _ in range(4)] == [True] * 3 + [False]
        rules = [
            {"name": uuid4().hex, "by": "ip", "limit": "2/hour"},
            {"name": uuid4().hex, "by": "route", "limit": "9/hour"},
        ]
        policy = Policy.parse({"rules": rules}, store=store)
        verdicts = [await policy.acheck(Request(peer="192.0.2.1", path="/x")) for _ in range(3)]
        assert [verdict.allowed for verdict in verdicts] == [True, True, False]
        await store.close()

    run(main)

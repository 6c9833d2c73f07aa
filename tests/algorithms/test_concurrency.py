"""So many at once: leases that end when they are given back, or by themselves."""

import asyncio
import random
import threading
import uuid

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter, LimitExceeded
from ratekeeper.algorithms import concurrency
from ratekeeper.check import Check
from ratekeeper.errors import AlreadySettled, InvalidInput, InvalidLimit
from ratekeeper.limit import parse_limits
from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore  # in Python, also where there is a C one
from ratekeeper.stores.shared import SharedStore, remove
from ratekeeper.testing import FakeClock
from tests import tier


def shared(clock):
    return SharedStore(f"test-{uuid.uuid4().hex}", clock=clock, max_keys=1_000)


STORES = {
    "pure": lambda clock: MemoryStore(clock=clock),
    "memory": lambda clock: open_store("memory://", clock=clock),
    "shm": shared,
}


@pytest.fixture(params=STORES)
def make_store(request):
    made = []

    def make(clock):
        made.append(STORES[request.param](clock))
        return made[-1]

    yield make
    for store in made:
        store.close()
        if isinstance(store, SharedStore):
            remove(store.folder.name)


def make(make_store, text="2 concurrent for 30 seconds"):
    clock = FakeClock(start=100.0)
    return clock, Limiter(text, store=make_store(clock))


def test_a_lease_is_held_for_the_block_and_then_given_back(make_store):
    _, limiter = make(make_store)
    with limiter.reserve("k"), limiter.reserve("k"):
        assert limiter.peek("k").remaining == 0
        with pytest.raises(LimitExceeded) as caught, limiter.reserve("k"):
            pass
        assert caught.value.retry_after == 30.0
        assert limiter.reserve("other")
    assert limiter.peek("k").remaining == 2


def test_an_exception_gives_it_back(make_store):
    _, limiter = make(make_store)
    with pytest.raises(OSError, match="gone"), limiter.reserve("k"):
        raise OSError("gone")
    assert limiter.peek("k").remaining == 2


def test_a_lease_that_nobody_gives_back_ends_by_itself(make_store):
    clock, limiter = make(make_store)
    assert limiter.check("k", cost=2)
    clock.advance(29.999999)
    assert not limiter.check("k")
    clock.advance(0.000001)
    assert limiter.check("k", cost=2)


def test_giving_back_a_lease_that_has_ended_takes_nobody_elses_away(make_store):
    clock, limiter = make(make_store)
    late = limiter.reserve("k")
    clock.advance(30)
    assert limiter.reserve("k")
    assert limiter.reserve("k")
    late.settle(0)
    assert limiter.peek("k").remaining == 0
    assert not limiter.check("k")


def test_a_renewed_lease_begins_anew(make_store):
    clock, limiter = make(make_store)
    lease, other = limiter.reserve("k"), limiter.reserve("k")
    for _ in range(10):
        clock.advance(20)
        assert lease.renew()
        if other is not None:
            assert limiter.peek("k").remaining == 0  # a renewal is no place more
            assert not limiter.check("k")
            other.settle(0)
            other = None
        assert limiter.peek("k").remaining == 1
    lease.settle(0)
    assert limiter.peek("k").remaining == 2
    with pytest.raises(AlreadySettled) as caught:
        lease.renew()
    assert str(caught.value) == "renew: expected a lease that is held, but it was given back or refused."


def test_a_lease_that_has_ended_is_renewed_like_anybody_else(make_store):
    clock, limiter = make(make_store)
    late, later = limiter.reserve("k"), limiter.reserve("k")
    clock.advance(30)
    assert limiter.check("k")  # somebody has one of the places
    assert late.renew()  # and this one the other
    assert not later.renew()
    assert limiter.peek("k").remaining == 0
    late.settle(0)
    assert limiter.peek("k").remaining == 1


def test_a_rate_cannot_be_renewed():
    with pytest.raises(InvalidInput) as caught:
        Limiter("2/minute").reserve("k").renew()
    assert str(caught.value) == (
        "renew: expected a lease, of a limit such as '20 concurrent', got '2/minute'. "
        "What a rate has admitted does not end."
    )


def test_all_renew_at_once_and_nobody_else_gets_in(make_store):
    """A random walk beside a plain count of who holds."""
    rng = random.Random(5)
    clock, limiter = make(make_store, "4 concurrent for 30 seconds")
    held = []
    for _ in range(2000):
        clock.advance(rng.choice([0, 0.000001, 1, 9]))
        step = rng.random()
        if step < 0.4:
            lease = limiter.reserve("k")
            assert bool(lease) is (len(held) < 4)
            if lease:
                held.append(lease)
        elif step < 0.6 and held:
            held.pop(rng.randrange(len(held))).settle(0)
        for lease in held:  # so none ever ends by itself
            assert lease.renew()
        assert limiter.peek("k").remaining == 4 - len(held)


def test_async_blocks_renew_at_every_beat(make_store):
    async def main():
        clock = FakeClock(start=100.0)
        limiter = AsyncLimiter("1 concurrent for 30 seconds", store=make_store(clock))
        async with limiter.reserve("k") as lease:
            assert lease._heartbeat.seconds == 10.0
            for _ in range(5):
                clock.advance(29)
                lease._heartbeat.beat()
                await lease._heartbeat.beating
            assert not await limiter.check("k")  # long after the first lease would have ended
            clock.advance(29)
            lease._heartbeat.beat()  # still under way at the end of the block
        assert (await limiter.peek("k")).remaining == 1
        assert lease._heartbeat.timer.cancelled()
        async with limiter.reserve("k") as lost:
            clock.advance(30)
            assert await limiter.check("k")
            lost._heartbeat.beat()
            await lost._heartbeat.beating
            assert lost.settled
            lost._heartbeat.beat()  # nothing to renew
            await lost._heartbeat.beating
        assert (await limiter.peek("k")).remaining == 0  # that of the other

    asyncio.run(main())


def test_a_lowered_limit_waits_for_leases_to_come_back(make_store):
    clock, limiter = make(make_store, "5 concurrent")
    if isinstance(limiter.store, SharedStore):
        pytest.skip("a table in shared memory has room for one count, and refuses another")
    lowered = Limiter("2 concurrent", store=limiter.store, name=limiter.name)
    held = [limiter.reserve("k") for _ in range(4)]
    clock.advance(1)
    assert not lowered.check("k")
    for lease in held[:3]:
        lease.settle(0)
    assert lowered.peek("k").remaining == 1


def test_waiting_for_a_lease_that_another_gives_back(make_store):
    async def main():
        clock = FakeClock()
        limiter = AsyncLimiter("1 concurrent for 1 hour", store=make_store(clock))
        order = []

        async def work(name, seconds):
            async with limiter.reserve("k", timeout=60):
                order.append((name, round(clock.now)))
                await clock.asleep(round(seconds * 1e6))

        await asyncio.gather(work("a", 5), work("b", 3), work("c", 1))
        assert order == [("a", 0), ("b", 5), ("c", 8)]
        lease = await limiter.reserve("k")
        late = await limiter.reserve("k", timeout=2)
        assert not late
        assert 11.0 <= clock.now <= 11.2
        await lease.settle(0)
        never = await limiter.reserve("k", cost=2, timeout=2)
        assert never.decision.retry_after is None

    asyncio.run(main())


def test_cancellation_gives_it_back(make_store):
    async def main():
        clock = FakeClock(auto=False)
        limiter = AsyncLimiter("1 concurrent", store=make_store(clock))

        async def work():
            async with limiter.reserve("k", timeout=9):
                await asyncio.Event().wait()

        holder, waiter = asyncio.create_task(work()), asyncio.create_task(work())
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await limiter.peek("k")).remaining == 0
        for task in (waiter, holder):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await limiter.peek("k")).remaining == 1
        assert not limiter._flows().queue.waiting

    asyncio.run(main())


def test_decorated_functions_hold_a_lease_while_they_run(make_store):
    _, limiter = make(make_store, "1 concurrent")
    slow = AsyncLimiter("1 concurrent", store=limiter.store)

    @limiter.limit(key="k")
    def nested(depth):
        return nested(depth - 1) if depth else "done"

    @limiter.limit(key="k")
    async def plain():
        return limiter.peek("k").remaining

    @slow.limit(key="k")
    async def awaited():
        return limiter.peek("k").remaining

    assert nested(0) == "done"
    with pytest.raises(LimitExceeded):
        nested(1)
    assert asyncio.run(plain()) == asyncio.run(awaited()) == 0
    assert limiter.peek("k").remaining == 1


def test_threads_never_hold_more_than_the_limit(make_store):
    limiter = Limiter("3 concurrent", store=make_store(None))
    inside, most, done, lock = 0, 0, 0, threading.Lock()

    def work():
        nonlocal inside, most, done
        for _ in range(100):
            with limiter.reserve("k", timeout=30):
                with lock:
                    inside += 1
                    most = max(most, inside)
                with lock:
                    inside -= 1
                    done += 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (done, inside) == (600, 0)
    assert 1 <= most <= 3
    assert limiter.peek("k").remaining == 3


def walk(ask, clock, limit, seed, steps):
    """Random takes and returns beside a plain set of leases; ``ask`` is the store's."""
    chance = random.Random(seed)
    leases: list[int] = []
    everyone: list[int] = []
    for _ in range(steps):
        clock.advance(chance.choice([0, 0, 0.000001, 0.5, 3]))
        now = clock.micros
        leases = [at for at in leases if at + limit.micros > now]
        if chance.random() < 0.6 or not everyone:
            cost = chance.choice([1, 1, 1, 2, limit.count, limit.count + 1])
            (decision,) = ask("check", (Check("walk", "k", limit, cost),))
            assert decision.allowed == (len(leases) + cost <= limit.count)
            if decision.allowed:
                leases += [decision.at] * cost
                everyone += [decision.at] * cost
            elif cost <= limit.count:
                blocking = sorted(leases)[len(leases) + cost - limit.count - 1]
                assert round(decision.retry_after * 1e6) == blocking + limit.micros - now
        else:
            at = everyone.pop(chance.randrange(len(everyone)))  # perhaps one that has ended
            (decision,) = ask("refund", (Check("walk", "k", limit, 1),), at)
            if at in leases:
                leases.remove(at)
        assert decision.remaining == limit.count - len(leases)


@pytest.mark.parametrize("seed", range(tier.steps(6, 2)))
def test_random_takes_and_returns_are_those_of_a_set(make_store, seed):
    clock = FakeClock(start=1000.0)
    store = make_store(clock)
    walk(
        lambda operation, *words: getattr(store, operation)(*words),
        clock,
        Limit.parse("5 concurrent for 10 seconds"),
        seed,
        300,
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("20 concurrent", "20 concurrent"),
        ("20 concurrent for 60 seconds", "20 concurrent"),
        ("20 concurrent for 90s", "20 concurrent for 90 seconds"),
        ("20 concurrent for hour", "20 concurrent for 1 hour"),
    ],
)
def test_how_it_is_written(text, shown):
    limit = Limit.parse(text)
    assert str(limit) == shown
    assert Limit.parse(str(limit)) == limit
    assert (limit.is_leased, limit.capacity, limit.layout) == (True, 20, "leases:2")
    assert Limit(20, limit.period, algorithm="concurrency") == limit


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "20 concurrent burst 3",
            "limit '20 concurrent burst 3': expected nothing more, or 'for' and how long a lease lasts at most, "
            "got 'burst 3'.",
        ),
        ("0 concurrent", "limit '0 concurrent': expected a count from 1 to 65,536, got 0. "
                         "To refuse everybody, take the route away."),
        (
            ["20 concurrent", "5/minute"],
            "limits: expected '20 concurrent' alone, as its leases are given back and the other limits have none, "
            "got a list. Put it into a limiter or a rule of its own.",
        ),
    ],
)  # fmt: skip
def test_mistakes(text, message):
    with pytest.raises(InvalidLimit) as caught:
        parse_limits(text)
    assert str(caught.value) == message


def test_a_lease_is_not_refunded_by_key():
    with pytest.raises(InvalidInput) as caught:
        Limiter("2 concurrent").refund("k")
    assert str(caught.value) == (
        "refund: expected a limit without leases, got '2 concurrent', which is given back by the lease. "
        "Use reserve() as a block, or settle its reservation."
    )


def test_a_debit_takes_the_places_that_are_free():
    limit = Limit.parse("2 concurrent")
    state = concurrency.debit(concurrency.EMPTY, 0, limit, 3)
    assert concurrency.remaining(state, 0, limit) == 0
    assert concurrency.debit(state, 0, limit, 1) == state

"""What keeps leases alive and gives them back, step by step on real stores: the thread itself is run in tests/real."""

import asyncio
import os

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow import lease_renewal as module
from ratekeeper.flow.lease_renewal import BEATS, HEARTBEAT, LeaseRenewer, named_lease, renewer_of
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import FakeClock
from ratekeeper.units import SECOND

LIMIT = Limit.parse("2 concurrent for 10 minutes")


class Faulty(MemoryStore):
    """A store whose answers can be lost, before or after it did what it was asked."""

    needs_heartbeats = True
    blocking = True
    renewer = None
    lost = ""

    def ask(self, operation, plan):
        if self.lost == "before":
            raise StoreUnavailable("x", "gave no answer", charged=None)
        answer = getattr(super(), operation)(plan)
        if self.lost == "after":
            raise StoreUnavailable("x", "gave no answer", charged=None)
        return answer

    def renew(self, plan):
        return self.ask("renew", plan)

    def end_leases(self, plan):
        return self.ask("end_leases", plan)


@pytest.fixture
def world(monkeypatch):
    """A clock, a store, and its renewer without a thread: a test lets it work."""
    clock = FakeClock(start=1000.0)
    monkeypatch.setattr(module, "monotonic", lambda: clock.now)
    monkeypatch.setattr(LeaseRenewer, "start", lambda renewer: None)
    store = Faulty(clock=clock)
    return clock, store, renewer_of(store)


def taken(store, renewer, cost=1):
    lease = named_lease(Check("s", "k", LIMIT, cost), store)
    assert all(store.check((lease,)))
    renewer.keep(lease)
    return lease


def remaining(store):
    return store.peek((Check("s", "k", LIMIT, 1),))[0].remaining


def test_a_lease_lasts_three_heartbeats_or_its_period_if_that_is_shorter():
    store = Faulty(clock=FakeClock())
    assert named_lease(Check("s", "k", LIMIT, 1), store).lasts == BEATS * HEARTBEAT == 15 * SECOND
    assert named_lease(Check("s", "k", Limit.parse("2 concurrent for 3 seconds"), 1), store).lasts == 3 * SECOND
    assert named_lease(Check("s", "k", LIMIT, 1), MemoryStore()).lasts == LIMIT.micros


def test_stores_of_this_process_need_no_keeper():
    assert renewer_of(MemoryStore()) is None
    assert renewer_of(RedisStore("redis://x", clock=FakeClock())) is None


def test_a_lease_that_nobody_renews_ends_after_three_heartbeats(world):
    clock, store, renewer = world
    taken(store, renewer)
    clock.advance(14.999999)
    assert remaining(store) == 1
    clock.advance(0.000001)
    assert remaining(store) == 2


def test_one_command_renews_all_leases_until_their_period_ends(world):
    clock, store, renewer = world
    lease, _ = taken(store, renewer), taken(store, renewer)
    asked = []
    store.renew = lambda plan: asked.append(len(plan)) or MemoryStore.renew(store, plan)
    for _ in range(119):
        assert renewer.work() == pytest.approx(5.0, abs=1e-6)
        clock.advance(5)
        assert remaining(store) == 0
    renewer.work()
    clock.advance(5)
    assert asked == [2] * 119
    renewer.work()
    assert remaining(store) == 2  # ten minutes: the longest that a holder may keep it
    assert not renewer.has(lease)


def test_leases_that_are_due_soon_are_renewed_together(world):
    clock, store, renewer = world
    taken(store, renewer)
    clock.advance(1)
    taken(store, renewer)
    asked = []
    store.renew = lambda plan: asked.append(len(plan)) or MemoryStore.renew(store, plan)
    clock.advance(4)
    renewer.work()
    assert asked == [2]


def test_a_renewed_period_begins_anew(world):
    clock, store, renewer = world
    lease = taken(store, renewer)
    for _ in range(100):
        renewer.work()
        clock.advance(5)
    renewer.keep(lease)
    for _ in range(100):
        renewer.work()
        clock.advance(5)
        assert remaining(store) == 1


def test_heartbeats_that_are_missed_are_made_up_for(world):
    clock, store, renewer = world
    taken(store, renewer)
    clock.advance(5)
    store.lost = "before"
    for _ in range(8):
        assert 0 < renewer.work() <= 1.0
        clock.advance(1)
    store.lost = ""
    renewer.work()
    clock.advance(9)
    assert remaining(store) == 1


def test_a_lease_that_ended_while_the_store_was_away_is_taken_again_if_there_is_room(world):
    clock, store, renewer = world
    first, second = taken(store, renewer), taken(store, renewer)
    clock.advance(20)
    assert store.check((Check("s", "k", LIMIT, 1),))[0].allowed  # another holder has one of the places
    renewer.work()
    assert remaining(store) == 0
    assert [renewer.has(first), renewer.has(second)].count(True) == 1


def test_give_backs_are_delivered_in_order_when_the_store_is_back(world):
    clock, store, renewer = world
    leases = [taken(store, renewer), taken(store, renewer)]
    store.lost = "before"
    renewer.withdraw(leases)
    for _ in range(5):
        assert renewer.work() <= 1.0
        clock.advance(1)
    assert remaining(store) == 0
    asked = []
    store.lost = ""
    store.end_leases = lambda plan: asked.extend(plan) or MemoryStore.end_leases(store, plan)
    renewer.work()
    assert [check.lease for check in asked] == [lease.lease for lease in leases]
    assert (remaining(store), renewer.give_backs) == (2, {})


def test_a_give_back_without_an_answer_is_sent_again_and_ends_nothing_else(world):
    clock, store, renewer = world
    lease = taken(store, renewer)
    store.lost = "after"
    renewer.withdraw([lease])
    renewer.work()
    assert remaining(store) == 2
    store.lost = ""
    taken(store, renewer)
    clock.advance(1)
    renewer.work()
    assert (remaining(store), renewer.give_backs) == (1, {})


def test_a_request_that_arrives_after_its_withdrawal_takes_nothing(world):
    _, store, renewer = world
    late = named_lease(Check("s", "k", LIMIT, 1), store)
    renewer.withdraw([late])
    renewer.work()
    assert not all(store.check((late,)))
    assert remaining(store) == 2


def test_a_lease_that_is_dropped_while_its_renewal_is_under_way_is_unsure(world):
    clock, store, renewer = world
    lease = taken(store, renewer)
    dropped = []
    store.renew = lambda plan: dropped.append(renewer.drop(lease)) or MemoryStore.renew(store, plan)
    clock.advance(5)
    renewer.work()
    assert dropped == [True]
    assert renewer.drop(lease) is False


def test_a_lease_whose_renewal_got_no_answer_is_unsure(world):
    clock, store, renewer = world
    lease = taken(store, renewer)
    clock.advance(5)
    store.lost = "after"
    renewer.work()
    assert renewer.drop(lease) is True


def test_give_backs_that_wait_are_bounded(world, monkeypatch):
    _, store, renewer = world
    monkeypatch.setattr(module, "MOST_GIVE_BACKS", 3)
    leases = [named_lease(Check("s", "k", LIMIT, 1), store) for _ in range(5)]
    renewer.withdraw(leases)
    assert list(renewer.give_backs) == [lease.lease for lease in leases[2:]]


def test_a_lease_held_for_ever_ends_with_its_loop(world):
    clock, store, renewer = world

    async def hold():
        renewer.keep_for_ever(taken(store, renewer))
        for _ in range(200):
            renewer.work()
            clock.advance(5)
        assert remaining(store) == 1

    asyncio.run(hold())
    renewer.work()
    clock.advance(15)
    assert remaining(store) == 2


def test_a_closed_keeper_delivers_what_waits_and_renews_nothing(world):
    _, store, renewer = world
    lease, other = taken(store, renewer), taken(store, renewer)
    renewer.withdraw([lease])
    renewer.close()
    assert remaining(store) == 1
    assert not renewer.has(other)
    assert renewer_of(store) is not renewer


def test_a_child_process_holds_nothing_of_its_parent(world):
    _, store, renewer = world
    taken(store, renewer)
    child = os.fork()
    if not child:
        os._exit(len(renewer.held) + len(renewer.give_backs))
    assert os.waitpid(child, 0)[1] == 0
    assert len(renewer.held) == 1


def test_a_task_that_is_cancelled_at_any_await_leaves_its_place(redis_server):
    """Cancelled before, during and after the question, with the reply on its way or there."""

    async def main():
        name = "cancelled at any await"
        store = AsyncRedisStore(redis_server.url, deadline=10)
        limiter = AsyncLimiter("3 concurrent for 10 minutes", store=store, name=name)
        await limiter.reset("k")
        for turns in range(40):

            async def work():
                async with limiter.reserve("k"):
                    await asyncio.sleep(0)

            task = asyncio.create_task(work())
            for _ in range(turns % 13):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await store.close()

    asyncio.run(main())
    watcher = Limiter("3 concurrent for 10 minutes", store=RedisStore(redis_server.url, deadline=10),
                      name="cancelled at any await")  # fmt: skip
    with watcher.reserve("k", cost=3, timeout=10):  # as soon as the renewer has delivered
        pass
    watcher.store.close()

"""Stores on compare-and-set for event loops: the contract of every store, batches, deadlines and leases."""

import asyncio

import pytest
from anyio.from_thread import start_blocking_portal

from ratekeeper import AsyncLimiter, Limit
from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.lease_renewal import named_lease, renewer_of
from ratekeeper.stores.compare_and_set.aio_store import ThreadedStore
from ratekeeper.testing import TimedStoreContract
from tests import tier
from tests.stores.backends import AsyncDictStore, AsyncTransactionalStore, DictStore, LockedStore
from tests.stores.prepared import ThroughPrepared, ThroughTables

LIMIT = Limit.parse("5 per 50 days")
DAY = Limit.parse("7/day fixed_window")


class OnLoop(TimedStoreContract):
    """The contract, asked from the tasks of an event loop on trio's or asyncio's."""

    backend = "asyncio"

    def setup_method(self):
        self.opened = start_blocking_portal(self.backend)
        self.portal = self.opened.__enter__()
        self.loop = self.portal.call(asyncio.get_running_loop) if self.backend == "asyncio" else None
        super().setup_method()

    def ask(self, operation, *arguments):
        return self.portal.call(self.asked, operation, arguments)

    async def asked(self, operation, arguments):
        return await getattr(self.store, operation)(*arguments)

    def teardown_method(self):
        self.ask("close")
        self.opened.__exit__(None, None, None)


class TestAsyncDictStore(OnLoop):
    def make_store(self):
        return AsyncDictStore(deadline=30, clock=self.clock)


@pytest.mark.full  # the same promises by another way
class TestAsyncTransactionalStore(OnLoop):
    def make_store(self):
        return AsyncTransactionalStore(deadline=30, clock=self.clock)


@pytest.mark.full  # the same promises by another way
class TestThreadedStore(OnLoop):
    def make_store(self):
        return ThreadedStore(LockedStore(deadline=30, clock=self.clock))


@pytest.mark.full  # the same promises by another way
class TestThreadedDictStore(OnLoop):
    def make_store(self):
        return ThreadedStore(DictStore(deadline=30, clock=self.clock))


@pytest.mark.full  # the same promises by another way
class TestAsyncDictStoreThroughPrepared(ThroughPrepared, TestAsyncDictStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncDictStoreThroughTables(ThroughTables, TestAsyncDictStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncDictStoreOnTrio(TestAsyncDictStore):
    backend = "trio"
    if not tier.FULL:  # thousands of steps, each through a thread
        test_answers_are_those_of_the_pure_rule_step_by_step = None


def plan(*keys, limit=LIMIT, cost=1):
    return tuple(Check("s", key, limit, cost) for key in keys)


async def until(holds):
    while not holds():  # noqa: ASYNC110 - what it waits for tells nobody
        await asyncio.sleep(0)


def test_tasks_on_one_key_are_decided_by_one_write():
    async def run():
        store = AsyncDictStore(deadline=30)
        decisions = await asyncio.gather(*[store.check(plan("hot")) for _ in range(64)])
        assert sum(decision.allowed for (decision,) in decisions) == 5
        assert (store.records.reads, store.records.writes, store.records.lost) == (1, 1, 0)
        assert not store.lanes

    asyncio.run(run())


def test_keys_of_their_own_do_not_wait_for_each_other():
    async def run():
        store = AsyncDictStore(deadline=30)
        await asyncio.gather(*[store.check(plan(f"k{number}")) for number in range(20)])
        assert (store.records.reads, store.records.writes) == (20, 20)

    asyncio.run(run())


class SilentStore(AsyncDictStore):
    """A backend that does not answer reads, or writes, until it is told to."""

    silent = ()

    async def get(self, name):
        if "get" in self.silent:
            await asyncio.Event().wait()
        return await super().get(name)

    async def compare_and_set(self, name, version, value, seconds):
        written = await super().compare_and_set(name, version, value, seconds)
        if "compare_and_set" in self.silent:  # carried out, but the answer is lost
            await asyncio.Event().wait()
        return written


@pytest.mark.parametrize(("silent", "charged"), [("get", False), ("compare_and_set", None)])
def test_a_backend_that_gives_no_answer_is_given_up_at_the_deadline(silent, charged):
    async def run():
        store = SilentStore(deadline=0.01)
        store.silent = (silent,)
        with pytest.raises(StoreUnavailable, match="gave no answer in 10 ms") as caught:
            await store.check(plan("a"))
        assert caught.value.charged is charged

    asyncio.run(run())


def test_a_lost_answer_is_counted_once_by_the_backend_and_never_again():
    async def run():
        store = SilentStore(deadline=0.01, on_store_error="allow")
        limiter = AsyncLimiter(LIMIT, store=store)
        store.silent = ("compare_and_set",)
        decision = await limiter.check("a")
        assert decision.reason == "allow: gave no answer in 10 ms"
        store.silent = ()
        store.breaker.close(0.0)
        store.deadline = 30
        assert (await limiter.peek("a")).remaining == 4
        assert not store.fallback.owing

    asyncio.run(run())


def test_a_task_that_is_cancelled_leaves_its_batch():
    async def run():
        store = AsyncDictStore(deadline=30)
        tasks = [asyncio.ensure_future(store.check(plan("a"))) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert [task.cancelled() for task in tasks] == [False, True, False]

    asyncio.run(run())


def test_a_cancelled_plan_on_several_records_is_settled():
    async def run():
        store = AsyncDictStore(deadline=30)
        rows = (*plan("a"), *plan("b", limit=DAY))
        task = asyncio.ensure_future(store.check(rows))
        await until(lambda: store.records.writes)  # the first of two records is written
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not store.tasks)
        both = [decision.remaining for decision in await store.peek(rows)]
        assert both == [4, 6]  # all of it, never a part

    asyncio.run(run())


@pytest.mark.parametrize("make", [AsyncDictStore, lambda **options: ThreadedStore(DictStore(**options))])
def test_leases_are_renewed_and_given_back_from_a_thread(make):
    async def run():
        store = make(deadline=30)
        limiter = AsyncLimiter("2 concurrent", store=store)
        async with limiter.reserve("a"):
            assert (await limiter.peek("a")).remaining == 1
            renewer = renewer_of(store)
            for held in renewer.held.values():
                held.beat_at = 0.0
            await asyncio.get_running_loop().run_in_executor(None, renewer.work)
            assert [held.beat_at > 0 for held in renewer.held.values()] == [True]
        assert (await limiter.peek("a")).remaining == 2
        lease = named_lease(Check(limiter.name, "a", limiter.limits, 1), store)
        assert all(await store.check((lease,)))
        renewer.withdraw([lease])
        await store.close()
        assert not renewer.give_backs

    asyncio.run(run())


def test_a_thread_cannot_ask_a_store_whose_loop_has_ended():
    store = AsyncDictStore(deadline=30)
    asyncio.run(store.check(plan("a")))
    with pytest.raises(StoreUnavailable, match="cannot be asked, as its event loop has ended"):
        store.for_threads().renew(plan("a"))


def test_what_the_fallback_admitted_is_charged_when_the_backend_answers_again():
    async def run():
        store = SilentStore(deadline=0.01)
        limiter = AsyncLimiter("10 per 50 days", store=store)
        store.silent = ("get",)
        assert [(await limiter.check("a")).reason[:6] for _ in range(3)] == ["local:"] * 3
        store.silent, store.deadline, store.settle_at = (), 30, 0.0
        store.breaker.probe_at = 0.0
        assert (await limiter.check("b")).reason == ""
        await until(lambda: not store.tasks and not store.fallback.owing)
        assert (await limiter.peek("a")).remaining == 7

    asyncio.run(run())

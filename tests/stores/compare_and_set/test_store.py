"""The store on compare-and-set, for threads: the contract of every store on three kinds of backends, and more."""

import os
import threading
from contextlib import contextmanager

import pytest

from ratekeeper import Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.testing import StoreContract, TimedStoreContract
from tests.stores.backends import DictStore, LockedStore, Records, TransactionalStore
from tests.stores.prepared import ThroughPrepared, ThroughTables


@pytest.mark.full  # the other contract has all of it, on a clock of its own
class TestDictStore(StoreContract):
    def make_store(self):
        return DictStore(deadline=30)


class TestDictStoreOverTime(TimedStoreContract):
    def make_store(self):
        return DictStore(deadline=30, clock=self.clock)


@pytest.mark.full  # the same promises by another way
class TestTransactionalStoreOverTime(TimedStoreContract):
    def make_store(self):
        return TransactionalStore(deadline=30, clock=self.clock)


class TestLockedStoreOverTime(TimedStoreContract):
    def make_store(self):
        return LockedStore(deadline=30, clock=self.clock)


@pytest.mark.full  # the same promises by another way
class TestDictStoreThroughPrepared(ThroughPrepared, TestDictStoreOverTime):
    pass


@pytest.mark.full  # the same promises by another way
class TestDictStoreThroughTables(ThroughTables, TestDictStoreOverTime):
    pass


LIMIT = Limit.parse("5 per 50 days")


def plan(*keys, limit=LIMIT, cost=1):
    return tuple(Check("s", key, limit, cost) for key in keys)


def test_threads_on_one_key_never_compete():
    store = DictStore(deadline=60)
    limiter = Limiter("200 per 50 days", store=store)
    admitted = []

    def run():
        admitted.append(sum(bool(limiter.check("hot")) for _ in range(30)))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 200
    assert store.records.lost == 0
    assert not store.lanes


def test_threads_that_come_meanwhile_are_decided_by_one_write():
    store = DictStore(deadline=60)
    first, go_on = threading.Event(), threading.Event()

    def hold_first(names):
        store.records.on_read = lambda names: None
        first.set()
        go_on.wait()

    store.records.on_read = hold_first
    decisions = []
    threads = [threading.Thread(target=lambda: decisions.append(store.check(plan("a"))[0])) for _ in range(8)]
    threads[0].start()
    first.wait()
    for thread in threads[1:]:
        thread.start()
    lane = next(iter(store.lanes.values()))
    while len(lane.combiner.line) < 7:
        pass
    go_on.set()
    for thread in threads:
        thread.join()
    assert sum(decision.allowed for decision in decisions) == 5
    assert store.records.writes == 2


def test_stores_of_several_processes_get_exactly_the_limit():
    records = Records()
    stores = [DictStore(records, deadline=60) for _ in range(4)]
    admitted = []

    def run(store):
        admitted.append(sum(bool(store.check(plan("hot", limit=Limit.parse("100 per 50 days")))[0]) for _ in range(50)))

    threads = [threading.Thread(target=run, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 100


def test_no_refusal_while_tokens_are_left_however_often_others_write():
    records = Records()
    store, other = DictStore(records, deadline=60), DictStore(records, deadline=60)
    rivals = iter(range(20))

    def write_first(name):
        if threading.current_thread() is threading.main_thread() and next(rivals, None) is not None:
            thread = threading.Thread(target=other.check, args=(plan("hot", limit=roomy),))
            thread.start()
            thread.join()

    roomy = Limit.parse("1000 per 50 days")
    records.before_write = write_first
    assert store.check(plan("hot", limit=roomy))[0].allowed
    assert records.lost == 20
    assert store.peek(plan("hot", limit=roomy))[0].remaining == 1000 - 21


def test_a_contest_that_does_not_end_is_left_to_the_fallback_and_nothing_is_taken():
    records = Records()
    store = DictStore(records, deadline=0.01, on_store_error="deny")
    records.before_write = lambda name: records.kept.update({name: (records.read(name)[0], next(records.versions))})
    limiter = Limiter(LIMIT, store=store)
    decision = limiter.check("hot")
    assert decision.reason.startswith("deny: other processes changed the same record before each of")
    assert not store.breaker.is_open  # a contest is no outage
    records.before_write = lambda name: None
    assert limiter.peek("hot").remaining == 5


def test_a_lost_answer_is_counted_once_by_the_backend_and_never_again():
    store = DictStore(deadline=60)
    limiter = Limiter("10 per 50 days", store=store)

    def lose(name):
        raise OSError("connection reset")

    store.records.after_write = lose
    decision = limiter.check("a")
    assert decision.allowed
    assert decision.reason == "local: gave an error (OSError: connection reset)"
    assert not store.fallback.owing  # the backend may have counted it, so it is not charged again
    store.records.after_write = lambda name: None
    store.breaker.probe_at = 0.0
    assert limiter.check("a").remaining == 8


def test_a_plan_whose_lock_fails_at_the_end_is_not_counted():
    class FailingCommit(LockedStore):
        @contextmanager
        def exclusive(self):
            with super().exclusive():
                yield
                raise OSError("disk full")

    store = FailingCommit(deadline=60)
    with pytest.raises(StoreUnavailable, match="disk full") as caught:
        store.check(plan("a", "b"))
    assert caught.value.charged is None
    assert not store.records.kept


def test_errors_that_are_not_the_backends_are_not_hidden():
    store = DictStore(deadline=60)

    def mistaken(names):
        raise KeyError("a mistake in get")

    store.records.on_read = mistaken
    with pytest.raises(KeyError, match="a mistake in get"):
        store.check(plan("a"))
    assert not store.breaker.is_open


def test_reservations_settle_with_debt_and_leases_end():
    store = DictStore(deadline=60)
    tokens = Limiter("1000 per 50 days", store=store)
    with tokens.reserve("a", 400) as reservation:
        reservation.settle(1500)
    assert tokens.peek("a").remaining == 0
    assert tokens.peek("a").retry_after > 24 * 86_400  # in debt
    slots = Limiter("2 concurrent", store=store)
    with slots.reserve("a"), slots.reserve("a"):
        assert not slots.check("a")
    assert slots.peek("a").remaining == 2
    slots.close()


def test_a_forked_child_starts_without_the_parents_debts():
    store = DictStore(deadline=60)
    limiter = Limiter("10 per 50 days", store=store)

    def fail(names):
        raise OSError("away")

    store.records.on_read = fail
    limiter.check("a")
    assert store.fallback.owing
    child = os.fork()
    if not child:
        os._exit(bool(store.fallback.owing))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.fallback.owing


def test_a_policy_decides_several_rules_on_one_store():
    store = DictStore(deadline=60)
    rows = (("user", Limit.parse("5/day"), 1, None), ("all", Limit.parse("8/day"), 1, None))
    prepared = store.prepare(rows)
    answers = [prepared.check((user, "everybody"))[0] for user in "aaaaaabbbb"]
    assert answers == [True] * 5 + [False] + [True] * 3 + [False]
    with pytest.raises(TypeError, match="expected a tuple of 2 keys"):
        prepared.check(("a",))


def test_closing_charges_what_is_owed_and_disconnects_once():
    closed = []

    class Closing(DictStore):
        def disconnect(self):
            closed.append(True)

    store = Closing(deadline=60)
    limiter = Limiter("10 per 50 days", store=store)

    def fail(names):
        raise OSError("away")

    store.records.on_read = fail
    assert limiter.check("a").reason
    store.records.on_read = lambda names: None
    store.breaker.close(0.0)
    store.close()
    store.close()
    assert closed == [True]
    assert DictStore(store.records, deadline=60).peek((Check(limiter.name, "a", limiter.limits, 1),))[0].remaining == 9

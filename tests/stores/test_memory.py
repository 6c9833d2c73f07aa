"""The in-process store: the contract, the bound on its size, fork, and the freezing of an application."""

import os
import random

import pytest

from ratekeeper import InvalidStore, Limit, Limiter
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.options import MOST_TABLES
from ratekeeper.testing import FakeClock, TimedStoreContract, frozen
from tests import tier
from tests.stores.prepared import ThroughPrepared, ThroughTables


class TestMemoryStore(TimedStoreContract):
    pass


class TestMemoryStoreThroughPrepared(ThroughPrepared, TestMemoryStore):
    pass


class TestMemoryStoreThroughTables(ThroughTables, TestMemoryStore):
    pass


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flood_of_keys_neither_grows_the_table_nor_unblocks_the_exhausted(algorithm):
    clock = FakeClock(start=1000.0)
    store = MemoryStore(clock=clock, max_keys=2_000)
    limiter = Limiter("5/hour", algorithm=algorithm, store=store)
    victims = [f"victim {number}" for number in range(100)]
    for victim in victims:
        limiter.check(victim, cost=5)
    for number in range(tier.steps(20_000, 6_000)):
        clock.advance(0.000_01)
        limiter.check(("flood", number))
    table = store.table(limiter.name, limiter.limits)
    assert len(table.states) == len(table.keys) == 2_000
    assert set(table.keys) == set(table.states)
    assert not any(limiter.check(victim) for victim in victims)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_flood_hardly_unblocks_anybody_where_half_are_exhausted(algorithm):
    clock = FakeClock(start=1000.0)
    store = MemoryStore(clock=clock, max_keys=2_000)
    limiter = Limiter("5/hour", algorithm=algorithm, store=store)
    store.table(limiter.name, limiter.limits).odds = 1
    victims = [f"victim {number}" for number in range(1_000)]
    for victim in victims:
        clock.advance(0.001)
        limiter.check(victim, cost=5)
    for number in range(tier.steps(20_000, 6_000)):
        clock.advance(0.000_01)
        limiter.check(f"flood {number}")
    assert sum(limiter.check(victim).allowed for victim in victims) <= 16  # one sample of nobody else


def test_a_full_table_forgets_the_recovered_first():
    clock = FakeClock(start=1000.0)
    limiter = Limiter("5/second", clock=clock, max_keys=100)
    for number in range(100):
        limiter.check(f"old {number}", cost=5)
    clock.advance(0.5)
    for number in range(50):
        limiter.check(f"old {number}")
    clock.advance(0.6)
    for number in range(50):
        limiter.check(f"new {number}", cost=5)
    assert not any(limiter.check(f"new {number}") for number in range(50))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_recovered_keys_are_dropped_on_the_way(algorithm):
    clock = FakeClock(start=1000.0)
    store = MemoryStore(clock=clock)
    limiter = Limiter("5/second", algorithm=algorithm, store=store)
    for number in range(1_000):
        limiter.check(f"guest {number}")
    clock.advance(10)
    for number in range(1_000):
        limiter.check(f"late {number}")
    table = store.table(limiter.name, limiter.limits)
    assert len(table.states) == len(table.keys) <= 1_001
    assert set(table.keys) == set(table.states)
    assert not any(isinstance(key, str) and key.startswith("guest") for key in table.keys)


def test_the_table_is_consistent_whatever_is_done_to_it():
    chance = random.Random(7)
    clock = FakeClock(start=1000.0)
    store = MemoryStore(clock=clock, max_keys=20)
    limiters = [Limiter("3/second", algorithm=name, store=store, name="one") for name in ALGORITHMS]
    for _ in range(tier.steps(5_000)):
        limiter, key = chance.choice(limiters), f"k{chance.randrange(60)}"
        act = chance.choice([limiter.check, limiter.refund, limiter.reset, limiter.peek])
        act(key)
        if chance.random() < 0.2:
            clock.advance(chance.random())
        plan = tuple(limiter._plan(f"k{chance.randrange(60)}", 1) for _ in range(3))
        store.check(plan)
        for states, keys in store.states_by_layout.values():
            assert len(states) == len(keys) <= 20
            assert set(states) == set(keys)


def test_limits_made_up_at_run_time_do_not_pile_up():
    store = MemoryStore(clock=FakeClock())
    for number in range(1, 2 * MOST_TABLES):
        Limiter(f"{number}/second fixed_window", store=store, name="one").check("k")
    assert len(store.tables) <= MOST_TABLES
    assert len(store.states_by_layout) == 1


FORK = """
import os, sys, threading
from ratekeeper import Limiter

limiter = Limiter("1000000000000 per 300 days")
stop = False

def spin():
    while not stop:
        limiter.check("k")

threads = [threading.Thread(target=spin, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(TURNS):
    child = os.fork()
    if not child:
        for number in range(100):
            limiter.check(f"new {number}")
        os._exit(0 if limiter.check("k") else 1)
    assert os.waitpid(child, 0)[1] == 0
stop = True
for thread in threads:
    thread.join()
print("ok")
""".replace("TURNS", str(tier.steps(50, 15)))


def test_a_fork_under_load_leaves_no_lock_behind(two_processes):
    assert two_processes[0].run(FORK) == "ok\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_counts_for_itself():
    limiter = Limiter("2/hour")
    limiter.check("k")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, bytes([limiter.check("k").allowed, limiter.check("k").allowed]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 2) == bytes([True, False])
    os.close(read)
    os.close(write)
    assert limiter.check("k")


application = Limiter("2/minute")  # as an application has it: made long before the test


def test_an_application_is_frozen_and_thawed():
    application.check("k", cost=2)
    with frozen() as clock:
        late = Limiter("1/minute")
        own = Limiter("1/minute", clock=FakeClock(start=7.0))
        assert [application.check("k").allowed for _ in range(3)] == [True, True, False]
        assert late.check("k")
        clock.advance(30)
        assert application.check("k")
        assert not late.check("k")
        assert application.clock is late.clock is clock
        assert own.clock is not clock
    assert application.clock is not clock
    assert application.check("k", cost=2)


def test_the_fixture_freezes(frozen_limits, fake_clock):
    assert application.clock is frozen_limits
    assert fake_clock.now == 0.0
    assert application.acquire("k", cost=2)
    assert application.acquire("k", cost=2, timeout=61)
    assert frozen_limits.now == 60.0


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "10", None, True])
def test_a_bound_must_be_a_number(wrong):
    with pytest.raises(InvalidStore) as caught:
        MemoryStore(max_keys=wrong)
    assert "expected max_keys as a whole number of at least 1" in str(caught.value)


def test_a_plan_pays_in_all_places_or_in_none():
    store = MemoryStore(clock=FakeClock(start=50.0))
    user, address = Limit.parse("5/minute"), Limit.parse("3/minute sliding_log")
    makers = Limiter(user, store=store, name="user"), Limiter(address, store=store, name="address")
    plan = (makers[0]._plan("ann", 1), makers[1]._plan("1.2.3.4", 1))
    answers = [store.check(plan) for _ in range(5)]
    assert [all(decisions) for decisions in answers] == [True, True, True, False, False]
    assert [decision.remaining for decision in store.peek(plan)] == [2, 0]

"""A store that does not answer: outbound calls wait for it, and nothing is sent without its decision."""

import asyncio
import logging

import pytest

from ratekeeper import InvalidStore
from ratekeeper.errors import StoreUnavailable
from ratekeeper.outbound import AsyncBudget, Budget, pace
from ratekeeper.outbound.outage import open_outbound
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock


class FailingStore(MemoryStore):
    """A store elsewhere without a fallback; it does not answer until ``back_at``, and may lose its counts."""

    blocking = True
    back_at = 0.0
    run = "first"

    class settings:
        shown = "redis://here"

    @property
    def server_run(self):
        return self.run

    def check(self, plan):
        self.expect_answer()
        return super().check(plan)

    def debit(self, plan):
        self.expect_answer()
        return super().debit(plan)

    def states(self, plan):
        self.expect_answer()
        return super().states(plan)

    def expect_answer(self):
        if self.clock.now < self.back_at:
            raise StoreUnavailable("redis://here", "answers, but not within 5000 ms", charged=None)

    def fall_back(self, operation, error, plan, at=None):
        raise error

    def restart(self):
        self.clear()
        self.run += "+"


def make():
    clock = FakeClock()
    return clock, FailingStore(clock=clock)


def test_a_reservation_waits_for_its_store():
    clock, store = make()
    budget = Budget(requests="60/minute", store=store)
    store.back_at = 3.0
    with budget.reserve(timeout=10):
        assert 3.0 <= clock.now < 3.3
    assert budget.left() == {"requests": 59}


def test_it_waits_no_longer_than_its_timeout():
    clock, store = make()
    store.back_at = 30.0
    with pytest.raises(StoreUnavailable, match="not within 5000 ms"):
        Budget(requests="60/minute", store=store).reserve(timeout=2)
    assert 1.7 < clock.now <= 2.0
    with pytest.raises(StoreUnavailable):
        Budget(requests="60/minute", store=store).reserve()
    with pytest.raises(StoreUnavailable):
        pace("60/minute", store=store, max_wait=1).wait()


def test_a_pace_waits_for_its_store_for_ever():
    clock, store = make()
    store.back_at = 100.0
    pace("60/minute", store=store).wait()
    assert 100.0 <= clock.now < 100.3


def test_an_async_budget_waits_too():
    clock, store = make()
    store.back_at = 3.0

    async def reserve():
        async with AsyncBudget(requests="60/minute", store=store).reserve(timeout=10):
            return clock.now

    assert 3.0 <= asyncio.run(reserve()) < 3.3


def test_a_settlement_is_charged_when_the_store_is_back():
    clock, store = make()
    budget = Budget(tokens="6000/minute gcra", store=store)
    with budget.reserve(tokens=10) as spending:
        store.back_at = 20.0
        spending.settle(tokens=4000)
    assert 20.0 <= clock.now < 20.3
    assert budget.left() == {"tokens": 2010}  # ten were recovered meanwhile


def test_a_server_that_lost_its_counts_is_not_spent_from_for_one_period(caplog):
    clock, store = make()
    budget = Budget(requests="60/minute", margin=0, store=store)
    for _ in range(50):
        assert budget.reserve()
    store.restart()
    with caplog.at_level(logging.WARNING, "ratekeeper"), budget.reserve(timeout=100):
        assert clock.now >= 60.0
    assert [record.getMessage() for record in caplog.records] == [
        "redis://here: the server restarted, and may have lost its counts. Outbound calls wait for one period; "
        "limits of more than an hour go on with what the server has."
    ]


def test_a_day_is_not_waited_for():
    clock, store = make()
    budget = Budget(requests="60/day", margin=0, store=store)
    assert budget.reserve()
    store.restart()
    assert budget.reserve(timeout=1)
    assert clock.now == 0.0


def test_a_store_by_its_url_has_no_fallback_and_a_deadline_of_its_own():
    store = open_outbound("redis://localhost:1/0", None, asynchronous=False)
    assert (store.settings.deadline, store.settings.has_fallback) == (5.0, False)
    assert store.settings.fallback == "no fallback: callers wait for it, up to their own timeouts,"
    store.close()
    asked = open_outbound(
        "redis://localhost:1/0?on_store_error=local&local_share=0.05&deadline=1s", None, asynchronous=False
    )
    assert (asked.settings.deadline, asked.settings.has_fallback, asked.settings.local_share) == (1.0, True, 0.05)
    asked.close()
    with pytest.raises(InvalidStore) as caught:
        Budget(requests="1/second", store="redis://localhost:1/0?on_store_error=local")
    assert str(caught.value) == (
        "store redis://: expected local_share beside on_store_error=local, got none. It is the share of each limit "
        "that one process may spend while the store is away: for 20 processes write local_share=0.05."
    )


def test_the_words_of_providers_name_units_and_periods():
    clock = FakeClock()
    budget = Budget(rpm=60, tpm=6000, rpd=100, clock=clock)
    with budget.reserve(tokens=1000):
        assert budget.left() == {"requests": 59, "tokens": 5000}
    assert (
        str(Budget(rpm=60, margin=0)._level.limits["requests"])
        == "60 per 61016950 microseconds sliding_window slices 60 debt 60"
    )
    with pytest.raises(ValueError, match="rpm: expected a whole number per minute, got '60/minute'"):
        Budget(rpm="60/minute")

"""Several units reserved together, at every level, and settled afterwards."""

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ratekeeper import AlreadySettled, InvalidCost, InvalidInput
from ratekeeper.outbound import AsyncBudget, Budget, TooLate
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import FakeClock
from tests import tier


def make(**options):
    clock = FakeClock()
    return clock, Budget(requests="60/minute gcra", tokens="6000/minute gcra", clock=clock, **options)


def test_units_are_taken_together_or_not_at_all():
    _, budget = make()
    assert budget.reserve(tokens=5000)
    assert budget.left() == {"requests": 59, "tokens": 1000}
    refused = budget.reserve(tokens=1001)
    assert (bool(refused), refused.retry_after) == (False, 0.01)
    assert budget.left() == {"requests": 59, "tokens": 1000}
    for _ in range(59):
        assert budget.reserve(tokens=1)
    assert not budget.reserve(tokens=1)
    assert budget.left() == {"requests": 0, "tokens": 941}


def test_an_estimate_is_settled_for_what_was_used():
    _, budget = make()
    with budget.reserve(tokens=4000) as spending:
        spending.settle(tokens=1500)
    assert budget.left() == {"requests": 59, "tokens": 4500}
    with budget.reserve(tokens=1000) as spending:
        spending.settle(tokens=2500)
    assert budget.left() == {"requests": 58, "tokens": 2000}
    with budget.reserve(tokens=10) as spending:
        spending.settle(tokens=9999)  # 8,000 below zero
    assert budget.left() == {"requests": 57, "tokens": 0}
    assert budget.reserve(tokens=1).retry_after == pytest.approx(80.0, abs=0.1)
    with pytest.raises(AlreadySettled, match="budget: expected a reservation that is open, but it was settled already"):
        spending.settle(tokens=1)


def test_a_stream_is_settled_as_it_comes():
    _, budget = make()
    with budget.reserve(tokens=100) as spending:
        for _ in range(3):
            spending.add(tokens=60)
            assert budget.left()["tokens"] == 6000 - max(100, spending.used["tokens"])
    assert budget.left() == {"requests": 59, "tokens": 5820}
    with budget.reserve(tokens=1000) as spending:
        spending.add(tokens=20)
    assert budget.left() == {"requests": 58, "tokens": 5800}


def test_a_failure_gives_everything_back_but_what_was_used():
    _, budget = make()
    with pytest.raises(OSError, match="gone"), budget.reserve(tokens=1000):
        raise OSError("gone")
    assert budget.left() == {"requests": 60, "tokens": 6000}

    def half(spending):
        spending.add(tokens=70)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), budget.reserve(tokens=1000) as spending:
        half(spending)
    assert budget.left() == {"requests": 59, "tokens": 5930}
    budget.reserve(tokens=30)  # never settled: it stays charged
    assert budget.left() == {"requests": 58, "tokens": 5900}


def test_a_refused_block_raises_with_the_time_to_wait():
    _, budget = make()
    budget.reserve(tokens=6000)
    with pytest.raises(TooLate) as caught, budget.reserve(tokens=600):
        pass
    assert caught.value.retry_after == 6.0
    assert str(caught.value) == (
        "budget: expected a turn in time, but it comes in 6 s. Pass a longer timeout to reserve(), or reserve less."
    )
    with pytest.raises(TooLate, match="this cost can never pass a capacity of 6000"), budget.reserve(tokens=6001):
        pass
    with pytest.raises(AlreadySettled, match="it was refused"):
        budget.reserve(tokens=6001).settle(tokens=1)


def test_waiting_is_first_come_first_served_and_bounded():
    async def main():
        clock = FakeClock()
        budget = AsyncBudget(requests="60/minute gcra", tokens="6000/minute gcra", clock=clock)
        served = []

        async def call(name, tokens, **options):
            try:
                async with budget.reserve(tokens=tokens, **options) as spending:
                    served.append((name, clock.now))
                    await spending.settle(tokens=tokens)
            except TooLate as error:
                served.append((name, error.retry_after))

        await call("first", 6000)
        await asyncio.gather(
            call("large", 3000, timeout=60), call("small", 100, timeout=60), call("hasty", 100, timeout=5)
        )
        assert served == [("first", 0.0), ("hasty", 32.0), ("large", 30.0), ("small", 31.0)]
        assert await budget.left() == {"requests": 59, "tokens": 0}
        assert not await budget.reserve(tokens=1)
        await budget.close()

    asyncio.run(main())


def test_a_reservation_that_is_awaited_and_then_entered_is_taken_once():
    async def main():
        budget = AsyncBudget(requests="60/minute gcra", tokens="6000/minute gcra", clock=FakeClock())
        reservation = await budget.reserve(tokens=1000)
        async with reservation as spending:
            await spending.add(tokens=30)
            assert spending.used == {"tokens": 30}
        assert await budget.left() == {"requests": 59, "tokens": 5970}

    asyncio.run(main())


def test_a_child_spends_its_parents_budget_too():
    clock = FakeClock()
    organisation = Budget(name="org", requests="100/minute gcra", tokens="10000/minute gcra", clock=clock)
    search = organisation.child("team", key="search", tokens="6000/minute gcra")
    ads = organisation.child("team", key="ads", tokens="6000/minute gcra")
    model = search.child("model", key="large", tokens="500/minute gcra", images="5/minute gcra")
    with search.reserve(tokens=5000) as spending:
        spending.settle(tokens=4000)
    assert (search.left(), ads.left()) == ({"requests": 99, "tokens": 2000}, {"requests": 99, "tokens": 6000})
    assert organisation.left() == {"requests": 99, "tokens": 6000}
    assert not search.reserve(tokens=2001)  # its own limit
    assert ads.reserve(tokens=6000)
    assert not search.reserve(tokens=1)  # the organisation's
    assert search.left() == {"requests": 98, "tokens": 0}
    clock.advance(60)
    assert model.reserve(tokens=500, images=2)
    assert model.left() == {"requests": 99, "tokens": 0, "images": 3}
    assert search.left() == {"requests": 99, "tokens": 5500}
    assert search.reserve("another team", tokens=6000)  # a key of the call's own


def test_a_waiting_child_holds_up_no_other():
    async def main():
        clock = FakeClock()
        organisation = AsyncBudget(name="org", tokens="60000/minute gcra", clock=clock)
        slow = organisation.child("team", key="slow", tokens="60/minute gcra")
        quick = organisation.child("team", key="quick", tokens="60000/minute gcra")
        await slow.reserve(tokens=60)

        async def wait():
            return await slow.reserve(tokens=60, timeout=100)

        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert await quick.reserve(tokens=10, timeout=0)
        assert clock.now == 0.0
        assert await waiting
        assert clock.now == 60.0

    asyncio.run(main())


def test_a_budget_closes_the_store_that_it_opened():
    async def main():
        await AsyncBudget(tokens="60/minute gcra", store="redis://127.0.0.1:1").close()
        store = MemoryStore()
        await AsyncBudget(tokens="60/minute gcra", store=store).close()
        Budget(tokens="60/minute gcra", store=store).close()
        assert Budget(tokens="60/minute gcra", store=store).reserve(tokens=60)

    Budget(tokens="60/minute gcra").close()
    asyncio.run(main())


def test_mistakes_raise_at_once():
    with pytest.raises(InvalidInput, match="budget: expected a limit for at least one unit"):
        Budget()
    _, budget = make()
    with pytest.raises(InvalidCost) as caught:
        budget.reserve(token=5)
    assert str(caught.value) == (
        "token: expected a unit of this budget (requests, tokens), got 'token'. Did you mean 'tokens'?"
    )
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(InvalidCost):
            budget.reserve(tokens=wrong)
    assert budget.left() == {"requests": 60, "tokens": 6000}


class BudgetMachine(RuleBasedStateMachine):
    """Random reservations and settlements: every level is charged the reservation, and then the actual usage."""

    @initialize()
    def start(self):
        self.clock = FakeClock()
        period = "400 days"  # no time passes: the count is exact
        self.parent = Budget(requests=f"1000 per {period}", tokens=f"5000 per {period}", clock=self.clock)
        self.child = self.parent.child("c", tokens=f"3000 per {period}")
        self.open = []
        self.spent = {"parent": 0, "child": 0}

    @rule(tokens=st.integers(1, 1500), which=st.sampled_from(["parent", "child"]))
    def reserve(self, tokens, which):
        room = 5000 - self.spent["parent"]
        if which == "child":
            room = min(room, 3000 - self.spent["child"])
        reservation = getattr(self, which).reserve(tokens=tokens)
        assert bool(reservation) == (tokens <= room)
        if reservation:
            self.open.append((which, tokens, reservation))
            self.charge(which, tokens)

    def charge(self, which, tokens):
        self.spent["parent"] += tokens  # above the limit: a debt
        if which == "child":
            self.spent["child"] += tokens

    @rule(data=st.data(), actual=st.integers(0, 2000), failed=st.booleans())
    def settle(self, data, actual, failed):
        if not self.open:
            return
        which, tokens, reservation = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        if failed:
            reservation.__exit__(OSError, None, None)
            self.charge(which, -tokens)
        else:
            reservation.settle(tokens=actual)
            self.charge(which, actual - tokens)

    @invariant()
    def every_level_has_charged_the_same(self):
        if hasattr(self, "parent"):
            left = 5000 - self.spent["parent"]
            assert self.parent.left()["tokens"] == max(0, left)
            assert self.child.left()["tokens"] == max(0, min(left, 3000 - self.spent["child"]))


BudgetMachine.TestCase.settings = settings(max_examples=tier.examples(30), stateful_step_count=20, deadline=None)
TestBudgets = BudgetMachine.TestCase

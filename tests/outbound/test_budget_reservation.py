"""Reservations of different shapes wait side by side; what they do is in test_budget.py."""

import threading

import pytest

from ratekeeper.outbound import Budget
from ratekeeper.outbound.budget_reservation import unit_of
from ratekeeper.testing import FakeClock


def test_the_unit_of_a_check_is_the_end_of_its_space():
    plan = Budget(name="a b", tokens="5/minute").child("c", tokens="5/minute")._level.plan({"tokens": 1}, None)
    assert [unit_of(check) for check in plan] == ["tokens", "tokens"]


@pytest.mark.parametrize("costs", [{}, {"tokens": 5}])
def test_a_reservation_without_tokens_waits_beside_one_with_tokens(costs):
    """Their plans have different lengths, and a queue predicts turns only for plans of one shape."""
    clock = FakeClock()
    budget = Budget(requests="2/minute", tokens="10/minute", clock=clock)
    budget.reserve(tokens=10)
    budget.reserve()
    admitted = []
    waiting = [
        threading.Thread(target=lambda wanted=wanted: admitted.append(bool(budget.reserve(timeout=300, **wanted))))
        for wanted in ({"tokens": 10}, costs)
    ]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(30)
    assert admitted == [True, True]

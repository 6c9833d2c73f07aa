"""Requests, decided one after the other on the same states: as a store in this process decides them."""

import random

from ratekeeper import Limit
from ratekeeper.check import Check, LeaseCheck
from ratekeeper.limit import parse_limits
from ratekeeper.stores.compare_and_set.record import StoredLimits
from ratekeeper.stores.compare_and_set.request import RecordRequest, answer
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.testing import FakeClock
from tests import tier

LIMITS = [
    parse_limits(text) for text in ("7/second", "3/second sliding_log", ["5/second", "9 per 2 seconds first-use"])
]


def empty_states(requests):
    return {name: stored.empty for each in requests for name, stored in zip(each.names, each.stored, strict=True)}


def test_a_batch_is_answered_as_its_requests_one_by_one():
    for seed in range(tier.steps(200)):
        chance, limits = random.Random(seed), StoredLimits("x://", "rk", "", None)
        clock = FakeClock(start=1_000_000.0)
        store = MemoryStore(clock=clock)
        requests = []
        for _ in range(30):
            checks = [
                Check("s", chance.choice("ab"), limit, chance.randint(1, 4))
                for limit in chance.choices(LIMITS, k=chance.randint(1, 3))
            ]
            operation = chance.choice(["check", "check", "peek", "refund", "take", "debit", "reset", "states"])
            requests.append(RecordRequest(operation, tuple(checks), limits))
        states = empty_states(requests)
        for request in requests:
            assert answer(request, states, clock.micros) == getattr(store, request.operation)(request.plan)


def test_leases_of_a_batch_are_held_and_given_back_by_their_ids():
    limits, limit = StoredLimits("x://", "rk", "", None), Limit.parse("2 concurrent")

    def lease(number, cost=1, lasts=10**6):
        return LeaseCheck("s", "k", limit, cost, None, number, lasts)

    steps = [
        ("check", (lease(1),), [True]),
        ("check", (lease(2),), [True]),
        ("check", (lease(3),), [False]),
        ("renew", (lease(1), lease(3), lease(2)), [True, False, True]),
        ("end_leases", (lease(1, 0, 0),), [True]),
        ("renew", (lease(3), lease(1)), [True, False]),
    ]
    requests = [RecordRequest(operation, plan, limits) for operation, plan, _ in steps]
    states = empty_states(requests)
    for request, (_, _, expected) in zip(requests, steps, strict=True):
        assert [decision.allowed for decision in answer(request, states, 0)] == expected


def test_a_charge_takes_of_each_limit_by_itself():
    limits, both = StoredLimits("x://", "rk", "", None), parse_limits(["10/day", "20/hour"])
    request = RecordRequest("charge", (Check("s", "k", both, 1),), limits, None, (4, 30))
    (decision,) = answer(request, empty_states([request]), 0)
    assert [part.remaining for part in decision.parts()] == [6, 0]


def test_a_request_names_each_record_once_and_in_order():
    limits, unlimited = StoredLimits("x://", "rk", "", None), Limit.parse("unlimited")
    checks = [Check("s", key, LIMITS[0], 1) for key in "bab"] + [Check("s", "a", unlimited, 1)]
    request = RecordRequest("check", tuple(checks), limits)
    assert len(request.records) == 2
    assert list(request.records) == sorted(request.records)
    assert request.part(request.names[0]) == ([0, 2], (checks[0], checks[2]))

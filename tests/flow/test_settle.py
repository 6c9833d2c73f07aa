"""Settling and renewing without a store: replies are sent in, effects are read out."""

import pytest

from ratekeeper import Decision, Limit
from ratekeeper.decision import new_decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.settle import ask, renew, settle
from ratekeeper.limit import MOST_LEASES
from tests.flow.replies import YES, read, result, wanted


def test_a_store_that_fails_is_stood_in_for():
    flow = ask("check", (wanted(),))
    assert read(next(flow)) == ("Ask", "check")
    fall_back = flow.throw(StoreUnavailable("redis://x", "is gone"))
    assert (fall_back.operation, fall_back.arguments[0]) == ("fall_back", "check")
    assert result(flow, (YES,)) == (YES,)


def test_settling_asks_for_the_difference():
    for actual, operation, cost in [(3, "refund", 7), (12, "take", 2), (10, "peek", 10)]:
        effect = next(settle(wanted(10), YES, actual))
        assert effect.operation == operation
        assert effect.arguments[0][0].cost == cost


def test_a_refund_that_the_store_cannot_take_says_how_things_stand_here():
    flow = settle(wanted(10), YES, 3)
    assert read(next(flow)) == ("Ask", "refund")
    fall_back = flow.throw(StoreUnavailable("redis://x", "is gone"))
    assert (fall_back.operation, fall_back.arguments[0]) == ("fall_back", "peek")
    assert result(flow, (YES,)) is YES


def test_what_the_fallback_took_is_given_back_to_the_fallback():
    class Local:
        allowed, reason, at = True, "local: redis://x is gone", 7

    effect = next(settle(wanted(10), Local, 3))
    assert (effect.operation, effect.arguments[0]) == ("fall_back", "refund")


LEASES = Limit.parse("2 concurrent for 30 seconds")


def lease(at, allowed=True, limit=LEASES):
    return new_decision(Decision, (allowed, limit, (at,), at, 1))


def asked(effect):
    return effect.operation, str(effect.arguments[0][0].limit)


def test_a_lease_is_renewed_beside_the_old_one_which_then_ends():
    flow = renew(wanted(limit=LEASES), lease(1_000))
    assert asked(next(flow)) == ("check", "4 concurrent for 30 seconds")
    fresh = lease(30_000_999)
    ending = flow.send((fresh,))
    assert asked(ending) == ("refund", "2 concurrent for 30 seconds")
    assert ending.arguments[1] == 1_000
    assert result(flow, (lease(0),)) is fresh


def test_a_lease_that_ended_is_taken_like_anybody_elses():
    flow = renew(wanted(limit=LEASES), lease(1_000))
    next(flow)
    assert asked(flow.send((lease(30_001_000),))) == ("refund", "4 concurrent for 30 seconds")
    assert asked(flow.send((lease(0),))) == ("check", "2 concurrent for 30 seconds")
    refused = lease(30_001_000, allowed=False)
    assert result(flow, (refused,)) is refused


@pytest.mark.parametrize(("now", "is_kept"), [(30_000_999, True), (30_001_000, False)])
def test_a_renewal_that_finds_no_room_leaves_the_lease_as_it_is(now, is_kept):
    held, refused = lease(1_000), lease(now, allowed=False)
    flow = renew(wanted(limit=LEASES), held)
    next(flow)
    assert result(flow, (refused,)) is (held if is_kept else refused)


@pytest.mark.parametrize(("limit", "has_room"), [(LEASES, False), (Limit.parse(f"{MOST_LEASES} concurrent"), True)])
def test_where_there_is_no_room_for_two_the_old_lease_ends_first(limit, has_room):
    flow = renew(wanted(limit=limit), lease(1_000, limit=limit), has_room)
    assert asked(next(flow)) == ("refund", str(limit))
    assert asked(flow.send((lease(0),))) == ("check", str(limit))
    fresh = lease(2_000)
    assert result(flow, (fresh,)) is fresh

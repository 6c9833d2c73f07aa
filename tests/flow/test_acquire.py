"""Flows without a store, a loop or a clock that runs: replies are sent in, effects are read out."""

import pytest

from ratekeeper import Decision, Limit
from ratekeeper.check import Check
from ratekeeper.decision import decided
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.acquire import acquire
from ratekeeper.flow.drive import drive
from ratekeeper.flow.effects import Ask, Sleep, Turn
from ratekeeper.flow.queue import WaitQueue, foresee
from ratekeeper.flow.settle import ask, renew, settle
from ratekeeper.limit import MOST_LEASES
from ratekeeper.testing import FakeClock

LIMIT = Limit.parse("1/second")
YES = Decision(True, 1, 0, 0.0, 1.0)
NO = Decision(False, 1, 0, 1.0, 1.0)


def wanted(cost=1, limit=LIMIT):
    return Check("space", "key", limit, cost)


def result(flow, reply):
    with pytest.raises(StopIteration) as done:
        flow.send(reply)
    return done.value.value


def read(effect):
    return (type(effect).__name__, *(getattr(effect, "operation", None) or getattr(effect, "micros", None),))


def test_a_free_place_is_taken_at_once():
    lines, clock = WaitQueue(), FakeClock()
    flow = acquire(lines, wanted(), None, clock)
    assert read(next(flow)) == ("Ask", "check")  # who waits for ever need not foresee for how long
    assert result(flow, (YES,)) is YES
    assert not lines.lines


def test_a_refusal_is_slept_off():
    lines, clock = WaitQueue(), FakeClock()
    flow = acquire(lines, wanted(), 5_000_000, clock)
    next(flow)
    assert read(flow.send((0, (1_000_000,)))) == ("Ask", "check")
    assert read(flow.send((NO,))) == ("Sleep", 1_000_000)
    assert read(flow.send(None)) == ("Ask", "check")
    assert result(flow, (YES,)) is YES


def test_a_refusal_for_ever_is_not_slept_off():
    """While a store is away its stand-in has a share of the limit, which may be too small for a cost."""
    lines = WaitQueue()
    flow = acquire(lines, wanted(), None, FakeClock())
    next(flow)
    never = Decision(False, 1, 0, None, 1.0)
    assert result(flow, (never,)) is never
    assert not lines.lines


def test_who_is_not_first_waits_for_the_turn_and_gives_up_in_time():
    lines, clock = WaitQueue(), FakeClock()
    ahead = lines.join("key", (1,))
    flow = acquire(lines, wanted(), 3_000_000, clock)
    next(flow)
    turn = flow.send((0, (0,)))
    assert isinstance(turn, Turn)
    assert turn.micros == 3_000_000
    assert read(flow.send(False)) == ("Ask", "peek")
    refused = result(flow, (NO,))
    assert (refused.allowed, refused.retry_after) == (False, 1.0)
    assert list(lines.lines["key"]) == [ahead]


def test_a_turn_that_has_come_wakes_at_once():
    lines, woken = WaitQueue(), []
    first, second = lines.join("key", (1,)), lines.join("key", (1,))
    lines.when_first(first, lambda: woken.append("first"))
    lines.when_first(second, lambda: woken.append("second"))
    assert woken == ["first"]
    lines.leave(first, served=True)
    assert woken == ["first", "second"]
    lines.leave(second, served=True)
    assert not lines.lines


def test_whoever_leaves_from_the_middle_wakes_nobody():
    lines, woken = WaitQueue(), []
    tickets = [lines.join("key", (1,)) for _ in range(3)]
    for ticket in tickets:
        foresee((wanted(),), (0,), 0, lines.ahead(ticket), ticket)
    assert [ticket.foreseen[0] for ticket in tickets] == [0, 1_000_000, 2_000_000]
    lines.when_first(tickets[2], lambda: woken.append(2))
    lines.leave(tickets[1], served=False)
    assert woken == []
    assert [ticket.foreseen for ticket in lines.lines["key"]] == [None, None]
    assert foresee((wanted(),), (0,), 0, lines.ahead(tickets[2]), tickets[2]) == 1_000_000


def test_a_cost_ahead_that_can_never_pass_holds_up_nobody():
    lines = WaitQueue()
    lines.join("key", (99,))
    ticket = lines.join("key", (1,))
    assert foresee((wanted(),), (0,), 0, lines.ahead(ticket), ticket) == 0


def test_what_cannot_be_foreseen_is_tried():
    lines, clock = WaitQueue(), FakeClock()
    flow = acquire(lines, wanted(), 1_000, clock)
    next(flow)
    assert read(flow.throw(StoreUnavailable("redis://x", "is gone"))) == ("Ask", "check")
    assert result(flow, (NO,)) is NO  # one second is too long


def test_a_queue_whose_turn_comes_too_late_is_left_again():
    lines, clock = WaitQueue(), FakeClock()
    leaky = Limit.parse("1/second burst 9 leaky_bucket")
    flow = acquire(lines, wanted(limit=leaky), 1_000_000, clock)
    next(flow)
    assert read(flow.send((0, (1_000_000,)))) == ("Ask", "check")
    late = Decision(True, 9, 5, 0.0, 4.0, delay=3.0)  # somebody was quicker
    back = flow.send((late,))
    assert isinstance(back, Ask)
    assert back.operation == "refund"
    refused = result(flow, (late,))
    assert (refused.allowed, refused.retry_after) == (False, 3.0)


def test_an_exception_while_waiting_in_a_queue_gives_the_place_back():
    lines, clock = WaitQueue(), FakeClock()
    flow = acquire(lines, wanted(limit=Limit.parse("1/second burst 9 leaky_bucket")), None, clock)
    next(flow)
    assert isinstance(flow.send((Decision(True, 9, 5, 0.0, 4.0, delay=3.0),)), Sleep)
    assert read(flow.throw(KeyboardInterrupt)) == ("Ask", "refund")
    with pytest.raises(KeyboardInterrupt):
        flow.send((YES,))


def test_a_store_that_fails_is_stood_in_for():
    flow = ask("check", (wanted(),))
    assert read(next(flow)) == ("Ask", "check")
    stand_in = flow.throw(StoreUnavailable("redis://x", "is gone"))
    assert (stand_in.operation, stand_in.arguments[0]) == ("stand_in", "check")
    assert result(flow, (YES,)) == (YES,)


def test_settling_asks_for_the_difference():
    for actual, operation, cost in [(3, "refund", 7), (12, "take", 2), (10, "peek", 10)]:
        effect = next(settle(wanted(10), YES, actual))
        assert effect.operation == operation
        assert effect.arguments[0][0].cost == cost


def test_a_driver_passes_errors_of_the_store_into_the_flow():
    class Broken:
        def check(self, plan):
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        drive(ask("check", (wanted(),)), Broken(), FakeClock(), WaitQueue())


def test_a_refund_that_the_store_cannot_take_says_how_things_stand_here():
    flow = settle(wanted(10), YES, 3)
    assert read(next(flow)) == ("Ask", "refund")
    stand_in = flow.throw(StoreUnavailable("redis://x", "is gone"))
    assert (stand_in.operation, stand_in.arguments[0]) == ("stand_in", "peek")
    assert result(flow, (YES,)) is YES


def test_what_the_stand_in_took_is_given_back_to_the_stand_in():
    class Local:
        allowed, reason, at = True, "local: redis://x is gone", 7

    effect = next(settle(wanted(10), Local, 3))
    assert (effect.operation, effect.arguments[0]) == ("stand_in", "refund")


LEASES = Limit.parse("2 concurrent for 30 seconds")


def lease(at, allowed=True, limit=LEASES):
    return decided(Decision, (allowed, limit, (at,), at, 1))


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


def test_a_forked_child_begins_with_empty_lines():
    """In the child itself nobody measures what is run: see also tests/test_flow.py."""
    lines, clock = WaitQueue(), FakeClock()
    before = acquire(lines, wanted(), None, clock)
    next(before)
    lines.in_child()
    after = acquire(lines, wanted(), None, clock)
    assert read(next(after)) == ("Ask", "check")  # first in line
    assert result(before, (YES,)) is YES  # a place that is gone is left in peace
    assert result(after, (YES,)) is YES
    assert not lines.lines

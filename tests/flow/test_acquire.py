"""Flows without a store, a loop or a clock that runs: replies are sent in, effects are read out."""

import pytest

from ratekeeper import Decision, Limit
from ratekeeper.check import LeaseCheck
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.acquire import acquire
from ratekeeper.flow.effects import Ask, Sleep, Turn
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.testing import FakeClock
from tests.flow.replies import YES, read, result, wanted

NO = Decision(False, 1, 0, 1.0, 1.0)


def test_a_free_place_is_taken_at_once():
    queue, clock = WaitQueue(), FakeClock()
    flow = acquire(queue, wanted(), None, clock)
    assert read(next(flow)) == ("Ask", "check")  # a wait without timeout needs no prediction
    assert result(flow, (YES,)) is YES
    assert not queue.waiting


def test_a_refusal_is_slept_off():
    queue, clock = WaitQueue(), FakeClock()
    flow = acquire(queue, wanted(), 5_000_000, clock)
    next(flow)
    assert read(flow.send(((0,), (1_000_000,)))) == ("Ask", "check")
    assert read(flow.send((NO,))) == ("Sleep", 1_000_000)
    assert read(flow.send(None)) == ("Ask", "check")
    assert result(flow, (YES,)) is YES


def test_a_refusal_for_ever_is_not_slept_off():
    """While a store is away its stand-in has a share of the limit, which may be too small for a cost."""
    queue = WaitQueue()
    flow = acquire(queue, wanted(), None, FakeClock())
    next(flow)
    never = Decision(False, 1, 0, None, 1.0)
    assert result(flow, (never,)) is never
    assert not queue.waiting


def test_who_is_not_first_waits_for_the_turn_and_gives_up_in_time():
    queue, clock = WaitQueue(), FakeClock()
    ahead = queue.join("key", (1,))
    flow = acquire(queue, wanted(), 3_000_000, clock)
    next(flow)
    turn = flow.send(((0,), (0,)))
    assert isinstance(turn, Turn)
    assert turn.micros == 3_000_000
    assert read(flow.send(False)) == ("Ask", "peek")
    refused = result(flow, (NO,))
    assert (refused.allowed, refused.retry_after) == (False, 1.0)
    assert list(queue.waiting["key"]) == [ahead]


def test_a_wait_that_cannot_be_predicted_is_tried():
    queue, clock = WaitQueue(), FakeClock()
    flow = acquire(queue, wanted(), 1_000, clock)
    next(flow)
    assert read(flow.throw(StoreUnavailable("redis://x", "is gone"))) == ("Ask", "check")
    assert result(flow, (NO,)) is NO  # one second is too long


def test_a_queue_whose_turn_comes_too_late_is_left_again():
    queue, clock = WaitQueue(), FakeClock()
    leaky = Limit.parse("1/second burst 9 leaky_bucket")
    flow = acquire(queue, wanted(limit=leaky), 1_000_000, clock)
    next(flow)
    assert read(flow.send(((0,), (1_000_000,)))) == ("Ask", "check")
    late = Decision(True, 9, 5, 0.0, 4.0, delay=3.0)  # somebody was quicker
    back = flow.send((late,))
    assert isinstance(back, Ask)
    assert back.operation == "refund"
    refused = result(flow, (late,))
    assert (refused.allowed, refused.retry_after) == (False, 3.0)


def test_an_exception_while_waiting_in_a_queue_gives_the_place_back():
    queue, clock = WaitQueue(), FakeClock()
    flow = acquire(queue, wanted(limit=Limit.parse("1/second burst 9 leaky_bucket")), None, clock)
    next(flow)
    assert isinstance(flow.send((Decision(True, 9, 5, 0.0, 4.0, delay=3.0),)), Sleep)
    assert read(flow.throw(KeyboardInterrupt)) == ("Ask", "refund")
    with pytest.raises(KeyboardInterrupt):
        flow.send((YES,))


def test_a_lease_whose_answer_came_after_the_deadline_is_given_back():
    clock = FakeClock()
    queue = WaitQueue()
    lease = LeaseCheck("space", "key", Limit.parse("1 concurrent"), 1, None, 7, 1_000_000)
    flow = acquire(queue, lease, 1_000, clock)
    assert read(next(flow)) == ("Ask", "check")
    clock.advance(0.002)
    effect = flow.send((YES,))
    assert (effect.operation, effect.arguments[0][0].lease, effect.arguments[0][0].cost) == ("end_leases", 7, 0)
    assert not result(flow, (YES,))
    assert not queue.waiting

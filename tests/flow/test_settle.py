"""Settling and renewing without a store: replies are sent in, effects are read out."""

from asyncio import CancelledError

import pytest

from ratekeeper import Decision, Limit
from ratekeeper.check import LeaseCheck
from ratekeeper.decision import new_decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.flow.settle import ask, end, hold, renew, settle
from tests.flow.replies import YES, read, result, wanted


def test_a_store_that_fails_is_stood_in_for():
    flow = ask("check", (wanted(),))
    assert read(next(flow)) == ("Ask", "check")
    fall_back = flow.throw(StoreUnavailable("redis://x", "is gone"))
    assert (fall_back.operation, fall_back.arguments[0]) == ("fall_back", "check")
    assert result(flow, (YES,)) == (YES,)


def test_settling_asks_for_the_difference():
    for actual, operation, cost in [(3, "refund", 7), (12, "debit", 2), (10, "peek", 10)]:
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
LEASE = LeaseCheck("s", "k", LEASES, 1, None, 7, 15_000_000)
GONE = StoreUnavailable("redis://x", "is gone")
UNANSWERED = StoreUnavailable("redis://x", "gave no answer", charged=None)


class Local:
    allowed, reason, at = True, "local: redis://x is gone", 7


class Notes:
    """What a renewer is told."""

    def __init__(self, is_unsure=False, for_ever=False):
        self.told = []
        self.is_unsure = is_unsure
        self.for_ever = for_ever

    def keep(self, lease):
        self.told.append(("keep", lease.lease, lease.cost))

    def drop(self, lease):
        self.told.append(("drop", lease.lease))
        return self.is_unsure

    def withdraw(self, leases):
        self.told += [("withdraw", lease.lease) for lease in leases]

    def is_for_ever(self, lease):
        return self.for_ever

    def keep_for_ever(self, lease):
        self.told.append(("keep for ever", lease.lease))


def no():
    return new_decision(Decision, (False, LEASES, LEASES.rule.EMPTY, 0, 1))


def test_a_lease_that_the_store_gave_is_kept():
    notes = Notes()
    flow = hold((LEASE,), notes)
    assert read(next(flow)) == ("Ask", "check")
    assert result(flow, (YES,)) == (YES,)
    assert notes.told == [("keep", 7, 1)]


def test_a_refused_lease_is_not_kept():
    notes = Notes()
    flow = hold((LEASE,), notes)
    next(flow)
    assert not any(result(flow, (no(),)))
    assert notes.told == []


@pytest.mark.parametrize(("error", "told"), [(GONE, []), (UNANSWERED, [("withdraw", 7)])])
def test_a_lease_that_the_store_may_have_given_is_withdrawn_and_the_fallback_decides(error, told):
    notes = Notes()
    flow = hold((LEASE,), notes)
    next(flow)
    assert read(flow.throw(error))[:2] == ("Ask", "fall_back")
    assert result(flow, (Local,)) == (Local,)
    assert notes.told == told


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, CancelledError])
def test_a_call_that_is_cancelled_while_it_asks_withdraws_its_lease(error):
    notes = Notes()
    flow = hold((LEASE,), notes)
    next(flow)
    with pytest.raises(error):
        flow.throw(error)
    assert notes.told == [("withdraw", 7)]


def test_a_lease_is_given_back_by_its_id_and_without_a_note():
    notes = Notes()
    flow = settle(LEASE, YES, 0, notes)
    effect = next(flow)
    (ended,) = effect.arguments[0]
    assert (effect.operation, ended.lease, ended.cost, ended.lasts) == ("end_leases", 7, 0, 0)
    assert result(flow, (YES,)) is YES
    assert notes.told == [("drop", 7)]


def test_a_lease_whose_renewal_is_under_way_is_withdrawn():
    (ended,) = next(settle(LEASE, YES, 0, Notes(is_unsure=True))).arguments[0]
    assert ended.lasts == LEASE.lasts


@pytest.mark.parametrize("error", [GONE, UNANSWERED])
def test_a_give_back_that_the_store_did_not_take_is_left_to_the_keeper(error):
    notes = Notes()
    flow = settle(LEASE, YES, 0, notes)
    next(flow)
    assert flow.throw(error).arguments[0] == "peek"
    assert notes.told == [("drop", 7), ("withdraw", 7)]


def test_a_give_back_that_is_cancelled_is_left_to_the_keeper():
    notes = Notes()
    flow = settle(LEASE, YES, 0, notes)
    next(flow)
    with pytest.raises(CancelledError):
        flow.throw(CancelledError)
    assert notes.told == [("drop", 7), ("withdraw", 7)]


def test_a_lease_of_the_fallback_is_given_back_there():
    effect = next(settle(LEASE, Local, 0, Notes()))
    assert (effect.operation, effect.arguments[0]) == ("fall_back", "end_leases")


def test_a_renewal_holds_the_same_lease_again():
    notes = Notes()
    flow = renew(LEASE, YES, notes)
    assert next(flow).arguments[0] == (LEASE,)
    assert result(flow, (YES,)) == (LEASE, YES)


def test_a_renewal_that_the_fallback_takes_over_withdraws_the_lease_of_the_store():
    notes = Notes()
    flow = renew(LEASE, YES, notes)
    next(flow)
    flow.throw(GONE)
    assert result(flow, (Local,)) == (LEASE, Local)
    assert notes.told == [("withdraw", 7)]


def test_a_lease_of_the_fallback_is_renewed_on_the_store_under_a_new_id():
    flow = renew(LEASE, Local, Notes())
    (asked,) = next(flow).arguments[0]
    assert asked.lease not in (0, LEASE.lease)
    effect = flow.send((YES,))
    assert (effect.operation, effect.arguments[0], effect.arguments[2][0].lease) == ("fall_back", "end_leases", 7)
    assert result(flow, (YES,)) == (asked, YES)


def test_a_holder_that_leaves_while_shared_memory_cannot_be_asked_gets_no_error():
    """A process that was stopped for 300 ms let the blocks of other holders raise, though their work was done."""
    notes = Notes()
    flow = settle(LEASE, YES, 0, notes)
    next(flow)
    flow.throw(GONE)
    with pytest.raises(StopIteration) as done:
        flow.throw(GONE)
    assert done.value.value is YES
    assert notes.told == [("drop", 7), ("withdraw", 7)]


def test_shared_memory_that_cannot_be_asked_is_told_where_places_are_kept_or_nobody_gives_them_back():
    for kept, renewer in [(1, Notes()), (0, None)]:
        flow = end(LEASE, YES, renewer, kept)
        next(flow)
        flow.throw(GONE)
        with pytest.raises(StoreUnavailable):
            flow.throw(GONE)


def test_the_places_that_stay_are_renewed_under_the_same_id():
    notes = Notes()
    flow = end(LEASE.having(2, LEASE.lasts), YES, notes, 1)
    (ended,) = next(flow).arguments[0]
    assert (ended.lease, ended.cost) == (7, 1)
    assert result(flow, (YES,)) is YES
    assert notes.told == [("drop", 7), ("keep", 7, 1)]


@pytest.mark.parametrize("error", [GONE, CancelledError()])
def test_a_lease_that_keeps_places_is_not_withdrawn_by_a_fault(error):
    notes = Notes()
    flow = end(LEASE.having(2, LEASE.lasts), YES, notes, 1)
    next(flow)
    if error is GONE:
        assert flow.throw(error).arguments[0] == "peek"
        assert result(flow, (YES,)) is YES
    else:
        with pytest.raises(CancelledError):
            flow.throw(error)
    assert notes.told == [("drop", 7), ("keep", 7, 1)]


def test_a_lease_of_the_fallback_ends_in_the_fallback():
    flow = end(LEASE, Local, Notes())
    effect = next(flow)
    assert (effect.operation, effect.arguments[0]) == ("fall_back", "end_leases")
    assert result(flow, (Local,)) is Local


def test_a_call_that_is_cancelled_where_nobody_renews_gives_its_lease_back_itself():
    flow = hold((LEASE,), None)
    next(flow)
    effect = flow.throw(CancelledError)
    assert (effect.operation, effect.arguments[0][0].lease) == ("end_leases", 7)
    with pytest.raises(CancelledError):
        flow.send((YES,))


def test_a_lease_that_is_kept_for_ever_is_renewed_for_ever():
    notes = Notes(for_ever=True)
    flow = renew(LEASE, YES, notes)
    next(flow)
    assert result(flow, (YES,)) == (LEASE, YES)
    assert notes.told == [("keep", 7, 1), ("keep for ever", 7)]


@pytest.mark.parametrize(("renewer", "told"), [(Notes(), [("drop", 7)]), (None, [])])
def test_a_renewal_that_is_refused_is_not_tried_again(renewer, told):
    flow = renew(LEASE, YES, renewer)
    next(flow)
    assert not result(flow, (no(),))[1]
    assert renewer is None or renewer.told == told

"""No limit: everything is admitted, nothing is owed."""

from ratekeeper import Limit
from ratekeeper.algorithms import unlimited
from ratekeeper.limit import UNLIMITED


def test_unlimited_owes_nothing():
    limit = Limit.parse("unlimited")
    assert unlimited.debt(0, 5, limit) == unlimited.reset_after(0, 5, limit) == 0
    assert unlimited.retry_after(0, 5, limit, 10**12) == 0


def test_unlimited_admits_everything_at_once_and_keeps_no_state():
    limit = Limit.parse("unlimited")
    assert unlimited.decide(unlimited.EMPTY, 5, limit, 10**12) == (unlimited.EMPTY, True)
    assert unlimited.remaining(unlimited.EMPTY, 5, limit) == UNLIMITED
    assert unlimited.delay(unlimited.EMPTY, 5, limit, 10**12) == 0
    assert unlimited.refund(unlimited.EMPTY, 5, limit, 7, 3) == unlimited.EMPTY


def test_a_debit_is_owed_by_nobody():
    assert unlimited.debit(0, 5, Limit.parse("unlimited"), 3) == 0

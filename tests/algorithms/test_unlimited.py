"""No limit: everything is admitted, nothing is owed."""

from ratekeeper import Limit
from ratekeeper.algorithms import unlimited


def test_unlimited_owes_nothing():
    limit = Limit.parse("unlimited")
    assert unlimited.debt(0, 5, limit) == unlimited.reset_after(0, 5, limit) == 0
    assert unlimited.retry_after(0, 5, limit, 10**12) == 0

"""A check says what is asked of a limit, and never for whom."""

from ratekeeper import Limit
from ratekeeper.check import Check


def test_a_check_never_shows_whose_it_is():
    assert repr(Check("login", "secret", Limit.parse("1/second"), 2)) == "Check('login', <key>, '1/second', cost=2)"

"""Limits are values: equal by what they promise, frozen, and never equal to anything else."""

from ratekeeper import Limit
from ratekeeper.limit import LimitSet


def test_several_limits_are_a_value():
    both = LimitSet([Limit.parse("1/second"), Limit.parse("9/minute fixed_window")])
    assert both == LimitSet(list(both.limits))
    assert hash(both) == hash(LimitSet(list(both.limits)))
    assert both != LimitSet(both.limits[:1])
    assert both != "1/second"
    assert repr(both) == "LimitSet([Limit.parse('1/second'), Limit.parse('9/minute fixed_window')])"


def test_a_limit_is_like_no_other_thing():
    assert Limit.parse("1/second") != "1/second"

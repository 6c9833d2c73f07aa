"""Limits are values: equal by what they promise, frozen, and never equal to anything else."""

import pytest

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


@pytest.mark.parametrize(
    ("text", "seconds", "is_queue"),
    [
        ("10/second burst 20", 2, False),
        ("10/second burst 20 token_bucket", 2, False),
        ("10/second burst 20 leaky_bucket", 2, True),
        ("10/minute fixed_window", 60, False),
        ("10/minute sliding_log", 60, False),
        ("10/minute sliding_window", 120, False),
        ("10/minute sliding_window slices 6", 70, False),
    ],
)
def test_what_any_state_takes_to_recover(text, seconds, is_queue):
    limit = Limit.parse(text)
    assert (limit.recovery, limit.is_queue, limit.parts) == (seconds * 1_000_000, is_queue, (limit,))
    both = LimitSet([limit, Limit.parse("1/second")])
    assert (both.recovery, both.is_queue, both.parts) == (limit.recovery, is_queue, both.limits)

"""A limit that was lowered: whatever was used before, nobody waits longer than after using up the new one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper.limit import Limit
from tests import tier

SHAPES = [("fixed_window", 1), ("sliding_log", 1), *[("sliding_window", slices) for slices in (1, 2, 3, 7)]]


@pytest.mark.parametrize(("algorithm", "slices"), SHAPES)
@settings(max_examples=tier.examples(200))
@given(count=st.integers(1, 60), more=st.integers(1, 300), start=st.integers(0, 10**9), data=st.data())
def test_after_a_lowered_limit_nobody_waits_longer_than_after_using_it_up(algorithm, slices, count, more, start, data):
    """79.94 s of a minute were asked for."""
    before, after = (Limit(each, 60, algorithm=algorithm, slices=slices) for each in (count + more, count))
    rule, state, now = before.rule, before.rule.EMPTY, start
    for _ in range(data.draw(st.integers(1, 4))):
        if left := rule.remaining(state, now, before):
            state, _ = rule.decide(state, now, before, data.draw(st.integers(1, left)))
        now += data.draw(st.integers(0, 40_000_000))
    state, allowed = rule.decide(state, now, after, 1)
    if allowed:
        return
    wait = rule.retry_after(state, now, after, 1)
    used_up, _ = rule.decide(rule.EMPTY, now, after, count)
    assert 0 < wait <= rule.retry_after(used_up, now, after, 1)
    assert wait <= 60_000_000 * (2 if algorithm == "sliding_window" else 1)
    assert not rule.decide(state, now + wait - 1, after, 1)[1]
    assert rule.decide(state, now + wait, after, 1)[1]

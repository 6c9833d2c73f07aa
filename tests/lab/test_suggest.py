"""The least limit that refuses a given share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limit, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.suggest import lowest_count, passes, scaled
from tests.lab.samples import EPOCH, RULES, SAMPLE, rules


@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=25).map(sorted),
    st.sampled_from(list(ALGORITHMS)),
    st.sampled_from([10, 60]),
)
def test_a_suggested_count_is_the_lowest_that_passes(seconds, name, period):
    times = [EPOCH + second * 1_000_000 for second in seconds]
    limit = Limit(50, period, algorithm=name)
    lowest = lowest_count(times, limit)
    assert passes(times, scaled(limit, lowest))
    for count in range(1, lowest):
        assert not passes(times, scaled(limit, count))


def test_a_burst_keeps_its_proportion():
    limit = Limit.parse("60/minute burst 20")
    assert [str(scaled(limit, count)) for count in (30, 3, 1)] == [
        "30/minute burst 10", "3/minute burst 1", "1/minute"
    ]  # fmt: skip
    times = [EPOCH] * 7
    assert lowest_count(times, limit) == 19
    assert passes(times, scaled(limit, 19))


def test_suggested_limits_refuse_as_many_clients_as_promised():
    result = lab.replay(SAMPLE, RULES, suggest=0.1)
    by_rule = {suggestion.rule: suggestion for suggestion in result.suggestions}
    suggestion = by_rule["per-client"]
    assert suggestion.refused_then <= suggestion.clients * 0.1
    again = lab.replay(SAMPLE, rules({"by": "ip", "limit": suggestion.suggested}))
    assert again.clients_refused == suggestion.refused_then
    now = lab.replay(SAMPLE, rules({"by": "ip", "limit": suggestion.now}))
    assert now.clients_refused == suggestion.refused_now
    counts = [clients for _, clients in suggestion.curve]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize(("cost", "max_delay"), [(1, "30 seconds"), (1, "2 seconds"), (3, "5 seconds"), (1, "1 ms")])
def test_a_suggestion_keeps_the_longest_delay_of_a_queue(cost, max_delay):
    table = {"by": "ip", "limit": "9/minute leaky_bucket", "max_delay": max_delay, "cost": cost}
    result = lab.replay(SAMPLE, rules(table), suggest=0.05)
    (suggestion,) = result.suggestions
    assert suggestion.refused_now == result.clients_refused > 0
    again = lab.replay(SAMPLE, rules(table | {"limit": suggestion.suggested}))
    assert again.clients_refused == suggestion.refused_then
    if max_delay != "1 ms":  # two requests in the same second of this log: no count serves both within a millisecond
        assert suggestion.refused_then <= suggestion.clients * 0.05

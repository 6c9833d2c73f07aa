"""The least limit that refuses a given share."""

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limit, lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab import suggest as search
from tests.lab.samples import EPOCH, RULES, SAMPLE, rules


@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=25).map(sorted),
    st.sampled_from(list(ALGORITHMS)),
    st.sampled_from([10, 60]),
)
def test_a_suggested_count_is_the_least_that_passes(seconds, name, period):
    times = [EPOCH + second * 1_000_000 for second in seconds]
    limit = Limit(50, period, algorithm=name)
    least = search.lowest_count(times, limit)
    assert search.passes(times, search.scaled(limit, least))
    for count in range(1, least):
        assert not search.passes(times, search.scaled(limit, count))


def test_a_burst_keeps_its_proportion():
    limit = Limit.parse("60/minute burst 20")
    assert [str(search.scaled(limit, count)) for count in (30, 3, 1)] == [
        "30/minute burst 10", "3/minute burst 1", "1/minute"
    ]  # fmt: skip
    times = [EPOCH] * 7
    assert search.lowest_count(times, limit) == 19
    assert search.passes(times, search.scaled(limit, 19))


def test_suggestions_hold_what_they_promise():
    found = lab.replay(SAMPLE, RULES, suggest=0.1)
    by_rule = {one.rule: one for one in found.suggestions}
    own = by_rule["per-client"]
    assert own.refused_then <= own.clients * 0.1
    again = lab.replay(SAMPLE, rules({"by": "ip", "limit": own.suggested}))
    assert again.clients_refused == own.refused_then
    now = lab.replay(SAMPLE, rules({"by": "ip", "limit": own.now}))
    assert now.clients_refused == own.refused_now
    counts = [clients for _, clients in own.curve]
    assert counts == sorted(counts, reverse=True)

"""Counters of decisions: exact, bounded in names, and the same after a way through JSON."""

import json

from ratekeeper import Decision
from ratekeeper.service import counters as module
from ratekeeper.service.counters import Counters, merged

HALF, NONE = Decision(True, 10, 5, 0.0, 5.0), Decision(False, 10, 0, 1.0, 10.0)


def counted():
    counters = Counters()
    for decision in (HALF, HALF, NONE):
        counters.count("login", decision)
    counters.bump("login", "blocked")
    return counters


def test_results_and_headroom_of_a_rule():
    counters = counted()
    assert counters.by_rule() == {"login": {"allowed": 2, "refused": 1, "blocked": 1}}
    assert counters.headroom == {"login": 0.0}
    counters.forget_headroom()
    assert counters.headroom == {}
    histogram = counters.of("login").histogram
    assert (sum(histogram.counts), histogram.total) == (3, 2.0)
    assert histogram.counts[module.SHARES.index(0.5)] == 2


def test_counters_of_several_workers_add_up():
    written = json.loads(json.dumps(counted().as_json()))
    total = merged(counted(), [written, written])
    assert total.by_rule() == {"login": {"allowed": 6, "refused": 3, "blocked": 3}}
    assert total.as_json()["rules"]["login"][1:] == [[3 * n for n in written["rules"]["login"][1]], 6.0, 0.0]


def test_names_beyond_the_bound_share_one_entry(monkeypatch):
    monkeypatch.setattr(module, "MOST_LABELS", 3)
    counters = Counters()
    for number in range(10):
        counters.count(f"rule {number}", HALF)
    assert len(counters.rules) == 4
    assert counters.by_rule()["other"] == {"allowed": 7}

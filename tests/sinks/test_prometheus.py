"""Prometheus metrics, in bounded labels."""

import pickle
import random

from prometheus_client import CollectorRegistry, generate_latest

from ratekeeper import Policy, Request
from ratekeeper.sinks.prometheus import PrometheusSink
from ratekeeper.testing import FakeClock
from tests.sinks.samples import policy, visit


def test_metrics():
    registry = CollectorRegistry()
    own = policy(PrometheusSink(registry))
    visit(own, "/search/1", "/search/2", "/search/3", "/search/4", "/admin")
    for number in range(50):
        visit(own, f"/random/{number}", peer=f"192.0.2.{number}", headers={"X-Key": str(number)})

    def value(name, **labels):
        return registry.get_sample_value(name, labels)

    assert value("ratekeeper_requests_total", endpoint="/search/{id}", result="allowed") == 3
    assert value("ratekeeper_requests_total", endpoint="/search/{id}", result="refused") == 1
    assert value("ratekeeper_requests_total", endpoint="/**", result="allowed") == 50
    assert value("ratekeeper_decisions_total", rule="search", result="graced") == 1
    assert value("ratekeeper_decisions_total", rule="dark", result="shadow_refused") == 2
    assert value("ratekeeper_decisions_total", rule="dark", result="allowed") == 1 + 50
    assert value("ratekeeper_utilisation_ratio_count", rule="dark") == 3 + 50
    assert value("ratekeeper_decisions_total", rule="admin", result="forbidden") == 1
    assert value("ratekeeper_headroom_ratio", rule="per-ip") == 0.0
    assert value("ratekeeper_utilisation_ratio_count", rule="per-ip") == 54
    assert value("ratekeeper_decision_seconds_count") == 55
    assert value("ratekeeper_top_source_ratio") == 0.0  # of fewer than 20 refusals
    text = generate_latest(registry).decode()
    assert "192.0.2" not in text
    assert "/random" not in text
    before = len(text.splitlines())
    visit(own, *[f"/random/{number}" for number in range(1000)])
    assert len(generate_latest(registry).decode().splitlines()) <= before + 3  # one new result, no new labels
    assert value("ratekeeper_top_source_ratio") > 0.95  # now one client is refused again and again


def test_the_gauges_of_a_minute_end_with_it():
    """A headroom of 0.0 stayed when traffic stopped, and its alert fired for ever."""
    registry, clock = CollectorRegistry(), FakeClock()
    own = policy(PrometheusSink(registry, clock=lambda: clock.nanos() / 1e9))
    visit(own, *["/search/1"] * 60)
    assert registry.get_sample_value("ratekeeper_headroom_ratio", {"rule": "per-ip"}) is not None
    assert registry.get_sample_value("ratekeeper_top_source_ratio") == 1.0
    clock.advance(61)
    assert registry.get_sample_value("ratekeeper_headroom_ratio", {"rule": "per-ip"}) is None
    assert registry.get_sample_value("ratekeeper_top_source_ratio") == 0.0


def test_labels_are_bounded_whatever_the_framework_calls_a_route():
    registry = CollectorRegistry()
    own = policy(PrometheusSink(registry))
    for number in range(1500):
        own.check(Request("GET", "/", peer="192.0.2.1", route=f"/{number}" + "x" * 1000))
    own.check(Request("GET", "/", peer="192.0.2.1", route="\ud800"))
    text = generate_latest(registry).decode()
    assert max(map(len, text.splitlines())) < 400
    assert text.count("ratekeeper_requests_total{") <= 2 * 1025


def test_plain_admissions_and_all_other_events_are_counted_alike():
    """Each event goes to two sinks, to one of them as a copy in which everything is worked out.  All sums are exact."""
    clock = FakeClock(1000.0)
    quick, slow = CollectorRegistry(), CollectorRegistry()
    quick_sink = PrometheusSink(quick, clock=lambda: clock.nanos() / 1e9)
    slow_sink = PrometheusSink(slow, clock=lambda: clock.nanos() / 1e9)
    kinds = set()

    def both(event):
        kinds.add(event.plain_admission() is not None)
        quick_sink(event)
        slow_sink(pickle.loads(pickle.dumps(event)))

    rules = [{"name": "a", "limit": "4/second"}, {"name": "b", "match": "/b", "limit": "2/second", "mode": "shadow"}]
    own = Policy.parse({"rules": rules}, clock=clock, sinks=[both])
    chance = random.Random(3)
    for _ in range(300):
        own.check(Request("GET", chance.choice(["/a", "/b"]), chance.choice(["203.0.113.9", "203.0.113.10"])))
        clock.advance(chance.choice([0, 0, 0.1, 2, 61]))
        if chance.random() < 0.1:
            assert figures(quick) == figures(slow)
    assert figures(quick) == figures(slow)
    assert kinds == {False, True}


def figures(registry):
    lines = generate_latest(registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]

"""Prometheus metrics, in bounded labels."""

from prometheus_client import CollectorRegistry, generate_latest

from ratekeeper import Request
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

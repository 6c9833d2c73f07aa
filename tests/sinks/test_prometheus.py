"""Prometheus metrics, in bounded labels."""

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ratekeeper.sinks.prometheus import PrometheusSink
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
    assert value("ratekeeper_top_source_ratio") == pytest.approx(5 / 55)
    text = generate_latest(registry).decode()
    assert "192.0.2" not in text
    assert "/random" not in text
    before = len(text.splitlines())
    visit(own, *[f"/random/{number}" for number in range(1000)])
    assert len(generate_latest(registry).decode().splitlines()) <= before + 3  # one new result, no new labels

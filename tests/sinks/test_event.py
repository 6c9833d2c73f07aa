"""One event for each verdict; what sinks make of it, in bounded labels and without names."""

import logging
import random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from ratekeeper import Policy, Request
from ratekeeper.sinks.log import LoggingSink
from ratekeeper.sinks.opentelemetry import OpenTelemetrySink
from ratekeeper.sinks.prometheus import PrometheusSink
from ratekeeper.sinks.top_sources import MOST_SOURCES, TopSources
from ratekeeper.testing import FakeClock

HERE = "203.0.113.9"
RULES = {
    "rules": [
        {"name": "per-ip", "limit": "3/minute fixed_window"},
        {"name": "search", "match": "GET /search/{id}", "limit": "2/minute sliding_log", "grace": 1},
        {"name": "dark", "limit": "1/minute", "mode": "shadow"},
        {"name": "admin", "match": "/admin", "allow_from": []},
    ]
}


def policy(sink, **more):
    return Policy.parse({**RULES, **more}, clock=FakeClock(1_000_020.0), sinks=[sink])


def visit(own, *paths, peer=HERE, **more):
    return [own.check(Request("GET", path, peer, **more)) for path in paths]


def test_one_event_a_verdict():
    events = []
    own = policy(events.append)
    visit(own, "/search/1", "/search/2", "/search/3", "/search/4", "/admin", "/x")
    assert [event.result for event in events] == ["allowed", "allowed", "allowed", "refused", "forbidden", "refused"]
    assert [event.endpoint for event in events] == ["/search/{id}"] * 4 + ["/admin", "/**"]
    assert [event.graced for event in events] == [(), (), ("search",), (), (), ()]
    assert [event.shadow for event in events] == [(), ("dark",), ("dark",), (), (), ()]
    assert [event.rule for event in events][2:] == ["search", "per-ip", "admin", "per-ip"]
    standing = events[0].standings[1]
    assert (standing.rule, standing.algorithm, standing.remaining, standing.capacity) == ("search", "sliding_log", 1, 2)
    assert standing.headroom == 0.5
    assert len({event.client for event in events}) == 1
    assert all(HERE not in repr(event) for event in events)


def test_clients_are_told_apart_and_not_named():
    events = []
    own = policy(events.append, secret="pepper")
    visit(own, "/")
    visit(own, "/", peer="203.0.113.10")
    again = []
    visit(policy(again.append, secret="pepper"), "/")
    other = []
    visit(policy(other.append, secret="salt"), "/")
    first, second = [event.client for event in events]
    assert first != second
    assert again[0].client == first  # the same on every host that has the secret
    assert other[0].client != first


def test_the_endpoint_is_a_template_and_the_method_is_known():
    events = []
    own = policy(events.append)
    own.check(Request("BREW\n", "/secret/token", HERE, route="/secret/{key}"))
    assert (events[0].endpoint, events[0].method) == ("/secret/{key}", "other")


# Logging


def logged(caplog, own):
    return [record.getMessage() for record in caplog.records if record.name == "ratekeeper"]


def test_log_lines(caplog):
    caplog.set_level(logging.INFO, "ratekeeper")
    own = policy(LoggingSink(clock=FakeClock(0.0)))
    visit(own, "/search/1", "/search/2", "/search/3", "/search/4")
    lines = logged(caplog, own)
    client = caplog.records[0].ratekeeper["client"]
    assert lines == [
        f"ratekeeper shadow rule=dark client={client} method=GET endpoint=/search/{{id}}",
        f"ratekeeper graced rule=search client={client} method=GET endpoint=/search/{{id}} algorithm=sliding_log",
        f"ratekeeper shadow rule=dark client={client} method=GET endpoint=/search/{{id}}",
        f"ratekeeper refused rule=per-ip client={client} method=GET endpoint=/search/{{id}} "
        "algorithm=fixed_window retry_after=60.0",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "INFO", "WARNING"]
    assert HERE not in caplog.text


def test_the_log_cannot_be_flooded_and_says_what_it_left_out(caplog):
    caplog.set_level("WARNING", logger="ratekeeper")  # whatever another test left it at
    clock = FakeClock(0.0)
    own = policy(LoggingSink(limit="1/second burst 5", spike="1000/second", clock=clock))
    visit(own, *["/"] * 1000)
    assert len(logged(caplog, own)) == 5
    clock.advance(1)
    visit(own, "/")
    assert logged(caplog, own)[-1].endswith("dropped=992")


def test_a_spike_from_one_source_is_told_once_a_minute(caplog):
    clock = FakeClock(0.0)
    own = policy(LoggingSink(limit="1000/second", spike="10/minute", clock=clock))
    visit(own, *["/"] * 50)
    visit(own, *["/"] * 5, peer="198.51.100.7")
    spikes = [line for line in logged(caplog, own) if line.startswith("ratekeeper spike")]
    assert len(spikes) == 1
    assert "above=10/minute" in spikes[0]


def test_a_log_line_stays_one_line(caplog):
    own = policy(LoggingSink(clock=FakeClock(0.0)))
    for _ in range(5):
        own.check(Request("GET", "/", HERE, route='/a\n\x1b[31m"b' + "x" * 10**6))
    for line in logged(caplog, own):
        assert line.isprintable()
        assert len(line) < 500


# Prometheus


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


@pytest.mark.parametrize("by", [1, 50])
def test_the_busiest_source_is_never_missed(by):
    rng = random.Random(7)
    sources = TopSources()
    names = [("busy", by)] * (3000 // by) + [(f"other-{number}", 1) for number in range(20_000)]
    rng.shuffle(names)
    for name, times in names:
        sources.add(name, times)
        assert len(sources.counts) <= MOST_SOURCES
    name, share = sources.top()
    assert name == "busy"
    assert 3000 / 23_000 - 1 / MOST_SOURCES <= share <= 3000 / 23_000


# OpenTelemetry


def test_opentelemetry_metrics_and_span():
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    own = policy(OpenTelemetrySink(MeterProvider([reader])))
    with tracers.get_tracer("test").start_as_current_span("request"):
        visit(own, "/", "/", "/", "/")
    (span,) = spans.get_finished_spans()
    assert dict(span.attributes) == {
        "ratelimit.result": "refused",
        "ratelimit.policy": "per-ip",
        "ratelimit.retry_after": 60.0,
    }
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.data.data_points:
                    found[metric.name, *sorted(point.attributes.values())] = getattr(point, "value", None)
    assert found["ratelimit.requests", "/**", "allowed"] == 3
    assert found["ratelimit.decisions", "per-ip", "refused"] == 1
    assert found["ratelimit.decisions", "dark", "shadow_refused"] == 2
    assert found["ratelimit.decisions", "allowed", "dark"] == 1
    assert HERE not in repr(found)

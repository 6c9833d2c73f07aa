"""Metrics for Prometheus.  Labels are rules, endpoints and results: their number is bounded by the configuration."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from ratekeeper.sinks.event import results_of
from ratekeeper.sinks.top_sources import TopSources

if TYPE_CHECKING:
    from ratekeeper.sinks.event import Event

__all__ = ["PrometheusSink"]
SHARES = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
WINDOW = 60.0


class PrometheusSink:
    """Count requests by endpoint and decisions by rule, and show how full limits are."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.requests = Counter(
            "ratekeeper_requests", "Requests by what became of them.", ["endpoint", "result"], registry=registry
        )
        self.decisions = Counter(
            "ratekeeper_decisions", "Decisions of each rule.", ["rule", "result"], registry=registry
        )
        self.utilisation = Histogram(
            "ratekeeper_utilisation_ratio",
            "How much of a limit was used, after each decision.",
            ["rule"],
            buckets=SHARES,
            registry=registry,
        )
        self.headroom = Gauge(
            "ratekeeper_headroom_ratio",
            "The least that was left of any subject in this minute.",
            ["rule"],
            registry=registry,
        )
        self.seconds = Histogram(
            "ratekeeper_decision_seconds",
            "How long decisions took, the store included.",
            buckets=SECONDS,
            registry=registry,
        )
        self.top = Gauge(
            "ratekeeper_top_source_ratio",
            "The share of the busiest client in the requests of this minute.",
            registry=registry,
        )
        self.stand_ins = Counter(
            "ratekeeper_stand_ins",
            "Decisions without the store, by what stood in for it.",
            ["rule", "by"],
            registry=registry,
        )
        self.least: dict[str, float] = {}
        self.sources = TopSources()
        self.began_at = monotonic()

    def __call__(self, event: Event) -> None:
        if monotonic() - self.began_at > WINDOW:
            self.began_at, self.least, self.sources = monotonic(), {}, TopSources()
        self.requests.labels(event.endpoint, event.result).inc()
        self.seconds.observe(event.seconds)
        for one, result in results_of(event):
            self.decisions.labels(one.rule, result).inc()
            if one.stood_in:
                self.stand_ins.labels(one.rule, one.stood_in).inc()
            self.utilisation.labels(one.rule).observe(1 - one.headroom)
            if one.headroom < self.least.get(one.rule, 2.0):
                self.least[one.rule] = one.headroom
                self.headroom.labels(one.rule).set(one.headroom)
        if event.rule and event.result in ("blocked", "forbidden", "unavailable"):
            self.decisions.labels(event.rule, event.result).inc()
        self.sources.add(event.client)
        self.top.set(self.sources.top()[1] if self.sources.total >= 20 else 0.0)

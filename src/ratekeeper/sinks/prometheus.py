"""Metrics for Prometheus.  The labels are rules, endpoints and results: the configuration bounds their number."""

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
WINDOW = 60.0  # seconds of a minute's gauges


class PrometheusSink:
    """Count requests by endpoint and decisions by rule, and show how much of each limit is used."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = Counter(
            "ratekeeper_requests", "Requests by result.", ["endpoint", "result"], registry=registry
        )
        self._decisions = Counter(
            "ratekeeper_decisions", "Decisions of each rule.", ["rule", "result"], registry=registry
        )
        self._utilisation = Histogram(
            "ratekeeper_utilisation_ratio",
            "Used share of a limit, after each decision.",
            ["rule"],
            buckets=SHARES,
            registry=registry,
        )
        self._headroom = Gauge(
            "ratekeeper_headroom_ratio",
            "Smallest share of a limit that any client had left in this minute.",
            ["rule"],
            registry=registry,
        )
        self._seconds = Histogram(
            "ratekeeper_decision_seconds",
            "Duration of a decision, including the store.",
            buckets=SECONDS,
            registry=registry,
        )
        self._top = Gauge(
            "ratekeeper_top_source_ratio",
            "Share of the busiest client in the requests of this minute.",
            registry=registry,
        )
        self._fallbacks = Counter(
            "ratekeeper_stand_ins",
            "Decisions by a fallback of the store: local, allow or deny.",
            ["rule", "by"],
            registry=registry,
        )
        self._least: dict[str, float] = {}
        self._sources = TopSources()
        self._began_at = monotonic()

    def __call__(self, event: Event) -> None:
        if monotonic() - self._began_at > WINDOW:
            self._began_at, self._least, self._sources = monotonic(), {}, TopSources()
        self._requests.labels(event.endpoint, event.result).inc()
        self._seconds.observe(event.seconds)
        for limit, result in results_of(event):
            self._decisions.labels(limit.rule, result).inc()
            if limit.fallback:
                self._fallbacks.labels(limit.rule, limit.fallback).inc()
            self._utilisation.labels(limit.rule).observe(1 - limit.headroom)
            if limit.headroom < self._least.get(limit.rule, 2.0):
                self._least[limit.rule] = limit.headroom
                self._headroom.labels(limit.rule).set(limit.headroom)
        if event.rule and event.result in ("blocked", "forbidden", "unavailable"):
            self._decisions.labels(event.rule, event.result).inc()
        self._sources.add(event.client)
        self._top.set(self._sources.top()[1] if self._sources.total >= 20 else 0.0)

"""Metrics for Prometheus.  The labels are rules, endpoints and results, bounded in number and in length.

The gauges of a minute are worked out when Prometheus asks: after a minute without a request they are gone, so that no
alert fires for traffic that has stopped.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from ratekeeper.sinks.catalogue import CATALOGUE, LEAST_REFUSALS, MINUTE, SECONDS, SHARES
from ratekeeper.sinks.event import results_of
from ratekeeper.sinks.labels import Labels
from ratekeeper.sinks.top_sources import TopSources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.sinks.event import Event

__all__ = ["PrometheusSink"]


class PrometheusSink:
    """Count requests by endpoint and decisions by rule, and show how much of each limit is used."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, clock: Callable[[], float] = monotonic) -> None:
        def made(kind: Any, name: str, **more: Any) -> Any:
            metric = CATALOGUE[name]
            return kind(name, metric.text, metric.labels, registry=registry, **more)

        self._requests = made(Counter, "ratekeeper_requests_total")
        self._decisions = made(Counter, "ratekeeper_decisions_total")
        self._utilisation = made(Histogram, "ratekeeper_utilisation_ratio", buckets=SHARES)
        self._seconds = made(Histogram, "ratekeeper_decision_seconds", buckets=SECONDS)
        self._store_errors = made(Counter, "ratekeeper_store_errors_total")
        self._fallbacks = made(Counter, "ratekeeper_stand_ins_total")
        self._endpoints, self._rules = Labels(), Labels()
        self._clock = clock
        self._least: dict[str, float] = {}
        self._refused = TopSources()
        self._began_at = clock()
        registry.register(self)  # for the gauges

    def __call__(self, event: Event) -> None:
        self._start_minute()
        self._requests.labels(self._endpoints.of(event.endpoint), event.result).inc()
        self._seconds.observe(event.seconds)
        had_fallback = event.result == "unavailable"
        for limit, result in results_of(event):
            rule = self._rules.of(limit.rule)
            self._decisions.labels(rule, result).inc()
            if limit.fallback:
                had_fallback = True
                self._fallbacks.labels(rule, limit.fallback).inc()
            self._utilisation.labels(rule).observe(1 - limit.headroom)
            if limit.headroom < self._least.get(rule, 2.0):
                self._least[rule] = limit.headroom
        if event.rule and event.result in ("blocked", "forbidden", "unavailable"):
            self._decisions.labels(self._rules.of(event.rule), event.result).inc()
        if had_fallback:
            self._store_errors.inc()
        if not event.allowed:
            self._refused.add(event.client)

    def _start_minute(self) -> None:
        if self._clock() - self._began_at > MINUTE:
            self._began_at, self._least, self._refused = self._clock(), {}, TopSources()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The gauges of this minute, for a registry of prometheus_client."""
        self._start_minute()
        name = "ratekeeper_headroom_ratio"
        headroom = GaugeMetricFamily(name, CATALOGUE[name].text, labels=CATALOGUE[name].labels)
        for rule, share in dict(self._least).items():
            headroom.add_metric([rule], share)
        yield headroom
        name = "ratekeeper_top_source_ratio"
        share = self._refused.top()[1] if self._refused.total >= LEAST_REFUSALS else 0.0
        yield GaugeMetricFamily(name, CATALOGUE[name].text, value=share)

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return self.collect()

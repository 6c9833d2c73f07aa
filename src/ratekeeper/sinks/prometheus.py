"""Metrics for Prometheus.  The labels are rules, endpoints and results, bounded in number and in length.

A request adds to plain numbers under one lock; they become metrics of prometheus_client when Prometheus asks.  Only in
its multiprocess mode, where another process may ask, each request is passed on at once.

The gauges of a minute are worked out when Prometheus asks: after a minute without a request they are gone, so that no
alert fires for traffic that has stopped.
"""

from __future__ import annotations

from _thread import allocate_lock
from bisect import bisect_left
from os import environ
from time import monotonic
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from ratekeeper.sinks.catalogue import CATALOGUE, LEAST_REFUSALS, MINUTE, SECONDS, SHARES
from ratekeeper.sinks.labels import Labels
from ratekeeper.sinks.top_sources import TopSources
from ratekeeper.stores.fork import keep_through_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import LimitLabel
    from ratekeeper.sinks.event import Event

__all__ = ["PrometheusSink"]


class Distribution:
    """How many values fell into each bucket of a histogram, and their sum, since they were last moved there."""

    __slots__ = ("bounds", "counts", "most", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.most = -1.0  # the largest value of this minute; -1: there was none

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def move_to(self, histogram: Any) -> None:
        """Add the values to a histogram with the same bounds.  The bucket of each decides, and the sum is exact."""
        for bucket, count in zip(histogram._buckets, self.counts, strict=True):
            if count:
                bucket.inc(count)
        histogram._sum.inc(self.sum)


class Tally:
    """What requests added since the last look."""

    __slots__ = ("admissions", "decisions", "fallbacks", "requests", "seconds", "store_errors", "utilisation")

    def __init__(self) -> None:
        self.admissions: dict[tuple[str, LimitLabel], Distribution] = {}
        self.requests: dict[tuple[str, str], int] = {}
        self.decisions: dict[tuple[str, str], int] = {}
        self.fallbacks: dict[tuple[str, str], int] = {}
        self.utilisation: dict[str, Distribution] = {}
        self.seconds = Distribution(SECONDS)
        self.store_errors = 0


class PrometheusSink:
    """Count requests by endpoint and decisions by rule, and show how much of each limit is used."""

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, clock: Callable[[], float] = monotonic) -> None:
        def made(kind: Any, name: str, **more: Any) -> Any:
            metric = CATALOGUE[name]
            return kind(name, metric.text, metric.labels, registry=None, **more)

        self._requests = made(Counter, "ratekeeper_requests_total")
        self._decisions = made(Counter, "ratekeeper_decisions_total")
        self._utilisation = made(Histogram, "ratekeeper_utilisation_ratio", buckets=SHARES)
        self._seconds = made(Histogram, "ratekeeper_decision_seconds", buckets=SECONDS)
        self._store_errors = made(Counter, "ratekeeper_store_errors_total")
        self._fallbacks = made(Counter, "ratekeeper_stand_ins_total")
        self._endpoints, self._rules = Labels(), Labels()
        self._clock = clock
        self._lock = allocate_lock()
        self._tally = Tally()
        self._is_read_elsewhere = "PROMETHEUS_MULTIPROC_DIR" in environ or "prometheus_multiproc_dir" in environ
        self._least: dict[str, float] = {}
        self._refused = TopSources()
        self._began_at = clock()
        keep_through_fork(self)
        registry.register(self)

    def __call__(self, event: Event) -> None:
        plain = event.plain_admission()
        if plain is not None and not self._is_read_elsewhere:
            return self._count_admission(event, *plain)
        outcomes = event.outcomes()
        result, endpoint = event.result, self._endpoints.of(event.endpoint)
        seconds, allowed = event.seconds, event.allowed
        client = "" if allowed else event.client
        with self._lock:
            if self._clock() - self._began_at > MINUTE:
                self._start_minute()
            tally = self._tally
            place = endpoint, result
            tally.requests[place] = tally.requests.get(place, 0) + 1
            tally.seconds.add(seconds)
            had_fallback = result == "unavailable"
            for name, outcome, headroom, fallback in outcomes:
                rule = self._rules.of(name)
                place = rule, outcome
                tally.decisions[place] = tally.decisions.get(place, 0) + 1
                if fallback:
                    had_fallback = True
                    tally.fallbacks[rule, fallback] = tally.fallbacks.get((rule, fallback), 0) + 1
                used = tally.utilisation.get(rule)
                if used is None:
                    used = tally.utilisation[rule] = Distribution(SHARES)
                used.add(1 - headroom)
                if headroom < self._least.get(rule, 2.0):
                    self._least[rule] = headroom
            if result in ("blocked", "forbidden", "unavailable") and event.rule:
                place = self._rules.of(event.rule), result
                tally.decisions[place] = tally.decisions.get(place, 0) + 1
            tally.store_errors += had_fallback
            if not allowed:
                self._refused.add(client)
        if self._is_read_elsewhere:
            self._move_on()
        return None

    def _count_admission(self, event: Event, label: LimitLabel, decision: Decision) -> None:
        """The same for what nearly every request is: one endpoint, one limit, admitted."""
        place = self._endpoints.of(event.endpoint), label
        seconds, used = event.seconds, 1 - decision.remaining / label.capacity
        bucket, share = bisect_left(SECONDS, seconds), bisect_left(SHARES, used)
        with self._lock:
            if self._clock() - self._began_at > MINUTE:
                self._start_minute()
            admissions = self._tally.admissions.get(place)
            if admissions is None:
                admissions = self._tally.admissions[place] = Distribution(SHARES)
            admissions.counts[share] += 1
            admissions.sum += used
            if used > admissions.most:
                admissions.most = used
            times = self._tally.seconds
            times.counts[bucket] += 1
            times.sum += seconds

    def _start_minute(self) -> None:
        """Begin the gauges anew; the lock is held."""
        self._began_at, self._least, self._refused = self._clock(), {}, TopSources()
        for admissions in self._tally.admissions.values():
            admissions.most = -1.0

    def _move_on(self) -> None:
        """Move what requests added to the metrics of prometheus_client, each number once."""
        with self._lock:
            if self._clock() - self._began_at > MINUTE:
                self._start_minute()
            tally, self._tally = self._tally, Tally()
            for (_, label), used in tally.admissions.items():
                if used.most >= 0:  # in this minute
                    rule = self._rules.of(label.rule.name)
                    self._least[rule] = min(1 - used.most, self._least.get(rule, 2.0))
        for (endpoint, label), used in tally.admissions.items():
            rule = self._rules.of(label.rule.name)
            self._requests.labels(endpoint, "allowed").inc(sum(used.counts))
            self._decisions.labels(rule, "allowed").inc(sum(used.counts))
            used.move_to(self._utilisation.labels(rule))
        for place, count in tally.requests.items():
            self._requests.labels(*place).inc(count)
        for place, count in tally.decisions.items():
            self._decisions.labels(*place).inc(count)
        for place, count in tally.fallbacks.items():
            self._fallbacks.labels(*place).inc(count)
        for rule, used in tally.utilisation.items():
            used.move_to(self._utilisation.labels(rule))
        tally.seconds.move_to(self._seconds)
        if tally.store_errors:
            self._store_errors.inc(tally.store_errors)

    def collect(self) -> Iterator[Metric]:
        """The metrics, and the gauges of this minute, for a registry of prometheus_client."""
        self._move_on()
        for metric in (self._requests, self._decisions, self._utilisation, self._seconds):
            yield from metric.collect()
        for metric in (self._store_errors, self._fallbacks):
            yield from metric.collect()
        with self._lock:
            if self._clock() - self._began_at > MINUTE:
                self._start_minute()
            least = dict(self._least)
            share = self._refused.top()[1] if self._refused.total >= LEAST_REFUSALS else 0.0
        name = "ratekeeper_headroom_ratio"
        headroom = GaugeMetricFamily(name, CATALOGUE[name].text, labels=CATALOGUE[name].labels)
        for rule, left in least.items():
            headroom.add_metric([rule], left)
        yield headroom
        name = "ratekeeper_top_source_ratio"
        yield GaugeMetricFamily(name, CATALOGUE[name].text, value=share)

    def describe(self) -> Iterator[Metric]:
        return self.collect()

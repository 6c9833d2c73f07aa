"""Metrics and span attributes for OpenTelemetry, through the SDK that the application has set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from ratekeeper.sinks.event import results_of
from ratekeeper.sinks.labels import Labels

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from ratekeeper.sinks.event import Event


__all__ = ["OpenTelemetrySink"]


class OpenTelemetrySink:
    """Count decisions, time them, and add the verdict to the span of the request."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        self._endpoints, self._rules = Labels(), Labels()
        meter = metrics.get_meter("ratekeeper", meter_provider=meter_provider)
        self._requests = meter.create_counter("ratelimit.requests", "{request}", "Requests by result.")
        self._decisions = meter.create_counter("ratelimit.decisions", "{decision}", "Decisions of each rule.")
        self._fallbacks = meter.create_counter("ratelimit.stand_ins", "{decision}", "Decisions by a fallback.")
        self._seconds = meter.create_histogram("ratelimit.decision.duration", "s", "Duration of a decision.")
        self._utilisation = meter.create_histogram("ratelimit.utilisation", "1", "Used share of a limit.")

    def __call__(self, event: Event) -> None:
        self._requests.add(1, {"http.route": self._endpoints.of(event.endpoint), "ratelimit.result": event.result})
        self._seconds.record(event.seconds)
        for limit, result in results_of(event):
            rule = self._rules.of(limit.rule)
            self._decisions.add(1, {"ratelimit.policy": rule, "ratelimit.result": result})
            if limit.fallback:
                self._fallbacks.add(1, {"ratelimit.policy": rule, "ratelimit.by": limit.fallback})
            self._utilisation.record(1 - limit.headroom, {"ratelimit.policy": rule})
        if event.rule and event.result in ("blocked", "forbidden", "unavailable"):
            self._decisions.add(1, {"ratelimit.policy": event.rule, "ratelimit.result": event.result})
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute("ratelimit.result", event.result)
            if event.rule is not None:
                span.set_attribute("ratelimit.policy", event.rule)
            if not event.allowed and event.retry_after is not None:
                span.set_attribute("ratelimit.retry_after", event.retry_after)

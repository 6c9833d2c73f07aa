"""Metrics and span attributes for OpenTelemetry, through whatever SDK the application has set up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import metrics, trace

from ratekeeper.sinks.event import results_of

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from ratekeeper.sinks.event import Event


__all__ = ["OpenTelemetrySink"]


class OpenTelemetrySink:
    """Count decisions, time them, and write the verdict on the span of the request."""

    def __init__(self, meter_provider: MeterProvider | None = None) -> None:
        meter = metrics.get_meter("ratekeeper", meter_provider=meter_provider)
        self.requests = meter.create_counter("ratelimit.requests", "{request}", "Requests by what became of them.")
        self.decisions = meter.create_counter("ratelimit.decisions", "{decision}", "Decisions of each rule.")
        self.stand_ins = meter.create_counter("ratelimit.stand_ins", "{decision}", "Decisions without the store.")
        self.seconds = meter.create_histogram("ratelimit.decision.duration", "s", "How long decisions took.")
        self.utilisation = meter.create_histogram("ratelimit.utilisation", "1", "How much of a limit was used.")

    def __call__(self, event: Event) -> None:
        self.requests.add(1, {"http.route": event.endpoint, "ratelimit.result": event.result})
        self.seconds.record(event.seconds)
        for one, result in results_of(event):
            self.decisions.add(1, {"ratelimit.policy": one.rule, "ratelimit.result": result})
            if one.stood_in:
                self.stand_ins.add(1, {"ratelimit.policy": one.rule, "ratelimit.by": one.stood_in})
            self.utilisation.record(1 - one.headroom, {"ratelimit.policy": one.rule})
        if event.rule and event.result in ("blocked", "forbidden", "unavailable"):
            self.decisions.add(1, {"ratelimit.policy": event.rule, "ratelimit.result": event.result})
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attribute("ratelimit.result", event.result)
            if event.rule is not None:
                span.set_attribute("ratelimit.policy", event.rule)
            if not event.allowed and event.retry_after is not None:
                span.set_attribute("ratelimit.retry_after", event.retry_after)

"""OpenTelemetry metrics, and the event on the span."""

from ratekeeper.sinks.opentelemetry import OpenTelemetrySink
from tests.sinks.samples import HERE, policy, visit


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

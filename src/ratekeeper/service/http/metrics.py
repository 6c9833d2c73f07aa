"""``/metrics``: the counters of all workers in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.service.counters import Counters, Histogram
from ratekeeper.sinks.catalogue import CATALOGUE, LEAST_REFUSALS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ratekeeper.rules.rule import Rule

MEDIA = b"text/plain; version=0.0.4; charset=utf-8"
MODES = {"enforce": 2, "shadow": 1, "off": 0}


def family(name: str, kind: str, text: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    yield from lines


def sample(name: str, labels: Mapping[str, str], value: float) -> str:
    text = label_text(labels)
    return f"{name}{{{text}}} {value:.12g}" if text else f"{name} {value:.12g}"


def label_text(labels: Mapping[str, str]) -> str:
    return ",".join([f'{label}="{escaped(text)}"' for label, text in labels.items()])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def histogram_samples(name: str, histogram: Histogram, labels: Mapping[str, str]) -> Iterator[str]:
    text, below = label_text(labels), 0
    start = f"{name}_bucket{{{text}{',' if text else ''}le="
    for bound, count in zip([*histogram.bounds, "+Inf"], histogram.counts, strict=True):
        below += count
        yield f'{start}"{bound}"}} {below:.12g}'
    yield sample(f"{name}_count", labels, below)
    yield sample(f"{name}_sum", labels, histogram.total)


def exposition(counters: Counters, rules: Iterable[Rule], gauges: Mapping[str, float]) -> Iterator[str]:
    """All metrics of the catalogue, line by line.  ``gauges`` holds the present values of those without labels."""
    samples: dict[str, Iterable[str]] = {
        "ratekeeper_requests_total": (
            sample("ratekeeper_requests_total", {"endpoint": endpoint, "result": result}, count)
            for (endpoint, result), count in sorted(counters.requests.items())
        ),
        "ratekeeper_decisions_total": (
            sample("ratekeeper_decisions_total", {"rule": rule, "result": result}, count)
            for rule, counts in sorted(counters.rules.items())
            for result, count in sorted(counts.results().items())
        ),
        "ratekeeper_utilisation_ratio": (
            line
            for rule, counts in sorted(counters.rules.items())
            if any(counts.histogram.counts)
            for line in histogram_samples("ratekeeper_utilisation_ratio", counts.histogram, {"rule": rule})
        ),
        "ratekeeper_headroom_ratio": (
            sample("ratekeeper_headroom_ratio", {"rule": rule}, share)
            for rule, share in sorted(counters.headroom.items())
        ),
        "ratekeeper_decision_seconds": histogram_samples("ratekeeper_decision_seconds", counters.seconds, {}),
        "ratekeeper_top_source_ratio": [sample("ratekeeper_top_source_ratio", {}, top_share(counters))],
        "ratekeeper_store_errors_total": [sample("ratekeeper_store_errors_total", {}, counters.store_errors)],
        "ratekeeper_stand_ins_total": (
            sample("ratekeeper_stand_ins_total", {"rule": rule, "by": by}, count)
            for (rule, by), count in sorted(counters.fallbacks.items())
        ),
        # The label "door" means the listener: metrics keep their labels, as alerts and dashboards name them.
        "ratekeeper_calls_total": by_door("ratekeeper_calls_total", counters.calls),
        "ratekeeper_turned_away_total": by_door("ratekeeper_turned_away_total", counters.turned_away),
        "ratekeeper_faults_total": by_door("ratekeeper_faults_total", {"http": 0, **counters.faults}),
        "ratekeeper_reloads_total": (
            sample("ratekeeper_reloads_total", {"result": result}, counters.reloads.get(result, 0))
            for result in ("done", "failed")
        ),
        "ratekeeper_rule_mode": (
            sample("ratekeeper_rule_mode", {"rule": rule.name}, MODES[rule.mode]) for rule in rules
        ),
        **{name: [sample(name, {}, value)] for name, value in gauges.items()},
    }
    for name, lines in samples.items():
        yield from family(name, CATALOGUE[name].kind, CATALOGUE[name].text, lines)


def top_share(counters: Counters) -> float:
    total = counters.refused.total
    return max(counters.refused.counts.values(), default=0) / total if total >= LEAST_REFUSALS else 0.0


def by_door(name: str, counts: Mapping[str, int]) -> Iterator[str]:
    return (sample(name, {"door": door}, count) for door, count in sorted(counts.items()))

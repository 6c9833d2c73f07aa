"""``/metrics``: the counters of all workers in the text format of Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.service.counters import Counters, Histogram

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


def exposition(counters: Counters, rules: Iterable[Rule], gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    """All metrics, line by line.  ``gauges`` holds the help text and the present value of each gauge, by name."""
    total = counters.refused.total
    top = max(counters.refused.counts.values(), default=0) / total if total >= 20 else 0.0
    yield from family("ratekeeper_requests_total", "counter", "Requests by result.", (
        sample("ratekeeper_requests_total", {"endpoint": endpoint, "result": result}, count)
        for (endpoint, result), count in sorted(counters.requests.items())
    ))  # fmt: skip
    yield from family("ratekeeper_decisions_total", "counter", "Decisions of each rule.", (
        sample("ratekeeper_decisions_total", {"rule": rule, "result": result}, count)
        for rule, counts in sorted(counters.rules.items()) for result, count in sorted(counts.results().items())
    ))  # fmt: skip
    used = "How much of a limit was used, after each decision."
    yield from family("ratekeeper_utilisation_ratio", "histogram", used, (
        line for rule, counts in sorted(counters.rules.items()) if any(counts.histogram.counts)
        for line in histogram_samples("ratekeeper_utilisation_ratio", counts.histogram, {"rule": rule})
    ))  # fmt: skip
    left = "The smallest share of a limit that remained for any client in this minute."
    yield from family("ratekeeper_headroom_ratio", "gauge", left, (
        sample("ratekeeper_headroom_ratio", {"rule": rule}, share) for rule, share in sorted(counters.headroom.items())
    ))  # fmt: skip
    took = "Duration of decisions, including the store."
    seconds = histogram_samples("ratekeeper_decision_seconds", counters.seconds, {})
    yield from family("ratekeeper_decision_seconds", "histogram", took, seconds)
    share = "The largest share of one client in the refusals of this minute."
    yield from family("ratekeeper_top_source_ratio", "gauge", share, [sample("ratekeeper_top_source_ratio", {}, top)])
    # The label "door" means the listener: metrics keep their labels, as alerts and dashboards name them.
    yield from family("ratekeeper_calls_total", "counter", "Calls by listener.", (
        sample("ratekeeper_calls_total", {"door": door}, count) for door, count in sorted(counters.calls.items())
    ))  # fmt: skip
    rejected = "Calls and connections rejected for lack of room, by listener."
    yield from family("ratekeeper_turned_away_total", "counter", rejected, (
        sample("ratekeeper_turned_away_total", {"door": door}, count)
        for door, count in sorted(counters.turned_away.items())
    ))  # fmt: skip
    errors = [sample("ratekeeper_store_errors_total", {}, counters.store_errors)]
    yield from family("ratekeeper_store_errors_total", "counter", "Requests that the store could not decide.", errors)
    yield from family("ratekeeper_reloads_total", "counter", "Reloads of the rules, by result.", (
        sample("ratekeeper_reloads_total", {"result": result}, counters.reloads.get(result, 0))
        for result in ("done", "failed")
    ))  # fmt: skip
    yield from family("ratekeeper_rule_mode", "gauge", "Mode of each rule: 2 enforce, 1 shadow, 0 off.", (
        sample("ratekeeper_rule_mode", {"rule": rule.name}, MODES[rule.mode]) for rule in rules
    ))  # fmt: skip
    for name, (text, value) in gauges.items():
        yield from family(name, "gauge", text, [sample(name, {}, value)])

"""``/metrics``: the tally of all workers in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.service.counters import SHARES, Counters, Spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ratekeeper.rules.rule import Rule

MEDIA = b"text/plain; version=0.0.4; charset=utf-8"
MODES = {"enforce": 2, "shadow": 1, "off": 0}


def family(name: str, kind: str, text: str, lines: Iterable[str]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
    yield from lines


def labelled(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = inside_of(labels)
    return f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}"


def inside_of(labels: Mapping[str, str]) -> str:
    return ",".join([f'{label}="{escaped(text)}"' for label, text in labels.items()])


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def spread_lines(name: str, spread: Spread, labels: Mapping[str, str]) -> Iterator[str]:
    inside, below = inside_of(labels), 0
    start = f"{name}_bucket{{{inside}{',' if inside else ''}le="
    for bound, count in zip([*spread.bounds, "+Inf"], spread.counts, strict=True):
        below += count
        yield f'{start}"{bound}"}} {below:.12g}'
    yield labelled(f"{name}_count", labels, below)
    yield labelled(f"{name}_sum", labels, spread.total)


def exposition(tally: Counters, rules: Iterable[Rule], gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    """All there is to scrape, line by line.

    ``gauges`` are facts of this moment, by name: what they say, and how much.
    """
    total = tally.refused.total
    top = max(tally.refused.counts.values(), default=0) / total if total >= 20 else 0.0
    yield from family("ratekeeper_requests_total", "counter", "Requests by what became of them.", (
        labelled("ratekeeper_requests_total", {"endpoint": endpoint, "result": result}, count)
        for (endpoint, result), count in sorted(tally.requests.items())
    ))  # fmt: skip
    yield from family("ratekeeper_decisions_total", "counter", "Decisions of each rule.", (
        labelled("ratekeeper_decisions_total", {"rule": rule, "result": result}, count)
        for rule, own in sorted(tally.rules.items()) for result, count in sorted(own.results().items())
    ))  # fmt: skip
    used = "How much of a limit was used, after each decision."
    yield from family("ratekeeper_utilisation_ratio", "histogram", used, (
        line for rule, own in sorted(tally.rules.items()) if any(own.spread.counts)
        for line in spread_lines("ratekeeper_utilisation_ratio", own.spread, {"rule": rule})
    ))  # fmt: skip
    yield from family("ratekeeper_headroom_ratio", "gauge", "The least that was left of any subject in this minute.", (
        labelled("ratekeeper_headroom_ratio", {"rule": rule}, left) for rule, left in sorted(tally.headroom.items())
    ))  # fmt: skip
    took = "How long decisions took, the store included."
    seconds = spread_lines("ratekeeper_decision_seconds", tally.seconds, {})
    yield from family("ratekeeper_decision_seconds", "histogram", took, seconds)
    share = "The share of one client in the refusals of this minute."
    yield from family("ratekeeper_top_source_ratio", "gauge", share, [labelled("ratekeeper_top_source_ratio", {}, top)])
    yield from family("ratekeeper_calls_total", "counter", "Calls by the door they came through.", (
        labelled("ratekeeper_calls_total", {"door": door}, count) for door, count in sorted(tally.doors.items())
    ))  # fmt: skip
    yield from family("ratekeeper_turned_away_total", "counter", "Calls answered with 'busy', by door.", (
        labelled("ratekeeper_turned_away_total", {"door": door}, count)
        for door, count in sorted(tally.turned_away.items())
    ))  # fmt: skip
    errors = [labelled("ratekeeper_store_errors_total", {}, tally.store_errors)]
    yield from family("ratekeeper_store_errors_total", "counter", "Requests that the store could not decide.", errors)
    yield from family("ratekeeper_reloads_total", "counter", "Reloads of the rules, by how they ended.", (
        labelled("ratekeeper_reloads_total", {"result": result}, tally.reloads.get(result, 0))
        for result in ("done", "failed")
    ))  # fmt: skip
    yield from family("ratekeeper_rule_mode", "gauge", "Of each rule: 2 enforced, 1 in shadow, 0 off.", (
        labelled("ratekeeper_rule_mode", {"rule": rule.name}, MODES[rule.mode]) for rule in rules
    ))  # fmt: skip
    for name, (text, value) in gauges.items():
        yield from family(name, "gauge", text, [labelled(name, {}, value)])


__all__ = ["MEDIA", "SHARES", "exposition"]

"""``/metrics``: the tally of all workers in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.service.tally import SHARES, Spread, Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratekeeper.rules import Rule

MEDIA = b"text/plain; version=0.0.4; charset=utf-8"
MODES = {"enforce": 2, "shadow": 1, "off": 0}


def family(name: str, kind: str, text: str, lines: Iterable[str]) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]


def labelled(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join([f'{label}="{escaped(text)}"' for label, text in labels.items()])
    return f"{name}{{{inside}}} {value:.12g}" if inside else f"{name} {value:.12g}"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def spread_lines(name: str, spread: Spread, labels: Mapping[str, str]) -> list[str]:
    lines, below = [], 0
    for bound, count in zip([*map(str, spread.bounds), "+Inf"], spread.counts, strict=True):
        below += count
        lines.append(labelled(f"{name}_bucket", {**labels, "le": bound}, below))
    return [*lines, labelled(f"{name}_count", labels, below), labelled(f"{name}_sum", labels, spread.total)]


def exposition(tally: Tally, rules: Iterable[Rule], gauges: Mapping[str, tuple[str, float]]) -> bytes:
    """All there is to scrape.  ``gauges`` are facts of this moment, by name: what they say, and how much."""
    total = tally.refused.total
    top = max(tally.refused.counts.values(), default=0) / total if total >= 20 else 0.0
    lines = [
        *family("ratekeeper_requests_total", "counter", "Requests by what became of them.", [
            labelled("ratekeeper_requests_total", {"endpoint": endpoint, "result": result}, count)
            for (endpoint, result), count in sorted(tally.requests.items())]),
        *family("ratekeeper_decisions_total", "counter", "Decisions of each rule.", [
            labelled("ratekeeper_decisions_total", {"rule": rule, "result": result}, count)
            for rule, own in sorted(tally.rules.items()) for result, count in sorted(own.results().items())]),
        *family("ratekeeper_utilisation_ratio", "histogram", "How much of a limit was used, after each decision.", [
            line for rule, own in sorted(tally.rules.items()) if any(own.spread.counts)
            for line in spread_lines("ratekeeper_utilisation_ratio", own.spread, {"rule": rule})]),
        *family("ratekeeper_headroom_ratio", "gauge", "The least that was left of any subject in this minute.", [
            labelled("ratekeeper_headroom_ratio", {"rule": rule}, left)
            for rule, left in sorted(tally.headroom.items())]),
        *family("ratekeeper_decision_seconds", "histogram", "How long decisions took, the store included.",
                spread_lines("ratekeeper_decision_seconds", tally.seconds, {})),
        *family("ratekeeper_top_source_ratio", "gauge", "The share of one client in the refusals of this minute.",
                [labelled("ratekeeper_top_source_ratio", {}, top)]),
        *family("ratekeeper_calls_total", "counter", "Calls by the door they came through.", [
            labelled("ratekeeper_calls_total", {"door": door}, count) for door, count in sorted(tally.doors.items())]),
        *family("ratekeeper_turned_away_total", "counter", "Calls answered with 'busy', by door.", [
            labelled("ratekeeper_turned_away_total", {"door": door}, count)
            for door, count in sorted(tally.turned_away.items())]),
        *family("ratekeeper_store_errors_total", "counter", "Requests that the store could not decide.",
                [labelled("ratekeeper_store_errors_total", {}, tally.store_errors)]),
        *family("ratekeeper_reloads_total", "counter", "Reloads of the rules, by how they ended.", [
            labelled("ratekeeper_reloads_total", {"result": result}, tally.reloads.get(result, 0))
            for result in ("done", "failed")]),
        *family("ratekeeper_rule_mode", "gauge", "Of each rule: 2 enforced, 1 in shadow, 0 off.", [
            labelled("ratekeeper_rule_mode", {"rule": rule.name}, MODES[rule.mode]) for rule in rules]),
    ]  # fmt: skip
    for name, (text, value) in gauges.items():
        lines += family(name, "gauge", text, [labelled(name, {}, value)])
    return "\n".join([*lines, ""]).encode()


__all__ = ["MEDIA", "SHARES", "exposition"]

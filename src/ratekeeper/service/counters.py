"""Counters of decisions, for metrics and the dashboard.

The names are those of ``sinks/prometheus.py``.  Counters are numbers, so that those of several workers can be written
as JSON, read and added.  They hold no key and no address: the most refused clients are known by a keyed digest only.
"""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.sinks.catalogue import MINUTE, SECONDS, SHARES
from ratekeeper.sinks.event import RESULTS, anonymous
from ratekeeper.sinks.labels import MOST_LABELS, OTHER, Labels, clean
from ratekeeper.sinks.top_sources import TopSources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.decision import Decision
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.decide import CompiledRules

NOTHING_YET = 2.0  # above every share that can remain


class Histogram:
    """How many values fell into each bucket, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, counts: list[int], total: float) -> None:
        self.counts = [count + more for count, more in zip(self.counts, counts, strict=True)]
        self.total += total


class RuleCounts:
    """The decisions of one rule, or of one limit that callers name."""

    __slots__ = ("allowed", "histogram", "least", "others", "refused")

    def __init__(self) -> None:
        self.allowed = 0
        self.refused = 0
        self.others: dict[str, int] = {}  # the rare results, by name
        self.histogram = Histogram(SHARES)  # the share of the limit that was used
        self.least = NOTHING_YET  # the smallest share that remained for any client in this minute

    def count(self, allowed: bool, left: float) -> None:
        """Count one decision that left this share of its limit: on the hot path of every listener."""
        if allowed:
            self.allowed += 1
        else:
            self.refused += 1
        histogram = self.histogram
        histogram.counts[bisect_left(SHARES, 1 - left)] += 1
        histogram.total += 1 - left
        if left < self.least:
            self.least = left

    def count_unenforced(self, decision: Decision, result: str) -> None:
        """Count a refusal that was not enforced, because the rule is in shadow mode or the client has grace left."""
        self.others[result] = self.others.get(result, 0) + 1
        left = decision.remaining / decision.limit
        self.histogram.add(1 - left)
        self.least = min(self.least, left)

    def results(self) -> dict[str, int]:
        results = {"allowed": self.allowed, "refused": self.refused, **self.others}
        return {result: count for result, count in results.items() if count}


class Counters:
    """The decisions of one worker since it started."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by endpoint and result
        self.endpoints = Labels()
        self.rules: dict[str, RuleCounts] = {}
        self.calls: dict[str, int] = {}  # by listener
        self.turned_away: dict[str, int] = {}  # clients and calls rejected for lack of room, by listener
        self.faults: dict[str, int] = {}  # mistakes of our own that calls ran into, by listener
        self.seconds = Histogram(SECONDS)
        self.refused = TopSources()  # the most refused clients of this minute
        self.store_errors = 0  # requests that the store could not decide
        self.fallbacks: dict[tuple[str, str], int] = {}  # decisions of a fallback, by rule and mode
        self.reloads: dict[str, int] = {}
        self.minute_began_at = monotonic()

    def of(self, rule: str) -> RuleCounts:
        """The counts of ``rule``; names beyond the bound share one entry, and every entry can be shown."""
        counts = self.rules.get(rule)
        if counts is None:
            rule = clean(rule)
            if len(self.rules) >= MOST_LABELS and rule not in self.rules:
                rule = OTHER
            counts = self.rules.setdefault(rule, RuleCounts())
        return counts

    def count(self, rule: str, decision: Decision) -> None:
        """Count the decision of one limit."""
        self.of(rule).count(decision.allowed, decision.remaining / decision.limit)

    def count_request(self, compiled: CompiledRules, verdict: HttpVerdict, endpoint: str, nanos: int) -> None:
        """Count the verdict on one request."""
        why = verdict.reason
        key = endpoint, RESULTS[why]
        count = self.requests.get(key)
        if count is None:
            key = self.endpoints.of(endpoint), RESULTS[why]
            count = self.requests.get(key, 0)
        self.requests[key] = count + 1
        self.seconds.add(nanos / 1e9)
        notes = verdict.notes
        if notes is NO_NOTES:
            had_fallback = False
            for entry, decision in verdict.answers:
                self.of(entry.labels[0].rule.name).count(decision.allowed, decision.remaining / decision.limit)
                if decision.reason:
                    had_fallback = True
                    self.count_fallback(entry.labels[0].rule.name, decision)
            if not why:
                self.store_errors += had_fallback
                return
        else:
            had_fallback = False
            for entry, decision in (*verdict.answers, *notes.unenforced):
                if decision.reason:
                    had_fallback = True
                    self.count_fallback(entry.labels[0].rule.name, decision)
            for entry, decision in verdict.answers:
                self.count_enforced_or(entry, decision, "graced", passed=bool(notes.graced))
            for entry, decision in notes.unenforced:
                self.count_enforced_or(entry, decision, "shadow_refused", passed=True)
        if notes.refuser is not None and why in ("blocked", "forbidden"):
            self.bump(notes.refuser.name, why)
        self.store_errors += had_fallback or why == "store"
        if why:
            subject = compiled.identity.addresses.find(verdict.request).subject
            self.refused.add(anonymous(subject, compiled.settings.secret))

    def count_fallback(self, rule: str, decision: Decision) -> None:
        """Count a decision of the store's fallback."""
        key = clean(rule), decision.reason.partition(":")[0]
        if key in self.fallbacks or len(self.fallbacks) < MOST_LABELS:
            self.fallbacks[key] = self.fallbacks.get(key, 0) + 1

    def count_enforced_or(self, entry: TierLimit, decision: Decision, result: str, *, passed: bool) -> None:
        """Count one decision; a refusal of a request that ``passed`` anyway counts as ``result``."""
        counts = self.of(entry.labels[0].rule.name)
        if passed and not decision.allowed:
            counts.count_unenforced(decision, result)
        else:
            counts.count(decision.allowed, decision.remaining / decision.limit)

    def bump(self, rule: str, result: str, by: int = 1) -> None:
        counts = self.of(rule)
        if result == "allowed":
            counts.allowed += by
        elif result == "refused":
            counts.refused += by
        else:
            counts.others[result] = counts.others.get(result, 0) + by

    def start_minute(self) -> None:
        """Start a new minute if the present one is over."""
        if monotonic() - self.minute_began_at > MINUTE:
            self.minute_began_at, self.refused = monotonic(), TopSources()
            self.forget_headroom()

    def forget_headroom(self) -> None:
        for counts in self.rules.values():
            counts.least = NOTHING_YET

    @property
    def headroom(self) -> dict[str, float]:
        """The smallest share that remained for any client in this minute, by rule."""
        return {rule: counts.least for rule, counts in self.rules.items() if counts.least < NOTHING_YET}

    def as_json(self) -> dict[str, Any]:
        """The counters as values that JSON can hold; ``add`` reads them, also from files of earlier versions."""
        return {
            "requests": [[*key, count] for key, count in self.requests.items()],
            "rules": {
                rule: [counts.results(), counts.histogram.counts, counts.histogram.total, counts.least]
                for rule, counts in self.rules.items()
            },
            "doors": dict(self.calls),
            "turned_away": dict(self.turned_away),
            "faults": dict(self.faults),
            "seconds": [self.seconds.counts, self.seconds.total],
            "refused": dict(self.refused.counts),
            "refused_total": self.refused.total,
            "store_errors": self.store_errors,
            "fallbacks": [[*key, count] for key, count in self.fallbacks.items()],
            "reloads": dict(self.reloads),
        }

    def add(self, content: dict[str, Any]) -> None:
        """Add the counters that another worker has written."""
        for endpoint, result, count in content["requests"]:
            key = self.endpoints.of(endpoint), result
            self.requests[key] = self.requests.get(key, 0) + count
        for rule, (results, buckets, total, least) in content["rules"].items():
            counts = self.of(rule)
            for result, count in results.items():
                self.bump(rule, result, count)
            counts.histogram.merge(buckets, total)
            counts.least = min(counts.least, least)
        for numbers, name in (
            (self.calls, "doors"), (self.turned_away, "turned_away"), (self.reloads, "reloads"),
            (self.refused.counts, "refused"), (self.faults, "faults"),
        ):  # fmt: skip
            for key, count in content.get(name, {}).items():
                numbers[key] = numbers.get(key, 0) + count
        for rule, by, count in content.get("fallbacks", ()):
            self.fallbacks[clean(rule), by] = self.fallbacks.get((clean(rule), by), 0) + count
        self.seconds.merge(*content["seconds"])
        self.refused.total += content["refused_total"]
        self.store_errors += content["store_errors"]

    def by_rule(self) -> dict[str, dict[str, int]]:
        """Results of each rule."""
        return {rule: counts.results() for rule, counts in self.rules.items()}

    def most_refused(self, most: int = 8) -> list[tuple[str, int]]:
        return sorted(self.refused.counts.items(), key=lambda client: -client[1])[:most]


def merged(counters: Counters, others: Iterable[dict[str, Any]]) -> Counters:
    """The sum of the counters of all workers."""
    total = Counters()
    total.add(counters.as_json())
    for content in others:
        total.add(content)
    return total

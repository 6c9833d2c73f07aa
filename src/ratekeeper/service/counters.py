"""What was decided, counted: for metrics and the dashboard.

Names are those of ``sinks/prometheus.py``.  A tally is plain numbers, so that those of several workers can be written
down, read and added; it holds no key and no address: whom we refuse most is known by a keyed digest only.
"""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.http.verdict import NO_NOTES
from ratekeeper.sinks.event import RESULTS, anonymous
from ratekeeper.sinks.top_sources import TopSources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.decision import Decision
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.decide import CompiledRules

SHARES = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
MINUTE = 60.0
OTHERS = "other"  # stands for names beyond the bound
MOST_NAMES = 1024
NOTHING_YET = 2.0  # a share that is never left


class Spread:
    """A histogram: how many fell into each part, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def join(self, counts: list[int], total: float) -> None:
        self.counts = [own + other for own, other in zip(self.counts, counts, strict=True)]
        self.total += total


class RuleCounts:
    """What one rule, or one limit that callers name, has answered."""

    __slots__ = ("allowed", "least", "others", "refused", "spread")

    def __init__(self) -> None:
        self.allowed = 0
        self.refused = 0
        self.others: dict[str, int] = {}  # by result: what is rare
        self.spread = Spread(SHARES)  # how much of the limit was used
        self.least = NOTHING_YET  # that was left of any subject in this minute, as a share

    def count(self, decision: Decision) -> None:
        """Note one answer: the hot path of every door."""
        if decision.allowed:
            self.allowed += 1
        else:
            self.refused += 1
        left = decision.remaining / decision.limit
        spread = self.spread
        spread.counts[bisect_left(SHARES, 1 - left)] += 1
        spread.total += 1 - left
        if left < self.least:
            self.least = left

    def let_pass(self, decision: Decision, result: str) -> None:
        """Note a refusal that was none, because the rule is in shadow or has grace left."""
        self.others[result] = self.others.get(result, 0) + 1
        left = decision.remaining / decision.limit
        self.spread.add(1 - left)
        self.least = min(self.least, left)

    def results(self) -> dict[str, int]:
        found = {"allowed": self.allowed, "refused": self.refused, **self.others}
        return {result: count for result, count in found.items() if count}


class Counters:
    """What one worker has decided since it began."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by endpoint and result
        self.rules: dict[str, RuleCounts] = {}
        self.doors: dict[str, int] = {}  # calls by door
        self.turned_away: dict[str, int] = {}  # by door: who was told that there is no room
        self.seconds = Spread(SECONDS)
        self.refused = TopSources()  # who is refused most in this minute
        self.store_errors = 0
        self.reloads: dict[str, int] = {}
        self.began_at = monotonic()

    def of(self, rule: str) -> RuleCounts:
        """Where the answers of ``rule`` are counted; names beyond the bound share one place."""
        found = self.rules.get(rule)
        if found is None:
            if len(self.rules) >= MOST_NAMES:
                rule = OTHERS
            found = self.rules.setdefault(rule, RuleCounts())
        return found

    def count(self, rule: str, decision: Decision) -> None:
        """Note the answer of one limit."""
        self.of(rule).count(decision)

    def note(self, program: CompiledRules, verdict: HttpVerdict, endpoint: str, nanos: int) -> None:
        """Note the answer to one request."""
        why = verdict.why
        key = endpoint, RESULTS[why]
        self.requests[key] = self.requests.get(key, 0) + 1
        self.seconds.add(nanos / 1e9)
        notes = verdict.notes
        if notes is NO_NOTES:
            for entry, decision in verdict.answers:
                self.of(entry.labels[0].rule.name).count(decision)
            if not why:
                return
        else:
            for entry, decision in verdict.answers:
                self.count_unless(entry, decision, "graced", passed=bool(notes.graced))
            for entry, decision in notes.unenforced:
                self.count_unless(entry, decision, "shadow_refused", passed=True)
        if notes.refuser is not None and why in ("blocked", "forbidden"):
            self.bump(notes.refuser.name, why)
        if why == "store":
            self.store_errors += 1
        if why:
            subject = program.identity.addresses.find(verdict.request).subject
            self.refused.add(anonymous(subject, program.settings.secret))

    def count_unless(self, entry: TierLimit, decision: Decision, result: str, *, passed: bool) -> None:
        """Note one answer; a refusal that was ``passed`` over counts as ``result``."""
        own = self.of(entry.labels[0].rule.name)
        if passed and not decision.allowed:
            own.let_pass(decision, result)
        else:
            own.count(decision)

    def bump(self, rule: str, result: str, by: int = 1) -> None:
        own = self.of(rule)
        if result == "allowed":
            own.allowed += by
        elif result == "refused":
            own.refused += by
        else:
            own.others[result] = own.others.get(result, 0) + by

    def minute(self) -> None:
        """Begin a new minute where one is over."""
        if monotonic() - self.began_at > MINUTE:
            self.began_at, self.refused = monotonic(), TopSources()
            self.forget_headroom()

    def forget_headroom(self) -> None:
        for own in self.rules.values():
            own.least = NOTHING_YET

    @property
    def headroom(self) -> dict[str, float]:
        """The least that was left of any subject in this minute, by rule."""
        return {rule: own.least for rule, own in self.rules.items() if own.least < NOTHING_YET}

    def written(self) -> dict[str, Any]:
        """The tally as JSON can hold it."""
        return {
            "requests": [[*key, count] for key, count in self.requests.items()],
            "rules": {
                rule: [own.results(), own.spread.counts, own.spread.total, own.least]
                for rule, own in self.rules.items()
            },
            "doors": dict(self.doors),
            "turned_away": dict(self.turned_away),
            "seconds": [self.seconds.counts, self.seconds.total],
            "refused": dict(self.refused.counts),
            "refused_total": self.refused.total,
            "store_errors": self.store_errors,
            "reloads": dict(self.reloads),
        }

    def add(self, found: dict[str, Any]) -> None:
        """Add what another worker wrote down."""
        for endpoint, result, count in found["requests"]:
            self.requests[endpoint, result] = self.requests.get((endpoint, result), 0) + count
        for rule, (results, numbers, total, least) in found["rules"].items():
            own = self.of(rule)
            for result, count in results.items():
                self.bump(rule, result, count)
            own.spread.join(numbers, total)
            own.least = min(own.least, least)
        for counts, name in (
            (self.doors, "doors"), (self.turned_away, "turned_away"), (self.reloads, "reloads"),
            (self.refused.counts, "refused"),
        ):  # fmt: skip
            for key, count in found[name].items():
                counts[key] = counts.get(key, 0) + count
        self.seconds.join(*found["seconds"])
        self.refused.total += found["refused_total"]
        self.store_errors += found["store_errors"]

    def by_rule(self) -> dict[str, dict[str, int]]:
        """Results of each rule."""
        return {rule: own.results() for rule, own in self.rules.items()}

    def most_refused(self, most: int = 8) -> list[tuple[str, int]]:
        return sorted(self.refused.counts.items(), key=lambda one: -one[1])[:most]


def joined(own: Counters, others: Iterable[dict[str, Any]]) -> Counters:
    """One tally of all workers."""
    found = Counters()
    found.add(own.written())
    for other in others:
        found.add(other)
    return found

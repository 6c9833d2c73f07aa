"""What was decided, counted: for metrics and the dashboard.

Names are those of ``sinks/prometheus.py``.  A tally is plain numbers, so that those of several workers can be written
down, read and added; it holds no key and no address: whom we refuse most is known by a keyed digest only.
"""

from __future__ import annotations

from bisect import bisect_left
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.events import RESULTS, Sources, anonymous

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.model import Decision
    from ratekeeper.program import Program
    from ratekeeper.verdict import PolicyVerdict

SHARES = (0.1, 0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
MINUTE = 60.0
OTHERS = "other"  # stands for names beyond the bound
MOST_NAMES = 1024


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


class Tally:
    """What one worker has decided since it began."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by endpoint and result
        self.decisions: dict[tuple[str, str], int] = {}  # by rule and result
        self.doors: dict[str, int] = {}  # calls by door
        self.utilisation: dict[str, Spread] = {}
        self.seconds = Spread(SECONDS)
        self.headroom: dict[str, float] = {}  # the least of this minute
        self.refused = Sources()  # who is refused most in this minute, and
        self.sources = Sources()  # who asks most
        self.store_errors = 0
        self.reloads: dict[str, int] = {}
        self.began_at = monotonic()

    def count(self, rule: str, decision: Decision) -> None:
        """Note the answer of one limit."""
        decisions = self.decisions
        key = rule, "allowed" if decision.allowed else "refused"
        try:
            decisions[key] += 1
        except KeyError:
            if len(decisions) >= MOST_NAMES:
                rule = OTHERS
                key = OTHERS, key[1]
            decisions[key] = decisions.get(key, 0) + 1
        left = decision.remaining / decision.limit
        spread = self.utilisation.get(rule)
        if spread is None:
            spread = self.utilisation[rule] = Spread(SHARES)
        spread.add(1 - left)
        if left < self.headroom.get(rule, 2.0):
            self.headroom[rule] = left

    def note(self, program: Program, verdict: PolicyVerdict, endpoint: str, nanos: int) -> None:
        """Note the answer to one request."""
        why = verdict.why
        key = endpoint, RESULTS[why]
        self.requests[key] = self.requests.get(key, 0) + 1
        self.seconds.add(nanos / 1e9)
        for entry, decision in verdict.answers:
            self.count(entry.labels[0].rule.name, decision)
        notes = verdict.notes
        for name in notes.shadow:
            self.bump(name, "shadow_refused")
        for name in notes.graced:
            self.bump(name, "graced")
        if notes.refuser is not None and why in ("blocked", "forbidden"):
            self.bump(notes.refuser.name, why)
        if why == "store":
            self.store_errors += 1
        if why:
            subject = program.identity.addresses.find(verdict.request).subject
            self.refused.add(anonymous(subject, program.settings.secret))

    def bump(self, rule: str, result: str, by: int = 1) -> None:
        key = rule, result
        self.decisions[key] = self.decisions.get(key, 0) + by

    def minute(self) -> None:
        """Begin a new minute where one is over."""
        if monotonic() - self.began_at > MINUTE:
            self.began_at, self.headroom, self.refused, self.sources = monotonic(), {}, Sources(), Sources()

    def written(self) -> dict[str, Any]:
        """The tally as JSON can hold it."""
        return {
            "requests": [[*key, count] for key, count in self.requests.items()],
            "decisions": [[*key, count] for key, count in self.decisions.items()],
            "doors": dict(self.doors),
            "utilisation": {rule: [spread.counts, spread.total] for rule, spread in self.utilisation.items()},
            "seconds": [self.seconds.counts, self.seconds.total],
            "headroom": dict(self.headroom),
            "refused": dict(self.refused.counts),
            "refused_total": self.refused.total,
            "store_errors": self.store_errors,
            "reloads": dict(self.reloads),
        }

    def add(self, found: dict[str, Any]) -> None:
        """Add what another worker wrote down."""
        for own, name in ((self.requests, "requests"), (self.decisions, "decisions")):
            for first, second, count in found[name]:
                own[first, second] = own.get((first, second), 0) + count
        for counts, name in ((self.doors, "doors"), (self.reloads, "reloads"), (self.refused.counts, "refused")):
            for key, count in found[name].items():
                counts[key] = counts.get(key, 0) + count
        for rule, (numbers, total) in found["utilisation"].items():
            self.utilisation.setdefault(rule, Spread(SHARES)).join(numbers, total)
        self.seconds.join(*found["seconds"])
        for rule, left in found["headroom"].items():
            self.headroom[rule] = min(left, self.headroom.get(rule, 2.0))
        self.refused.total += found["refused_total"]
        self.store_errors += found["store_errors"]

    def by_rule(self) -> dict[str, dict[str, int]]:
        """Results of each rule."""
        found: dict[str, dict[str, int]] = {}
        for (rule, result), count in self.decisions.items():
            found.setdefault(rule, {})[result] = count
        return found

    def most_refused(self, most: int = 8) -> list[tuple[str, int]]:
        return sorted(self.refused.counts.items(), key=lambda one: -one[1])[:most]


def joined(own: Tally, others: Iterable[dict[str, Any]]) -> Tally:
    """One tally of all workers."""
    found = Tally()
    found.add(own.written())
    for other in others:
        found.add(other)
    return found

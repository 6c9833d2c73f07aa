"""One event for each verdict, for logs, metrics and traces.

An event names rules, endpoints and results, which the rules file and the application's routes bound.  It never carries
an address, a user or a key: ``client`` is a keyed digest of the address, the same for the same client as long as the
secret stays the same.  A sink is any callable that takes an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from os import urandom
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import LimitLabel
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.decide import CompiledRules
    from ratekeeper.rules.selection import Selection

    Sink = Callable[["Event"], object]

__all__ = ["Event", "LimitResult"]

RANDOM_SECRET = urandom(16)
RESULTS = {"": "allowed", "limit": "refused", "blocked": "blocked", "forbidden": "forbidden",
           "store": "unavailable", "cost": "invalid"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LimitResult:
    """What one limit of a rule decided."""

    rule: str
    algorithm: str
    allowed: bool
    remaining: int
    capacity: int
    fallback: str = ""  # local, allow or deny, if the store was unavailable and its fallback decided

    @property
    def headroom(self) -> float:
        """The share of the limit that is left, from 0 to 1."""
        return self.remaining / self.capacity


@dataclass(frozen=True, slots=True)
class Event:
    """What was decided about one request."""

    result: str  # allowed, refused, blocked, forbidden, unavailable or invalid
    rule: str | None  # the rule that refused, or the one with the least left
    endpoint: str  # the framework's route, else the pattern of the last rule that matched
    method: str
    client: str  # anonymised
    limits: tuple[LimitResult, ...]
    shadow: tuple[str, ...]  # rules in shadow mode that would have refused
    graced: tuple[str, ...]  # rules that would have refused, but for their grace
    retry_after: float | None
    seconds: float  # how long the decision took
    shadow_limits: tuple[LimitResult, ...] = ()  # what the limits of rules in shadow mode decided

    @property
    def allowed(self) -> bool:
        return self.result == "allowed"


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


def event_of(compiled: CompiledRules, selection: Selection, verdict: HttpVerdict, nanos: int) -> Event:
    """The event of ``verdict``, which took ``nanos`` nanoseconds."""
    request = verdict.request
    limits = tuple([limit_result(label, decision, label.capacity) for label, decision in verdict.limits])
    endpoint = request.route
    if endpoint is None:
        patterns = [pattern.text for counter in selection.counters for pattern in counter.rule.patterns]
        endpoint = max(patterns, key=lambda text: text != "/**", default="/**")
    return Event(
        result=RESULTS[verdict.reason],
        rule=verdict.rule,
        endpoint=endpoint,
        method=request.method if request.method in METHODS else "other",
        client=anonymous(compiled.identity.addresses.find(request).subject, compiled.settings.secret),
        limits=limits,
        shadow=verdict.notes.shadow,
        graced=verdict.notes.graced,
        retry_after=verdict.retry_after,
        seconds=nanos / 1e9,
        shadow_limits=tuple(
            [limit_result(entry.labels[0], decision, decision.limit) for entry, decision in verdict.notes.unenforced]
        ),
    )


def limit_result(label: LimitLabel, decision: Decision, capacity: int) -> LimitResult:
    fallback = decision.reason.partition(":")[0]
    return LimitResult(label.rule.name, label.algorithm, decision.allowed, decision.remaining, capacity, fallback)


def results_of(event: Event) -> Iterator[tuple[LimitResult, str]]:
    """Each limit and its result as a label of the metrics; ``graced`` and ``shadow_refused`` let the request pass."""
    for limit in event.limits:
        yield limit, "graced" if limit.rule in event.graced else "allowed" if limit.allowed else "refused"
    for limit in event.shadow_limits:
        yield limit, "allowed" if limit.allowed else "shadow_refused"


def anonymous(subject: str, secret: str | None) -> str:
    """A keyed digest of ``subject``; without the key it cannot be reversed, even by trying every address."""
    key = RANDOM_SECRET if secret is None else blake2b(secret.encode(), digest_size=32).digest()
    return blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=6, key=key).hexdigest()


def anonymous_key(encoded: str | bytes, secret: str | None) -> str:
    """The digest that stands for a key which a caller names, after ``keys.encode``."""
    return anonymous(encoded if isinstance(encoded, str) else encoded.hex(), secret)

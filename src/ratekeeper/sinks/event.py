"""One event for each verdict, for logs, metrics and traces.

An event names rules, endpoints and results, all from sets that the rules file and the application's routes bound; it
never carries an address, a user or a key: ``client`` is a keyed digest of the address, the same for the same client
as long as the secret is.  Sinks are plain callables; those of ``ratekeeper.sinks`` are ready-made.
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

__all__ = ["Event", "Standing"]
RANDOM = urandom(16)
RESULTS = {"": "allowed", "limit": "refused", "blocked": "blocked", "forbidden": "forbidden",
           "store": "unavailable", "cost": "invalid"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standing:
    """How one limit stood in a decision."""

    rule: str
    algorithm: str
    allowed: bool
    remaining: int
    capacity: int
    stood_in: str = ""  # what decided in the place of a store that could not: local, allow or deny

    @property
    def headroom(self) -> float:
        """The share that is left, from 0 to 1."""
        return self.remaining / self.capacity


@dataclass(frozen=True, slots=True)
class Event:
    """What was decided about one request."""

    result: str  # allowed, refused, blocked, forbidden, unavailable or invalid
    rule: str | None  # the one that refused, or is closest to it
    endpoint: str  # the framework's route, else the pattern of the last rule that matched
    method: str
    client: str  # anonymised
    standings: tuple[Standing, ...]
    shadow: tuple[str, ...]  # rules that would have refused, and are not enforced
    graced: tuple[str, ...]  # rules that would have refused, and had grace
    retry_after: float | None
    seconds: float  # how long the decision took
    unenforced: tuple[Standing, ...] = ()  # what rules would have said that are not enforced: a standing for each

    @property
    def allowed(self) -> bool:
        return self.result == "allowed"


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


def event_of(program: CompiledRules, selection: Selection, verdict: HttpVerdict, nanos: int) -> Event:
    request = verdict.request
    standings = tuple([standing_of(label, decision, label.capacity) for label, decision in verdict.limits])
    endpoint = request.route
    if endpoint is None:
        patterns = [pattern.text for counter in selection.counters for pattern in counter.rule.patterns]
        endpoint = max(patterns, key=lambda text: text != "/**", default="/**")
    return Event(
        result=RESULTS[verdict.reason],
        rule=verdict.rule,
        endpoint=endpoint,
        method=request.method if request.method in METHODS else "other",
        client=anonymous(program.identity.addresses.find(request).subject, program.settings.secret),
        standings=standings,
        shadow=verdict.notes.shadow,
        graced=verdict.notes.graced,
        retry_after=verdict.retry_after,
        seconds=nanos / 1e9,
        unenforced=tuple(
            [standing_of(entry.labels[0], decision, decision.limit) for entry, decision in verdict.notes.unenforced]
        ),
    )


def standing_of(label: LimitLabel, decision: Decision, capacity: int) -> Standing:
    stood_in = decision.reason.partition(":")[0]
    return Standing(label.rule.name, label.algorithm, decision.allowed, decision.remaining, capacity, stood_in)


def results_of(event: Event) -> Iterator[tuple[Standing, str]]:
    """What each rule said, in the words of the metrics: graced and shadow_refused passed."""
    for one in event.standings:
        yield one, "graced" if one.rule in event.graced else "allowed" if one.allowed else "refused"
    for one in event.unenforced:
        yield one, "allowed" if one.allowed else "shadow_refused"


def anonymous(subject: str, secret: str | None) -> str:
    """A name for somebody that tells nobody who it is: without the secret not even by trying all addresses."""
    key = RANDOM if secret is None else blake2b(secret.encode(), digest_size=32).digest()
    return blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=6, key=key).hexdigest()

"""One event for each verdict, for logs, metrics and traces.

An event names rules, endpoints and results, which the rules file and the application's routes bound.  It never carries
an address, a user or a key: ``client`` is a keyed digest of the address, the same for the same client as long as the
secret stays the same.  A sink is any callable that takes an event.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from os import urandom
from typing import TYPE_CHECKING, Any

from ratekeeper.http.verdict import NO_NOTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.decision import Decision
    from ratekeeper.http.headers import LimitLabel
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.counter import TierLimit
    from ratekeeper.rules.decide import CompiledRules
    from ratekeeper.rules.selection import Selection

    Sink = Callable[["Event"], object]

__all__ = ["Event", "LimitResult"]

RANDOM_SECRET = urandom(16)
new = object.__new__
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

    def outcomes(self) -> list[tuple[str, str, float, str]]:
        """Of each limit its rule, its result as a label of the metrics, its headroom, and which fallback decided.

        A request passes in spite of ``graced`` and ``shadow_refused``.
        """
        return [(limit.rule, result, limit.headroom, limit.fallback) for limit, result in results_of(self)]

    def plain_admission(self) -> tuple[LimitLabel, Decision] | None:
        """The limit and its decision, if one limit of the store admitted the request and there is no more to tell."""
        return None


METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


class EventOfVerdict(Event):
    """The event of a verdict.  Whatever takes time is worked out when a sink reads it: most sinks read little.

    ``replace`` and ``pickle`` make a plain Event of it.
    """

    __slots__ = ("_answers", "_compiled", "_nanos", "_reason", "_selection", "_verdict")
    _answers: tuple[tuple[TierLimit, Decision], ...]
    _compiled: CompiledRules
    _nanos: int
    _reason: str
    _selection: Selection
    _verdict: HttpVerdict
    # Made for each request, so its slots are set as on any object; its public attributes are read-only all the same.
    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__

    def __new__(cls, **values: Any) -> Event:  # type: ignore[misc]
        return Event(**values)  # what dataclasses.replace calls

    @property
    def _decided(self) -> HttpVerdict:
        """The verdict as it was when it was reported: what a request took may be given back since."""
        verdict = self._verdict
        if verdict.answers is self._answers:
            return verdict
        return type(verdict)(verdict.request, verdict.response, self._answers, self._reason, verdict.notes)

    @property
    def result(self) -> str:
        return RESULTS[self._reason]

    @property
    def allowed(self) -> bool:
        return not self._reason

    @property
    def seconds(self) -> float:
        return self._nanos / 1e9

    @property
    def rule(self) -> str | None:
        return self._decided.rule

    @property
    def endpoint(self) -> str:
        route = self._verdict.request.route
        return self._selection.endpoint if route is None else route

    @property
    def method(self) -> str:
        method = self._verdict.request.method
        return method if method in METHODS else "other"

    @property
    def client(self) -> str:
        compiled = self._compiled
        return anonymous(compiled.identity.addresses.find(self._verdict.request).subject, compiled.settings.secret)

    @property
    def limits(self) -> tuple[LimitResult, ...]:
        return tuple([limit_result(label, decision, label.capacity) for label, decision in self._decided.limits])

    @property
    def shadow(self) -> tuple[str, ...]:
        return self._verdict.notes.shadow

    @property
    def graced(self) -> tuple[str, ...]:
        return self._verdict.notes.graced

    @property
    def retry_after(self) -> float | None:
        return self._decided.retry_after

    @property
    def shadow_limits(self) -> tuple[LimitResult, ...]:
        unenforced = self._verdict.notes.unenforced
        return tuple([limit_result(entry.labels[0], decision, decision.limit) for entry, decision in unenforced])

    def plain_admission(self) -> tuple[LimitLabel, Decision] | None:
        if self._reason or self._verdict.notes is not NO_NOTES or len(self._answers) != 1:
            return None
        entry, decision = self._answers[0]
        return None if entry.plain is None or decision.reason else (entry.plain, decision)

    def __reduce__(self) -> tuple[type[Event], tuple[Any, ...]]:
        return Event, values_of(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and values_of(self) == values_of(other)

    __hash__ = Event.__hash__


def values_of(event: Event) -> tuple[Any, ...]:
    return tuple([getattr(event, field.name) for field in fields(Event)])


def event_of(compiled: CompiledRules, selection: Selection, verdict: HttpVerdict, nanos: int) -> Event:
    """The event of ``verdict``, which took ``nanos`` nanoseconds."""
    event = new(EventOfVerdict)
    event._compiled = compiled
    event._selection = selection
    event._verdict = verdict
    event._answers = verdict.answers
    event._reason = verdict.reason
    event._nanos = nanos
    return event


def limit_result(label: LimitLabel, decision: Decision, capacity: int) -> LimitResult:
    fallback = decision.reason.partition(":")[0]
    return LimitResult(label.rule.name, label.algorithm, decision.allowed, decision.remaining, capacity, fallback)


def results_of(event: Event) -> Iterator[tuple[LimitResult, str]]:
    """Each limit and its result as a label of the metrics; ``graced`` and ``shadow_refused`` let the request pass."""
    for limit in event.limits:
        yield limit, "graced" if limit.rule in event.graced else "allowed" if limit.allowed else "refused"
    for limit in event.shadow_limits:
        yield limit, "allowed" if limit.allowed else "shadow_refused"


@lru_cache(maxsize=16)
def key_of_secret(secret: str) -> bytes:
    return blake2b(secret.encode(), digest_size=32).digest()


def anonymous(subject: str, secret: str | None) -> str:
    """A keyed digest of ``subject``; without the key it cannot be reversed, even by trying every address."""
    key = RANDOM_SECRET if secret is None else key_of_secret(secret)
    return blake2b(subject.encode("utf-8", "surrogatepass"), digest_size=6, key=key).hexdigest()


def anonymous_key(encoded: str | bytes, secret: str | None) -> str:
    """The digest that stands for a key which a caller names, after ``keys.encode``."""
    return anonymous(encoded if isinstance(encoded, str) else encoded.hex(), secret)

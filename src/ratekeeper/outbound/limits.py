"""The limits of a request: by host, by the start of its path, or as a function of the request says.

    "10/second"                                     each key by itself; by default the key is the host
    {"api.example.com": "10/second",                this host,
     "api.example.com/search": "1/second"}          and in addition every path on it that starts with /search
    lambda request: "10/second" or None             anything

A request takes all limits that match, or none of them.

A text that names neither a burst nor an algorithm is what a provider enforces, in a way that is not known here.  It is
counted over a little more than its period, the margin, so that no window of the provider's sees more than the limit:
see docs/explain/outbound-limits.md.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.limit import LONGEST_PERIOD, Limit, LimitSet, parse_limits
from ratekeeper.outbound.learned import parts_of
from ratekeeper.units import SECOND, parse_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.outbound.learned import Part

    Limits = str | Limit | LimitSet | Iterable[str | Limit]

AHEAD = 150_000  # microseconds of turns that a pace gives out in advance
LEAST_AHEAD = 2
MOST_PLANS = 1_024  # in the cache of each client


SLICES = 60  # of a window that a provider's limit is counted in
MARGINS = 40  # in a period
SHORTEST_MARGIN, LONGEST_MARGIN = 20_000, 2 * SECOND  # microseconds


def margin_of(micros: int, margin: int | None) -> int:
    """The period with its margin: how much longer a call may take to the provider than the quickest one."""
    if margin is None:
        margin = min(LONGEST_MARGIN, max(SHORTEST_MARGIN, micros // MARGINS))
    return min(LONGEST_PERIOD, micros + margin)


def is_plain(text: str) -> bool:
    """Whether a text says only how much in which time, and leaves the rest to us."""
    return text.strip().lower() != "unlimited" and parse_limit(text).keys() <= {"count", "micros", "debt"}


def provider_limit(limits: Limits, margin: int | None = None) -> Limit | LimitSet:
    """Limits that no window of a provider sees exceeded; a Limit, and a text with more words, stay as they are.

    A sliding window of S slices admits its count in any (S - 1) / S of its period: that part is the provider's period
    and the margin.
    """
    if isinstance(limits, str):
        if not is_plain(limits):
            return parse_limits(limits)
        limit = Limit.parse(limits)
        micros = -(-margin_of(limit.micros, margin) * SLICES // (SLICES - 1))
        period = min(LONGEST_PERIOD, micros) / SECOND
        debt = limit.count if limit.debt is None else limit.debt
        return Limit(limit.count, period, algorithm="sliding_window", slices=SLICES, debt=debt)
    if isinstance(limits, (Limit, LimitSet)) or not hasattr(limits, "__iter__") or isinstance(limits, (bytes, dict)):
        return parse_limits(limits)
    return parse_limits([part for limit in limits for part in provider_limit(limit, margin).parts])


def paced_limit(limits: Limits, ahead: int | None = None, margin: int | None = None) -> Limit | LimitSet:
    """Limits for pacing: a text that names no algorithm becomes a leaky bucket, which spaces calls evenly.

    Its queue has room for the calls of a seventh of a second, or for ``ahead`` of them.  With less room, a caller that
    wakes up late wastes turns; with more, a call of high priority finds every place taken.  Of several limits, the one
    with the shortest period spaces the calls, and the others are quotas.
    """
    if isinstance(limits, str):
        return parse_limits(evenly_spaced(limits, ahead, margin))
    if isinstance(limits, (Limit, LimitSet)):
        return limits
    if not isinstance(limits, (list, tuple, set, frozenset)) and not hasattr(limits, "__next__"):
        return parse_limits(limits)  # raises, with what it expected
    parsed = [(limit, Limit.parse(limit)) for limit in limits]
    shortest = min([limit.micros for _, limit in parsed], default=0)
    return parse_limits(
        [
            evenly_spaced(text, ahead, margin)
            if isinstance(text, str) and limit.micros == shortest
            else provider_limit(text, margin).parts[0]
            for text, limit in parsed
        ]
    )


def evenly_spaced(text: str, ahead: int | None, margin: int | None) -> str | Limit:
    if not is_plain(text):
        return text
    limit = Limit.parse(text)
    places = ahead or max(LEAST_AHEAD, limit.count * AHEAD // limit.micros)
    period = margin_of(limit.micros, margin) / SECOND
    return Limit(limit.count, period, burst=places, algorithm="leaky_bucket", debt=limit.debt)


def expect_rate(
    place: str, limit: Limit | LimitSet, advice: str = "Use Limiter.limit or Limiter.reserve."
) -> Limit | LimitSet:
    """The limit, unless it is one of concurrency: nothing would release the lease."""
    if limit.is_leased:
        raise InvalidInput(f"{place}: expected a rate, got '{limit}', which is held and given back. {advice}")
    return limit


CONCURRENT = "Pass concurrent= to a transport of httpx, or hold Limiter.reserve around the call."


class PacedPlan:
    """The checks of a request, the key of its queue, and the longest delay that a leaky bucket may give it."""

    __slots__ = ("_parts", "checks", "longest_delay", "queue_key")

    def __init__(self, checks: Plan) -> None:
        self.checks = checks
        self._parts: list[Part] | None = None
        self.queue_key = tuple([(check.space, check.key) for check in checks])
        self.longest_delay = max([longest_delay(check.limit) for check in checks], default=0)

    @property
    def parts(self) -> list[Part]:
        """Every limit of the checks, as something that the server may speak about."""
        if self._parts is None:
            self._parts = parts_of(self.checks, ["requests"] * len(self.checks))
        return self._parts


def longest_delay(limit: Limit | LimitSet) -> int:
    """Microseconds that an admitted call of cost 1 waits for its turn at most."""
    return max([-(-(part.full - part.unit) // part.drain) for part in limit.parts if part.is_queue], default=0)


NO_LIMIT = PacedPlan(())


class LimitRoutes:
    """From a request's key, host and path to its plan."""

    def __init__(
        self,
        limits: Limits | Mapping[str, Limits] | Callable[[Any], Limits | None] | None,
        space: str,
        margin: int | None = None,
    ) -> None:
        self.space = space
        self.margin = margin
        self.for_all: Limit | LimitSet | None = None
        self.plans: dict[str | bytes, PacedPlan] = {}  # of the limit for all, by key
        self.by_route: list[tuple[str, str, Limit | LimitSet]] = []
        self.choose: Callable[[Any], Limits | None] | None = None
        self.chosen: dict[object, Limit | LimitSet] = {}
        if limits is None:
            return
        if hasattr(limits, "items"):
            hosts = [route.partition("/")[0].lower() for route, _ in limits.items()]
            for route, limit in limits.items():
                host, slash, path = route.partition("/")
                if not host:
                    raise InvalidInput(f"limit: expected a host, or a host and a path, got {shown(route)}.")
                # Two leaky buckets would give one call two different turns in advance, so here none gives any.
                ahead = 1 if hosts.count(host.lower()) > 1 else None
                rate = expect_rate("limit", paced_limit(limit, ahead, margin), CONCURRENT)
                self.by_route.append((host.lower(), slash + path, rate))
        elif callable(limits):
            self.choose = limits
        else:
            self.for_all = expect_rate("limit", paced_limit(limits, margin=margin), CONCURRENT)

    def plan(self, request: Any, key: str | bytes, host: str, path: str) -> PacedPlan:
        """All checks of this request; ``key`` is encoded."""
        if self.for_all is not None:
            plan = self.plans.get(key)
            if plan is None:
                if len(self.plans) >= MOST_PLANS:
                    self.plans.clear()
                plan = self.plans[key] = PacedPlan((Check(self.space, key, self.for_all, 1),))
            return plan
        if self.choose is not None:
            limits = self.choose(request)
            return NO_LIMIT if limits is None else PacedPlan((Check(self.space, key, self.parsed(limits), 1),))
        checks = [
            Check(f"{self.space} {place}{start}", key, limit, 1)
            for place, start, limit in self.by_route
            if host == place and (not start or path == start or path.startswith(start.rstrip("/") + "/"))
        ]
        return PacedPlan(tuple(checks)) if checks else NO_LIMIT

    def parsed(self, limits: Limits) -> Limit | LimitSet:
        """What a function chose, parsed; texts and limits are cached."""
        if not isinstance(limits, (str, Limit)):
            return expect_rate("limit", paced_limit(limits, margin=self.margin), CONCURRENT)
        limit = self.chosen.get(limits)
        if limit is None:
            limit = expect_rate("limit", paced_limit(limits, margin=self.margin), CONCURRENT)
            if len(self.chosen) < MOST_PLANS:
                self.chosen[limits] = limit
        return limit

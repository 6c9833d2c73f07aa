"""Which limits a request pays for: by host, by the beginning of its path, or by whatever a function says.

    "10/second"                                     every key by itself; a key is by default the host
    {"api.example.com": "10/second",                that host,
     "api.example.com/search": "1/second"}          and, beside it, everything on it whose path begins so
    lambda request: "10/second" or None             anything

All that match are taken together, all or nothing.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.keys import encode
from ratekeeper.limit import Limit, LimitSet, parse_limits
from ratekeeper.units import parse_limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.keys import Key

    Limits = str | Limit | LimitSet | Iterable[str | Limit]

AHEAD = 150_000  # microseconds of turns that a pace gives out in advance
LEAST_AHEAD = 2


def paced_limit(limits: Limits, ahead: int | None = None) -> Limit | LimitSet:
    """Limits for pacing: where a text names no algorithm, calls leave one by one, at even distances.

    The places of such a queue are so many as leave within a seventh of a second, or ``ahead``: with fewer a late caller
    wastes turns, with more a high priority finds all places taken.  Of several limits the one with the shortest period
    spaces the calls, and the others are quotas.
    """
    if isinstance(limits, str):
        return parse_limits(spread(limits, ahead))
    if isinstance(limits, (Limit, LimitSet)):
        return limits
    if not isinstance(limits, (list, tuple, set, frozenset)) and not hasattr(limits, "__next__"):
        return parse_limits(limits)  # which says what was expected
    parsed = [(limit, Limit.parse(limit)) for limit in limits]
    shortest = min([limit.micros for _, limit in parsed], default=0)
    return parse_limits(
        [spread(text, ahead) if isinstance(text, str) and limit.micros == shortest else limit for text, limit in parsed]
    )


def spread(text: str, ahead: int | None) -> str | Limit:
    if text.strip().lower() == "unlimited":
        return text
    found = parse_limit(text)
    if "algorithm" in found or "burst" in found or "slices" in found:
        return text
    limit = Limit.parse(text, "leaky_bucket")
    places = ahead or max(LEAST_AHEAD, limit.count * AHEAD // limit.micros)
    return Limit.parse(f"{text} burst {places}", "leaky_bucket")


def expect_rate(place: str, limit: Limit | LimitSet) -> None:
    """Refuse leases, where nobody would give them back."""
    if limit.is_leased:
        raise InvalidInput(
            f"{place}: expected a rate, got '{limit}', which is held and given back. "
            "Use Limiter.limit or Limiter.reserve."
        )


class LimitRoutes:
    """From a request's key, host and path to the checks of its plan."""

    def __init__(
        self, limits: Limits | Mapping[str, Limits] | Callable[[Any], Limits | None] | None, space: str
    ) -> None:
        self.space = space
        self.always: Limit | LimitSet | None = None
        self.places: list[tuple[str, str, Limit | LimitSet]] = []
        self.choose: Callable[[Any], Limits | None] | None = None
        self.chosen: dict[object, Limit | LimitSet] = {}
        if limits is None:
            return
        if hasattr(limits, "items"):
            hosts = [place.partition("/")[0].lower() for place, _ in limits.items()]
            for place, limit in limits.items():
                host, slash, path = place.partition("/")
                if not host:
                    raise InvalidInput(f"limit: expected a host, or a host and a path, got {shown(place)}.")
                # Turns given in advance by two limits would differ: then nobody gets one before it has come.
                ahead = 1 if hosts.count(host.lower()) > 1 else None
                self.places.append((host.lower(), slash + path, paced_limit(limit, ahead)))
        elif callable(limits):
            self.choose = limits
        else:
            self.always = paced_limit(limits)

    def plan(self, request: Any, key: Key, host: str, path: str) -> Plan:
        """All that this request has to wait for."""
        if self.always is not None:
            return (Check(self.space, encode(key), self.always, 1),)
        if self.choose is not None:
            limits = self.choose(request)
            if limits is None:
                return ()
            known = limits if isinstance(limits, (str, Limit)) else None
            limit = self.chosen.get(known) if known is not None else None
            if limit is None:
                limit = paced_limit(limits)
                if known is not None and len(self.chosen) < 1024:
                    self.chosen[known] = limit
            return (Check(self.space, encode(key), limit, 1),)
        return tuple(
            [
                Check(f"{self.space} {place}{start}", encode(key), limit, 1)
                for place, start, limit in self.places
                if host == place and (not start or path == start or path.startswith(start.rstrip("/") + "/"))
            ]
        )

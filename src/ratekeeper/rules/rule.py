"""A rule as a value: whom it matches, by what it counts, its limits, its mode.  ``config.py`` makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.identity.address import Networks
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.rules.match import Pattern

ANY_TIER = ""
THIRTY_SECONDS = 30_000_000


@dataclass(frozen=True, slots=True)
class Penalty:
    """Who is refused ``after`` times within ``within`` is refused altogether for ``block`` (microseconds)."""

    after: int
    within: int
    block: int


@dataclass(frozen=True, slots=True)
class Exempt:
    """Whom a rule leaves alone."""

    networks: Networks
    users: frozenset[str] = frozenset()
    tiers: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.networks or self.users or self.tiers)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request takes: a number, or where to find it."""

    constant: int = 1
    source: str = ""  # "body", "header", "function"; empty: the constant
    name: str = ""
    function: Callable[[Request], Any] | None = None
    per: int = 1
    most: int | None = None
    missing: int = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy."""

    name: str
    patterns: tuple[Pattern, ...]
    by: tuple[str | Callable[[Request], Any], ...]
    limits: Mapping[str, Limit | LimitSet]  # by tier, or one for ANY_TIER; empty: the rule limits nothing
    tier_default: str = ANY_TIER
    cost: Cost = field(default_factory=Cost)
    counts: str = "requests"
    scope: str = "fleet"
    mode: str = "enforce"
    enforce_percent: float = 100
    warn_at: float | None = None
    grace: int = 0
    penalty: Penalty | None = None
    allow_from: Networks | None = None
    exempt: Exempt | None = None
    on_store_error: str = "local"
    max_delay: int = THIRTY_SECONDS
    message: str | None = None
    headers: bool = True

    @property
    def by_tier(self) -> bool:
        return ANY_TIER not in self.limits and bool(self.limits)

    def limit_for(self, tier: str) -> Limit | LimitSet:
        """The limit of a tier; of one that the rule does not know, that of the default tier."""
        return self.limits.get(tier) or self.limits[self.tier_default]

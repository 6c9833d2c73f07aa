"""A rule as a value: what it matches, by what it counts, its limits, its mode.  ``parse_rule.py`` makes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.identity.address import Networks
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.rules.computed import LimitFunction
    from ratekeeper.rules.condition import Condition
    from ratekeeper.rules.match import Pattern

ANY_TIER = ""
THIRTY_SECONDS = 30_000_000


@dataclass(frozen=True, slots=True)
class Penalty:
    """After ``after`` refusals within ``within``, block the client for ``block``; both in microseconds."""

    after: int
    within: int
    block: int


@dataclass(frozen=True, slots=True)
class Exempt:
    """Clients that are exempt from a rule."""

    networks: Networks
    users: frozenset[str] = frozenset()
    tiers: frozenset[str] = frozenset()
    paths: tuple[Pattern, ...] = ()  # of requests, whoever sends them; found together with the rules
    functions: tuple[Callable[[Request], Any], ...] = ()

    def __bool__(self) -> bool:
        """Whether the client makes a difference."""
        return bool(self.networks or self.users or self.tiers or self.functions)


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one request: a number, or where the request states it."""

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
    limits: Mapping[str, Limit | LimitSet]  # by tier, or one for ANY_TIER; empty: computed, or the rule limits nothing
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
    space: str = ""  # the name of its counters; empty: that of the rule
    exclusions: tuple[Pattern, ...] = ()
    is_default: bool = False
    limit_function: LimitFunction | None = None
    count_when: Condition | None = None  # which responses count; None: every request counts

    @property
    def has_limit(self) -> bool:
        return bool(self.limits) or self.limit_function is not None

    @property
    def limit_texts(self) -> dict[str, str]:
        """The limit of each tier, or of ANY_TIER, as a reader writes it."""
        if self.limit_function is not None:
            return {ANY_TIER: str(self.limit_function)}
        return {tier: str(limit) for tier, limit in self.limits.items()}

    @property
    def by_tier(self) -> bool:
        return ANY_TIER not in self.limits and bool(self.limits)

    @property
    def replaces_defaults(self) -> bool:
        """Whether requests that match by their path do not meet default rules: the rule limits all of them itself."""
        return self.mode == "enforce" and self.enforce_percent >= 100 and self.has_limit and not self.is_default

"""The counters that a request meets, and their checks prepared as one plan.  No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.rules.counter import RuleCounter, TierLimit
from ratekeeper.rules.rule import ANY_TIER

if TYPE_CHECKING:
    from ratekeeper.stores.protocol import PreparedPlan, Store


class PreparedChecks:
    """The limits that a request meets, as one prepared plan: its ``check`` wants a key for each, made by ``keys``."""

    __slots__ = ("check", "entries", "keys", "plan")

    def __init__(self, entries: tuple[TierLimit, ...], store: Store | None) -> None:
        self.entries = entries
        self.keys = tuple([entry.counter.key for entry in entries])
        rows = tuple(
            [
                (entry.counter.name, entry.limit, entry.counter.constant, entry.counter.rule.on_store_error)
                for entry in entries
            ]
        )
        self.plan: PreparedPlan | None = store.prepare(rows) if rows and store is not None else None
        self.check = self.plan.check if self.plan is not None else None


class Selection:
    """The counters that a request meets."""

    __slots__ = ("by_tier", "counters", "is_simple", "only", "ready", "store")

    def __init__(self, counters: tuple[RuleCounter, ...]) -> None:
        self.counters = counters
        self.is_simple = all(counter.simple for counter in counters) and len({id(own.store) for own in counters}) < 2
        self.store = counters[0].store if counters else None
        self.by_tier: dict[str, PreparedChecks] = {}
        self.ready: PreparedChecks | None = None  # where the tier makes no difference
        if self.is_simple:
            for tier in {ANY_TIER}.union(*[counter.entries for counter in counters if counter.by_tier]):
                self.by_tier[tier] = self.ready_for(tier)
            self.ready = self.by_tier[ANY_TIER] if len(self.by_tier) == 1 else None
        alone = len(counters) == 1 and self.ready is not None
        self.only = counters[0] if alone and counters[0].default.check is not None else None  # type: ignore[union-attr]

    def ready_for(self, tier: str) -> PreparedChecks:
        entries = [counter.entries.get(tier, counter.default) for counter in self.counters]
        return PreparedChecks(tuple([own for own in entries if own is not None and not own.is_unlimited]), self.store)

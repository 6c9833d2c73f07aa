"""Strategies, in the words of ``limits``: ``hit``, ``test``, ``get_window_stats``, ``clear``, decided by our rules."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from ratekeeper.compat.limits.items import WindowStats
from ratekeeper.compat.limits.storage import Storage, to_limit

if TYPE_CHECKING:
    from ratekeeper.compat.limits.items import RateLimitItem
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit

__all__ = [
    "FixedWindowRateLimiter",
    "MovingWindowRateLimiter",
    "RateLimiter",
    "STRATEGIES",
    "SlidingWindowCounterRateLimiter",
]


@cache
def limit_of(amount: int, seconds: int, algorithm: str) -> Limit:
    return to_limit(amount, seconds, algorithm)


class RateLimiter:
    """Counts hits on a storage."""

    algorithm = ""

    def __init__(self, storage: Storage) -> None:
        if not isinstance(storage, Storage):
            raise TypeError(f"storage: expected one of ratekeeper.compat.limits.storage, got {type(storage).__name__}.")
        self.storage = storage

    def decision(self, operation: str, item: RateLimitItem, identifiers: tuple[str, ...], cost: int = 1) -> Decision:
        limit = limit_of(item.amount, item.get_expiry(), self.algorithm)
        decision: Decision = self.storage.ask(operation, item.key_for(*identifiers), limit, cost)
        return decision

    def hit(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Take ``cost`` of ``item`` for ``identifiers`` if it fits.  A refusal takes nothing."""
        if not item.amount:
            return False
        return not cost or bool(self.decision("check", item, identifiers, cost))

    def test(self, item: RateLimitItem, *identifiers: str, cost: int = 1) -> bool:
        """Say what ``hit`` would, and take nothing."""
        if not item.amount:
            return False
        return not cost or bool(self.decision("peek", item, identifiers, cost))

    def get_window_stats(self, item: RateLimitItem, *identifiers: str) -> WindowStats:
        """How much of ``item`` is left for ``identifiers``, and when more becomes available."""
        now = time.time()
        if not item.amount:
            return WindowStats(now + item.get_expiry(), 0)
        decision = self.decision("peek", item, identifiers)
        return WindowStats(self.reset_time(item, identifiers, decision, now), decision.remaining)

    def reset_time(self, item: RateLimitItem, identifiers: tuple[str, ...], decision: Decision, now: float) -> float:
        """When one more unit becomes available; now if nothing was used."""
        if decision.remaining >= item.amount:
            return now
        refused = self.decision("peek", item, identifiers, decision.remaining + 1)
        return now + (refused.retry_after or 0.0)

    def clear(self, item: RateLimitItem, *identifiers: str) -> None:
        """Forget what ``identifiers`` have used of ``item``."""
        if item.amount:
            limit = limit_of(item.amount, item.get_expiry(), self.algorithm)
            self.storage.ask("reset", item.key_for(*identifiers), limit)


class FixedWindowRateLimiter(RateLimiter):
    """A window that begins with its first hit: our ``first-use`` window."""

    algorithm = "first_use_window"

    def reset_time(self, item: RateLimitItem, identifiers: tuple[str, ...], decision: Decision, now: float) -> float:
        """When the window ends; now if there is none."""
        return now + decision.reset_after


class MovingWindowRateLimiter(RateLimiter):
    """Exact over every interval: our ``sliding_log``."""

    algorithm = "sliding_log"

    def reset_time(self, item: RateLimitItem, identifiers: tuple[str, ...], decision: Decision, now: float) -> float:
        """When the oldest hit leaves the window; the end of a window from now if there is none."""
        if decision.remaining >= item.amount:
            return now + item.get_expiry()
        return super().reset_time(item, identifiers, decision, now)


class SlidingWindowCounterRateLimiter(RateLimiter):
    """Two counters, weighted: our ``sliding_window``."""

    algorithm = "sliding_window"


STRATEGIES: dict[str, type[RateLimiter]] = {
    "sliding-window-counter": SlidingWindowCounterRateLimiter,
    "fixed-window": FixedWindowRateLimiter,
    "moving-window": MovingWindowRateLimiter,
}

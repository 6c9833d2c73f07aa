"""limits: its three strategies, on its memory or Redis storage.

Its documentation has the fixed window count every hit, refused ones too, so it is not asked for free refusals there:
fixed windows start with the first hit.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage, storage_from_string
from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter

from conformance.line_server import serve

STRATEGIES = {
    "first_use_window": FixedWindowRateLimiter,
    "sliding_log": MovingWindowRateLimiter,
    "sliding_window": SlidingWindowCounterRateLimiter,
}


class PeerLimiter:
    def __init__(self, strategy: Any, item: Any, name: str) -> None:
        self.strategy, self.item, self.name = strategy, item, name

    def check(self, key: str, cost: int) -> dict[str, Any]:
        return {"allowed": self.strategy.hit(self.item, self.name, key, cost=cost)}


class Target:
    name = "limits"
    version = version("limits")

    def __init__(self, store: str | None) -> None:
        self.storage = storage_from_string(store) if store else MemoryStorage()
        features = ["cost", "keys", "concurrent"]
        features += ["processes", "expiry"] if store else ["bounded_memory"]
        # Its sliding counter is documented as an approximation with whole numbers: only its bound is judged.
        self.promises = {
            "algorithms": list(STRATEGIES),
            "features": features,
            "units": [1, 60, 3600],
            "has_burst": False,
            "store": "redis" if store else "memory",
        }

    def open(self, name: str, limits: list[dict[str, Any]]) -> PeerLimiter:
        limit = limits[0]
        item = RateLimitItemPerSecond(limit["count"], limit["period"] // 1_000_000)
        return PeerLimiter(STRATEGIES[limit["algorithm"]](self.storage), item, name)


if __name__ == "__main__":
    sys.exit(serve(Target))

"""throttled-py: its five algorithms, on its default memory store or on Redis, with its result object."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from typing import Any

import throttled

from conformance.line_server import serve

USING = {
    "fixed_window": "fixed_window",
    "sliding_window": "sliding_window",
    "token_bucket": "token_bucket",
    "leaky_bucket": "leaking_bucket",
    "gcra": "gcra",
}


class PeerLimiter:
    def __init__(self, throttle: Any, name: str) -> None:
        self.throttle, self.name = throttle, name

    def check(self, key: str, cost: int) -> dict[str, Any]:
        result = self.throttle.limit(f"{self.name}:{key}", cost)
        answer = {"allowed": not result.limited, "remaining": result.state.remaining}
        if result.limited:
            answer["retry_after"] = math.ceil(result.state.retry_after * 1_000_000)
        return answer


class Target:
    name = "throttled-py"
    version = throttled.__version__

    def __init__(self, store: str | None) -> None:
        self.store = throttled.RedisStore(server=f"{store}/0") if store else throttled.MemoryStore()
        features = ["cost", "remaining", "retry_after", "keys", "concurrent"]
        features += ["processes", "expiry"] if store else ["bounded_memory"]
        self.promises = {
            "algorithms": list(USING),
            "features": features,
            "resolution": 1_000_000,  # a fixed window tells whole seconds
            "units": [1, 60, 3600],
            "store": "redis" if store else "memory",
        }

    def open(self, name: str, limits: list[dict[str, Any]]) -> PeerLimiter:
        limit = limits[0]
        duration = timedelta(microseconds=limit["period"])
        quota = throttled.per_duration(duration, limit["count"], burst=limit["burst"])
        using = USING[limit["algorithm"]]
        return PeerLimiter(throttled.Throttled(using=using, quota=quota, store=self.store), name)


if __name__ == "__main__":
    sys.exit(serve(Target))

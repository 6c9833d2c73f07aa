"""pyrate-limiter: its sliding log, one bucket a key as its documentation has it, in memory on a clock or on Redis.

A call that may not wait is refused if another thread holds the limiter's lock.  Its authors intend that, so it is not
asked to be exact under threads.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from pyrate_limiter import InMemoryBucket, Limiter, Rate, RedisBucket
from pyrate_limiter.clocks import AbstractClock

from conformance.line_server import serve


class SetClock(AbstractClock):
    """Its clocks count milliseconds."""

    def __init__(self) -> None:
        self.micros = 0

    def now(self) -> int:
        return self.micros // 1000


class SetBucket(InMemoryBucket):
    clock: SetClock

    def now(self) -> int:
        return self.clock.now()


class PeerLimiter:
    """One limiter a key: the name that try_acquire takes does not tell keys apart."""

    def __init__(self, make: Any) -> None:
        self.make = make
        self.limiters: dict[str, Any] = {}

    def check(self, key: str, cost: int) -> dict[str, Any]:
        limiter = self.limiters.get(key)
        if limiter is None:
            limiter = self.limiters.setdefault(key, self.make(key))
        return {"allowed": bool(limiter.try_acquire(key, cost, blocking=False))}


class Target:
    name = "pyrate-limiter"
    version = version("pyrate-limiter")

    def __init__(self, store: str | None) -> None:
        self.store, self.clock = store, SetClock()
        features = ["cost", "refusal_free"]
        if store:
            import redis

            self.redis = redis.Redis.from_url(store)
            features += ["processes", "expiry"]
        self.promises = {
            "algorithms": ["sliding_log"],
            "features": features,
            "clock": "real" if store else "virtual",
            "precision": 1000,
            "has_burst": False,
            "store": "redis" if store else "memory",
            "note": "a call that may not wait is refused while another thread holds the lock, by intention",
        }

    def set_time(self, micros: int) -> None:
        self.clock.micros = micros

    def open(self, name: str, limits: list[dict[str, Any]]) -> PeerLimiter:
        rate = Rate(limits[0]["count"], limits[0]["period"] // 1000)

        def make(key: str) -> Limiter:
            if self.store:
                return Limiter(RedisBucket.init([rate], self.redis, f"{name}:{key}"))
            bucket = SetBucket([rate])
            bucket.clock = self.clock
            return Limiter(bucket)

        return PeerLimiter(make)


if __name__ == "__main__":
    sys.exit(serve(Target))

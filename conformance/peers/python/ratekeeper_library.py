"""ratekeeper's own library: in memory, in shared memory, or on Redis.  The only file that imports it."""

from __future__ import annotations

import os
import sys
from typing import Any

from conformance.line_server import serve
from ratekeeper import Limit, Limiter
from ratekeeper.stores import open_store
from ratekeeper.testing import FakeClock
from ratekeeper.version import __version__

ALGORITHMS = [
    "fixed_window",
    "first_use_window",
    "sliding_log",
    "sliding_window",
    "token_bucket",
    "leaky_bucket",
    "gcra",
]
NEVER = "never"
MICROS = 1_000_000


def to_limit(limit: dict[str, Any]) -> Limit:
    if limit["algorithm"] == "first_use_window":
        return Limit(limit["count"], limit["period"] / MICROS, algorithm="fixed_window", window="first-use")
    burst = {"burst": limit["burst"]} if limit["algorithm"] in ("token_bucket", "leaky_bucket", "gcra") else {}
    return Limit(limit["count"], limit["period"] / MICROS, algorithm=limit["algorithm"], **burst)


class LibraryLimiter:
    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter

    def check(self, key: str, cost: int) -> dict[str, Any]:
        decision = self.limiter.check(key, cost)
        retry = decision.retry_after
        return {
            "allowed": decision.allowed,
            "remaining": decision.remaining,
            "retry_after": NEVER if retry is None else round(retry * MICROS),
            "reset_after": round(decision.reset_after * MICROS),
        }


class LibraryTarget:
    version = __version__

    def __init__(self, store: str | None) -> None:
        kind, clock = sys.argv[1:3]
        self.name = f"ratekeeper, {kind}"
        self.clock = FakeClock() if clock == "virtual" else None
        features = ["cost", "positive_cost",
                    "remaining", "retry_after", "reset_after", "keys", "several", "refusal_free", "concurrent",
                    "clock_step"]  # fmt: skip
        if kind == "memory":
            features += ["bounded_memory"]
            store = "memory://"
        elif kind == "shm":
            features += ["processes"]
            store = f"shm://{os.environ['CONFORMANCE_SEGMENT']}"
        else:
            features += ["processes", "expiry"]
        if clock == "real":
            features += ["outage", "lost_reply"]
        # A busy machine must not look like an outage: the deadline is longer than the 50 ms by default.
        options = {"deadline": 1.0 if clock == "real" else 10.0} if kind == "redis" else {}
        self.store = open_store(store, clock=self.clock, **options)
        self.promises = {
            "algorithms": ALGORITHMS,
            "features": features,
            "clock": clock,
            "on_outage": "local",
            "deadline": 1_000_000,
            "store": kind,
        }

    def set_time(self, micros: int) -> None:
        self.clock.move_to(micros)

    def open(self, name: str, limits: list[dict[str, Any]]) -> LibraryLimiter:
        return LibraryLimiter(Limiter([to_limit(limit) for limit in limits], store=self.store, name=name))


if __name__ == "__main__":
    serve(LibraryTarget)

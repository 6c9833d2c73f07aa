"""aiolimiter: a leaky bucket without keys, on an event loop whose time the suite sets."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

from aiolimiter import AsyncLimiter

from conformance.line_server import serve


class SetLoop(asyncio.SelectorEventLoop):
    seconds = 0.0

    def time(self) -> float:
        return self.seconds


class PeerLimiter:
    def __init__(self, loop: SetLoop, limit: dict[str, Any]) -> None:
        self.loop, self.limit, self.limiters = loop, limit, {}

    def check(self, key: str, cost: int) -> dict[str, Any]:
        async def ask() -> bool:
            limiter = self.limiters.setdefault(key, AsyncLimiter(self.limit["count"], self.limit["period"] / 1_000_000))
            if not limiter.has_capacity(cost):
                return False
            await limiter.acquire(cost)
            return True

        return {"allowed": self.loop.run_until_complete(ask())}


class Target:
    name = "aiolimiter"
    version = version("aiolimiter")
    promises = {
        "algorithms": ["leaky_bucket"],
        "features": ["cost", "refusal_free"],
        "clock": "virtual",
        "precision": 10,
        "has_burst": False,
    }

    def __init__(self, store: str | None) -> None:
        self.loop = SetLoop()

    def set_time(self, micros: int) -> None:
        self.loop.seconds = (micros - 1_800_000_000_000_000) / 1_000_000

    def open(self, name: str, limits: list[dict[str, Any]]) -> PeerLimiter:
        return PeerLimiter(self.loop, limits[0])


if __name__ == "__main__":
    sys.exit(serve(Target))

"""token-bucket: its limiter on its memory storage.  Its documentation says that it is not exact under threads."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import token_bucket

from conformance.line_server import serve


class PeerLimiter:
    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter

    def check(self, key: str, cost: int) -> dict[str, Any]:
        return {"allowed": self.limiter.consume(key, cost)}


class Target:
    name = "token-bucket"
    version = version("token-bucket")
    promises = {
        "algorithms": ["token_bucket"],
        "features": ["cost", "positive_cost", "keys", "refusal_free"],
        "precision": 1000,
    }

    def __init__(self, store: str | None) -> None:
        pass

    def open(self, name: str, limits: list[dict[str, Any]]) -> PeerLimiter:
        rate = limits[0]["count"] / (limits[0]["period"] / 1_000_000)
        return PeerLimiter(token_bucket.Limiter(rate, limits[0]["burst"], token_bucket.MemoryStorage()))


if __name__ == "__main__":
    sys.exit(serve(Target))

"""A correct limiter in a few lines: GCRA in whole numbers, several limits, bounded memory.  It keeps every core law.

``python -m conformance.reference.tiny`` speaks the line protocol: a program in another language may begin as its copy.
The state of a key is its theoretical arrival time, in 1/count of a microsecond, so no fraction is ever lost.
"""

from __future__ import annotations

import threading
from typing import Any


class TinyLimiter:
    """Several limits on many keys, decided together under one lock."""

    def __init__(self, limits: list[dict[str, Any]], target: TinyTarget) -> None:
        self.limits = [(limit["count"], limit["period"], limit["burst"]) for limit in limits]
        self.target = target
        self.times: dict[str, list[int]] = {}
        self.sweep_at = 1000  # keys: then those that have recovered are forgotten
        self.lock = threading.Lock()

    def check(self, key: str, cost: int) -> dict[str, Any]:
        if not isinstance(cost, int) or cost < 1:
            raise ValueError(f"cost: expected a whole number of at least 1, got {cost!r}.")
        with self.lock:
            now = self.target.now
            if len(self.times) >= self.sweep_at and key not in self.times:
                self.forget_recovered(now)
                self.sweep_at = max(1000, 2 * len(self.times))
            return self.decide(key, cost, now)

    def decide(self, key: str, cost: int, now: int) -> dict[str, Any]:
        self.bring_back(key, now)
        before = self.times.get(key, [0] * len(self.limits))
        after, wait, is_possible = [], 0, True
        for time, (count, period, burst) in zip(before, self.limits, strict=True):
            level = max(0, time - now * count)
            over = level + cost * period - burst * period
            wait = max(wait, -(-over // count))
            is_possible &= cost <= burst
            after.append(now * count + level + cost * period)
        allowed = wait <= 0
        if allowed:
            self.times[key] = before = after
        levels = [max(0, time - now * count) for time, (count, _, _) in zip(before, self.limits, strict=True)]
        return {
            "allowed": allowed,
            "remaining": min(max(0, b * p - level) // p for level, (_, p, b) in zip(levels, self.limits, strict=True)),
            "retry_after": 0 if allowed else wait if is_possible else "never",
            "reset_after": max(-(-level // c) for level, (c, _, _) in zip(levels, self.limits, strict=True)),
        }

    def bring_back(self, key: str, now: int) -> None:
        """A time further ahead than a full bucket is from before the clock stepped back: the bucket is full now."""
        if key in self.times:
            self.times[key] = [
                min(time, now * count + burst * period)
                for time, (count, period, burst) in zip(self.times[key], self.limits, strict=True)
            ]

    def forget_recovered(self, now: int) -> None:
        self.times = {
            key: times
            for key, times in self.times.items()
            if any(time > now * count for time, (count, _, _) in zip(times, self.limits, strict=True))
        }


class TinyTarget:
    name = "tiny reference limiter"
    version = "1"
    promises = {
        "algorithms": ["gcra", "token_bucket"],
        "clock": "virtual",
        "features": [
            "cost", "positive_cost",
            "remaining", "retry_after", "reset_after", "keys", "several", "refusal_free", "concurrent",
            "bounded_memory", "clock_step", "expiry",
        ],
    }  # fmt: skip

    def __init__(self, store: str | None = None) -> None:
        self.now = 0
        self.limiters: list[TinyLimiter] = []

    def set_time(self, micros: int) -> None:
        self.now = micros

    def open(self, name: str, limits: list[dict[str, Any]]) -> TinyLimiter:
        self.limiters.append(TinyLimiter(limits, self))
        return self.limiters[-1]

    def stored_keys(self) -> list[tuple[str, int | None]]:
        """What a look into a store would show: a key may be dropped once it has recovered."""
        limiter = self.limiters[-1]
        return [
            (key, max(-(-time // count) - self.now
                      for time, (count, _, _) in zip(times, limiter.limits, strict=True)))
            for key, times in limiter.times.items()
        ]  # fmt: skip


if __name__ == "__main__":
    from conformance.line_server import serve

    serve(TinyTarget)

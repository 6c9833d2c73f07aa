"""The same limiter ten times, each time with one planted bug: what a suite must find.  ``BUGS`` has the law of each.

``python -m conformance run --target broken:off-by-one`` shows what the runner says.
"""

from __future__ import annotations

import time
from typing import Any

from conformance.reference.tiny import TinyLimiter, TinyTarget

# The bug, and the law that finds it.  Other laws may fail too.
BUGS = {
    "off-by-one": "admission",
    "float-drift": "admission",
    "refill-at-refusal": "refusal-is-free",
    "missing-ttl": "expiry",
    "read-then-write": "concurrent",
    "reset-at-window-edge": "bound",
    "negative-cost": "cost",
    "clock-step": "clock-step",
    "wrong-retry-after": "retry-after",
    "cross-key-leak": "key-isolation",
}


class OffByOne(TinyLimiter):
    """Compares with < where <= is meant: one call too many."""

    def __init__(self, limits: list[dict[str, Any]], target: TinyTarget) -> None:
        super().__init__([limit | {"burst": limit["burst"] + 1} for limit in limits], target)


class FloatDrift(TinyLimiter):
    """Tokens as floats, refilled by the time since the last call: each refill rounds."""

    def __init__(self, limits: list[dict[str, Any]], target: TinyTarget) -> None:
        super().__init__(limits, target)
        self.tokens: dict[str, tuple[float, int]] = {}

    def decide(self, key: str, cost: int, now: int) -> dict[str, Any]:
        answer = super().decide(key, cost, now)
        count, period, burst = self.limits[0]
        tokens, at = self.tokens.get(key, (float(burst), now))
        tokens = min(float(burst), tokens + (now - at) / 1e6 * (count / (period / 1e6)))
        answer["allowed"] = tokens >= cost
        self.tokens[key] = (tokens - cost if answer["allowed"] else tokens), now
        return answer


class RefillAtRefusal(FloatDrift):
    """A refusal writes the time of the last refill, but not the refilled tokens."""

    def decide(self, key: str, cost: int, now: int) -> dict[str, Any]:
        before = self.tokens.get(key, (float(self.limits[0][2]), now))
        answer = super().decide(key, cost, now)
        if not answer["allowed"]:
            self.tokens[key] = before[0], now
        return answer


class ReadThenWrite(TinyLimiter):
    """Looks, and writes a moment later, without the lock."""

    def check(self, key: str, cost: int) -> dict[str, Any]:
        now = self.target.now
        before = self.times.get(key)
        time.sleep(0.0005)
        if before is None:
            self.times.pop(key, None)
        else:
            self.times[key] = before
        return self.decide(key, cost, now)


class ResetAtWindowEdge(TinyLimiter):
    """Starts anew with every whole period, as if the limit were a fixed window."""

    def decide(self, key: str, cost: int, now: int) -> dict[str, Any]:
        count, period, _ = self.limits[0]
        if key in self.times and (self.times[key][0] // count) // period < now // period + 1:
            start = now - now % period
            if self.seen_at.get(key, now) < start:
                self.times.pop(key)
        self.seen_at[key] = now
        return super().decide(key, cost, now)

    def __init__(self, limits: list[dict[str, Any]], target: TinyTarget) -> None:
        super().__init__(limits, target)
        self.seen_at: dict[str, int] = {}


class NegativeCost(TinyLimiter):
    """Takes any cost, so a negative one gives credit."""

    def check(self, key: str, cost: int) -> dict[str, Any]:
        with self.lock:
            return self.decide(key, cost, self.target.now)


class ClockStep(TinyLimiter):
    """Trusts a time from the future for ever: after a step back the caller is locked out for as long as the step."""

    def bring_back(self, key: str, now: int) -> None:
        pass


class WrongRetryAfter(TinyLimiter):
    """Tells the time of one unit, whatever is missing."""

    def decide(self, key: str, cost: int, now: int) -> dict[str, Any]:
        answer = super().decide(key, cost, now)
        if not answer["allowed"]:
            count, period, _ = self.limits[0]
            answer["retry_after"] = period // count
        return answer


class CrossKeyLeak(TinyLimiter):
    """Joins and cuts names until two of them are the same."""

    def check(self, key: str, cost: int) -> dict[str, Any]:
        return super().check(key.lower()[:64], cost)


LIMITERS = {
    "off-by-one": OffByOne,
    "float-drift": FloatDrift,
    "refill-at-refusal": RefillAtRefusal,
    "missing-ttl": TinyLimiter,
    "read-then-write": ReadThenWrite,
    "reset-at-window-edge": ResetAtWindowEdge,
    "negative-cost": NegativeCost,
    "clock-step": ClockStep,
    "wrong-retry-after": WrongRetryAfter,
    "cross-key-leak": CrossKeyLeak,
}


class BrokenTarget(TinyTarget):
    """One of the ten; ``store`` is the name of the bug."""

    name = "broken limiter"

    def __init__(self, store: str | None = None) -> None:
        if store not in BUGS:
            raise ValueError(f"broken: expected one of {', '.join(BUGS)}, got {store!r}.")
        super().__init__()
        self.bug = store
        self.name = f"broken limiter: {store}"

    def open(self, name: str, limits: list[dict[str, Any]]) -> TinyLimiter:
        self.limiters.append(LIMITERS[self.bug](limits, self))
        return self.limiters[-1]

    def stored_keys(self) -> list[tuple[str, int | None]]:
        found = super().stored_keys()
        return [(key, None) for key, _ in found] if self.bug == "missing-ttl" else found

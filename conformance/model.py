"""The exact model: seven algorithms from their definitions, in fractions.

A model knows how much of a limit is used at an instant.  Every answer follows from that by search, not by a formula
that a limiter could share.  Times are microseconds; ``used`` is a fraction of units.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from conformance.limits import NEVER, Answer, Limit


class Model:
    """One limit on one key."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.capacity = limit.burst

    def used(self, now: int) -> Fraction:
        raise NotImplementedError

    def record(self, now: int, cost: int) -> None:
        raise NotImplementedError

    def fits(self, now: int, cost: int) -> bool:
        return self.used(now) + cost <= self.capacity

    def remaining(self, now: int) -> int:
        return max(0, (self.capacity - self.used(now)).__floor__())

    def retry_after(self, now: int, cost: int) -> int | str:
        if cost > self.capacity:
            return NEVER
        return least(lambda wait: self.fits(now + wait, cost), self.limit.period)

    def reset_after(self, now: int) -> int:
        return least(lambda wait: self.used(now + wait) == 0, self.limit.period)


def least(holds: Callable[[int], bool], hint: int) -> int:
    """The least wait that holds: what holds once, without traffic, holds for ever."""
    if holds(0):
        return 0
    low, high = 0, hint
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class Bucket(Model):
    """A level that falls by the rate: a token bucket, a leaky bucket and GCRA alike."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.rate = Fraction(limit.count, limit.period)
        self.level, self.at = Fraction(0), 0

    def used(self, now: int) -> Fraction:
        return max(Fraction(0), self.level - self.rate * (now - self.at))

    def record(self, now: int, cost: int) -> None:
        self.level, self.at = self.used(now) + cost, now


class FixedWindow(Model):
    """One count for each window, by the windows' own numbers."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.counts: dict[int, int] = {}

    def used(self, now: int) -> Fraction:
        return Fraction(self.counts.get(now // self.limit.period, 0))

    def record(self, now: int, cost: int) -> None:
        window = now // self.limit.period
        self.counts[window] = self.counts.get(window, 0) + cost


class FirstUseWindow(Model):
    """A window that starts with the first admitted call after the last one ended."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.started: int | None = None
        self.count = 0

    def used(self, now: int) -> Fraction:
        is_open = self.started is not None and now - self.started < self.limit.period
        return Fraction(self.count if is_open else 0)

    def record(self, now: int, cost: int) -> None:
        if not self.used(now):
            self.started, self.count = now, 0
        self.count += cost


class SlidingLog(Model):
    """Every call with its instant; a call counts for exactly one period."""

    def __init__(self, limit: Limit) -> None:
        super().__init__(limit)
        self.log: list[tuple[int, int]] = []

    def used(self, now: int) -> Fraction:
        return Fraction(sum(cost for at, cost in self.log if at > now - self.limit.period))

    def record(self, now: int, cost: int) -> None:
        self.log.append((now, cost))


class SlidingWindow(FixedWindow):
    """Two aligned windows; the older one counts by the share of it that the last period still covers."""

    def used(self, now: int) -> Fraction:
        window, elapsed = divmod(now, self.limit.period)
        older = self.counts.get(window - 1, 0)
        return self.counts.get(window, 0) + Fraction(older * (self.limit.period - elapsed), self.limit.period)


MODELS: dict[str, type[Model]] = {
    "fixed_window": FixedWindow,
    "first_use_window": FirstUseWindow,
    "sliding_log": SlidingLog,
    "sliding_window": SlidingWindow,
    "token_bucket": Bucket,
    "leaky_bucket": Bucket,
    "gcra": Bucket,
}


class Limits:
    """Several limits on many keys, decided together: all or nothing."""

    def __init__(self, limits: list[Limit]) -> None:
        self.limits = limits
        self.models: dict[str, list[Model]] = {}

    def of(self, key: str) -> list[Model]:
        if key not in self.models:
            self.models[key] = [MODELS[limit.algorithm](limit) for limit in self.limits]
        return self.models[key]

    def admit(self, key: str, now: int, cost: int) -> bool:
        """Decide, and take the cost if it fits every limit."""
        models = self.of(key)
        allowed = all(model.fits(now, cost) for model in models)
        if allowed:
            for model in models:
                model.record(now, cost)
        return allowed

    def remaining(self, key: str, now: int) -> int:
        return min(model.remaining(now) for model in self.of(key))

    def check(self, key: str, now: int, cost: int) -> Answer:
        """Decide, with the whole answer."""
        models = self.of(key)
        waits = [model.retry_after(now, cost) for model in models]
        allowed = self.admit(key, now, cost)
        retry: int | str = NEVER if NEVER in waits else max(wait for wait in waits if isinstance(wait, int))
        return Answer(
            allowed,
            self.remaining(key, now),
            0 if allowed else retry,
            max(model.reset_after(now) for model in models),
        )

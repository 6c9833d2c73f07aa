"""The six algorithms once more, from their definitions and in exact rationals, sharing nothing with the rules.

A model says of any instant how much is used and whether a cost fits; the answers follow by search, not by formula.
"""

from __future__ import annotations

import math
from fractions import Fraction


class Model:
    def __init__(self, count: int, micros: int, burst: int, slices: int = 1) -> None:
        self.count, self.micros, self.slices = count, micros, slices
        self.capacity = burst
        self.rate = Fraction(count, micros)  # per microsecond

    def used(self, now: int) -> Fraction:
        raise AssertionError

    def record(self, now: int, cost: int) -> None:
        raise AssertionError

    def fits(self, now: int, cost: int) -> bool:
        return self.used(now) + cost <= self.capacity

    def remaining(self, now: int) -> int:
        return max(0, math.floor(self.capacity - self.used(now)))

    def retry_after(self, now: int, cost: int) -> int | None:
        """The least wait, by bisection: without traffic, what fits once fits for ever."""
        if cost > self.capacity:
            return None
        return least(lambda wait: self.fits(now + wait, cost))

    def reset_after(self, now: int) -> int:
        return least(lambda wait: self.used(now + wait) == 0)

    def delay(self, now: int) -> int:
        return 0


def least(holds) -> int:
    high = 1
    while not holds(high):
        high *= 2
    low = -1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


class TokenBucket(Model):
    """Tokens and the instant they were counted."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.tokens, self.at = Fraction(self.capacity), 0

    def tokens_at(self, now: int) -> Fraction:
        return min(Fraction(self.capacity), self.tokens + self.rate * (now - self.at))

    def used(self, now: int) -> Fraction:
        return self.capacity - self.tokens_at(now)

    def record(self, now: int, cost: int) -> None:
        self.tokens, self.at = self.tokens_at(now) - cost, now


class LeakyBucket(Model):
    """Units in a queue with the instant each one leaves."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.departures: list[tuple[Fraction, Fraction]] = []  # begins to leave, is gone

    def used(self, now: int) -> Fraction:
        total = Fraction(0)
        for begin, gone in self.departures:
            if gone > now:
                total += (gone - max(begin, Fraction(now))) * self.rate
        return total

    def record(self, now: int, cost: int) -> None:
        self.departures = [pair for pair in self.departures if pair[1] > now]
        begin = max([Fraction(now), *(gone for _, gone in self.departures)])
        self.turn = begin
        self.departures.append((begin, begin + cost / self.rate))

    def delay(self, now: int) -> int:
        return math.ceil(self.turn - now)


class FixedWindow(Model):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.windows: dict[int, int] = {}

    def used(self, now: int) -> Fraction:
        return Fraction(self.windows.get(now // self.micros, 0))

    def record(self, now: int, cost: int) -> None:
        self.windows[now // self.micros] = self.windows.get(now // self.micros, 0) + cost


class SlidingLog(Model):
    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.log: list[tuple[int, int]] = []

    def used(self, now: int) -> Fraction:
        return Fraction(sum(cost for at, cost in self.log if now - self.micros < at))

    def record(self, now: int, cost: int) -> None:
        self.log = [(at, cost) for at, cost in self.log if now - self.micros < at]
        self.log.append((now, cost))


class SlidingWindow(Model):
    """Counts by slice; each weighs the share of its slice that lies in the window of one period that ends now."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.width = Fraction(self.micros, self.slices)
        self.slots: dict[int, int] = {}

    def used(self, now: int) -> Fraction:
        total = Fraction(0)
        for index, count in self.slots.items():
            start = index * self.width
            covered = start + self.width - max(start, Fraction(now - self.micros))
            total += count * max(Fraction(0), min(Fraction(1), covered / self.width))
        return total

    def record(self, now: int, cost: int) -> None:
        here = math.floor(now / self.width)
        self.slots = {index: count for index, count in self.slots.items() if index >= here - self.slices}
        self.slots[here] = self.slots.get(here, 0) + cost


MODELS = {
    "fixed_window": FixedWindow,
    "sliding_log": SlidingLog,
    "sliding_window": SlidingWindow,
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
    "gcra": TokenBucket,
}


def model_of(limit) -> Model:
    return MODELS[limit.algorithm](limit.count, limit.micros, limit.burst, limit.slices)

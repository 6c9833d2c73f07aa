"""One random walk of a rule beside its model, used short in the suite and long in tests/real."""

from __future__ import annotations

import random

from ratekeeper import Limit
from tests.laws.models import model_of

TEXTS = [
    "1/second",
    "3/second",
    "7 per 3 seconds",
    "10/second burst 3",
    "3 per 7 microseconds",
    "97 per 11 milliseconds",
    "100/minute",
    "1/day burst 4",
    "999/hour",
]


def limits(algorithm: str) -> list[Limit]:
    windowed = algorithm in ("fixed_window", "sliding_log", "sliding_window")
    found = [Limit.parse(text, algorithm) for text in TEXTS if not (windowed and "burst" in text)]
    if algorithm == "sliding_window":
        found += [
            Limit.parse(f"{text} sliding_window slices {n}")
            for text in ("7 per 3 seconds", "100/minute")
            for n in (2, 3, 7)
        ]
    return found


def walk(limit: Limit, seed: int, steps: int, answers_every: int = 1) -> int:
    """Steps walked without a mismatch; an AssertionError names the seed, the step and the limit otherwise."""
    chance = random.Random(seed)
    rule, model, state, now = limit.rule, model_of(limit), limit.rule.EMPTY, 10**12 + chance.randrange(10**6)
    interval = max(1, limit.micros // limit.count)
    for step in range(steps):
        kind = chance.random()
        if kind < 0.6:
            now += chance.randrange(2 * interval + 1)
        elif kind < 0.7:
            now += chance.choice([1, limit.micros - now % limit.micros, limit.micros, 3 * limit.micros])
        cost = chance.choice([1, 1, 1, 2, chance.randint(1, limit.capacity), limit.capacity, limit.capacity + 1])
        where = f"{limit}, seed {seed}, step {step}"
        fits = model.fits(now, cost)
        new, allowed = rule.decide(state, now, limit, cost)
        assert allowed == fits, where
        if allowed:
            model.record(now, cost)
            assert rule.delay(new, now, limit, cost) == model.delay(now), where
        else:
            assert new is state, where
        state = new
        assert rule.remaining(state, now, limit) == model.remaining(now), where
        if step % answers_every == 0:
            assert rule.reset_after(state, now, limit) == model.reset_after(now), where
            for price in {1, cost, limit.capacity, limit.capacity + 1}:
                assert rule.retry_after(state, now, limit, price) == model.retry_after(now, price), where
        assert (rule.debt(state, now, limit) == 0) == (model.used(now) == 0), where
    return steps

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


def edge_after(chance: random.Random, limit: Limit, now: int) -> int:
    """The end of the window or of the slice at ``now``."""
    slices = chance.choice([1, limit.slices])
    return -(-(now * slices // limit.micros + 1) * limit.micros // slices)


def moved(chance: random.Random, limit: Limit, now: int, furthest: int) -> int:
    """A next instant: mostly a little later, at times far, often back and forth over an edge.

    It lies less than one period before ``furthest``, the latest instant at which anything was admitted.
    """
    kind = chance.random()
    if kind < 0.4:
        now += chance.randrange(2 * max(1, limit.micros // limit.count) + 1)
    elif kind < 0.5:
        now += chance.choice([1, limit.micros, 3 * limit.micros])
    elif kind < 0.6:
        now = edge_after(chance, limit, now) - chance.choice([0, 0, 1, 2_000])
    elif kind < 0.75:  # just over an edge that has passed, and not at all or a little behind it
        edge = edge_after(chance, limit, now - limit.micros)
        now = edge + chance.choice([-2_000, -2, -1, -1, 0, 0, 1])
    elif kind < 0.85:
        now += chance.randrange(-limit.micros // chance.choice([1, 30]), limit.micros // 30 + 1)
    return max(0, now, furthest - limit.micros + 1)


def walk(limit: Limit, seed: int, steps: int, answers_every: int = 1) -> int:
    """Steps walked without a mismatch; an AssertionError names the seed, the step and the limit otherwise."""
    chance = random.Random(seed)
    rule, model, state, now = limit.rule, model_of(limit), limit.rule.EMPTY, 10**12 + chance.randrange(10**6)
    furthest = now
    for step in range(steps):
        now = moved(chance, limit, now, furthest)
        cost = chance.choice([1, 1, 1, 2, chance.randint(1, limit.capacity), limit.capacity, limit.capacity + 1])
        where = f"{limit}, seed {seed}, step {step}"
        fits = model.fits(now, cost)
        new, allowed = rule.decide(state, now, limit, cost)
        assert allowed == fits, where
        if allowed:
            model.record(now, cost)
            furthest = max(furthest, now)
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

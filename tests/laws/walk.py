"""Random steps for all walks, and the walk of a rule beside its model: short in the suite, long in tests/real."""

from __future__ import annotations

import random

from ratekeeper import Limit
from ratekeeper.limit import LimitSet, empty_state
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


CALENDARS = [
    "5/day calendar",
    "7/day calendar Europe/Berlin",
    "7/day calendar America/Santiago",
    "3/week calendar Asia/Tehran",
    "9/month",
    "9/month calendar America/New_York",
    "40/year calendar Pacific/Apia",
]
# The nights in which the clocks of Berlin are moved, and the day that Apia left out.
CHANGES = [1_774_738_800_000_000, 1_792_882_800_000_000, 1_325_239_200_000_000]


def limits(algorithm: str) -> list[Limit]:
    if algorithm == "calendar_window":
        return [Limit.parse(text) for text in CALENDARS]
    windowed = algorithm in ("fixed_window", "first_use_window", "sliding_log", "sliding_window")
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
    if limit.calendar is not None:
        return limit.calendar.start(limit.calendar.index(now) + 1)
    slices = chance.choice([1, limit.slices])
    return -(-(now * slices // limit.micros + 1) * limit.micros // slices)


def next_instant(chance: random.Random, limit: Limit | LimitSet, now: int) -> int:
    """The next instant of a walk: one in three lies before ``now`` or next to an edge, and a few lie far back."""
    part = chance.choice(limit.parts)
    micros, kind = part.micros, chance.random()
    if kind < 0.2:
        step = 0
    elif kind < 0.35:
        step = chance.randrange(2 * max(1, micros // part.count) + 1)
    elif kind < 0.55:
        step = chance.randrange(micros // 5 + 2)
    elif kind < 0.65:
        step = chance.choice([1, micros, chance.randrange(3 * micros)])
    elif kind < 0.85:
        here = chance.choice([now, now, now - micros, now - 2 * micros])
        edge = edge_after(chance, part, here) if here >= 0 else now
        step = edge + chance.choice([-2_000, -1_000, -1, -1, 0, 0, 1, 1_000]) - now
    elif kind < 0.97:
        step = -chance.randrange(1, chance.choice([3, 2_000, micros // 3 + 2, micros + 2, 2 * micros + 2]))
    else:
        step = -chance.randrange(1, 30 * micros)
    return max(0, now + step)


def next_cost(chance: random.Random, limit: Limit | LimitSet) -> int:
    """A cost: mostly one, often a large part of the limit, at times more than fits."""
    capacity = min(part.capacity for part in limit.parts)
    some = chance.randint(1, capacity)
    return chance.choice([1, 1, 1, 2, some, max(1, capacity // 2), max(1, capacity * 2 // 3), capacity, capacity + 1])


def next_refund(chance: random.Random, limit: Limit | LimitSet, now: int, taken: list[int]) -> tuple[int, int]:
    """What a refund gives back, at times more than was ever used, and when that was taken."""
    capacity = max(part.capacity for part in limit.parts)
    cost = chance.choice([1, 1, next_cost(chance, limit), capacity, 2 * capacity + 3, 10**6, 10**12])
    micros = min(part.micros for part in limit.parts)
    at = chance.choice([now, now, *taken[-3:], now - 1, now - micros // 3, now - 2 * micros, now + micros // 3])
    return cost, max(0, at)


def walk(limit: Limit | LimitSet, seed: int, steps: int, answers_every: int = 1) -> int:
    """Steps walked without a mismatch; an AssertionError names the seed, the step and the limit otherwise."""
    chance = random.Random(seed)
    rule, model, state = limit.rule, model_of(limit), empty_state(limit)
    starts = [0, 10**12 + chance.randrange(10**6), 1_790_000_000_000_000]
    now, taken = chance.choice(CHANGES if any(part.calendar for part in limit.parts) else starts), []
    for step in range(steps):
        now = next_instant(chance, limit, now)
        where = f"{limit}, seed {seed}, step {step}"
        if chance.random() < 0.12:
            cost, at = next_refund(chance, limit, now, taken)
            state = rule.refund(state, now, limit, cost, at)
            model.refund(now, cost, at)
        else:
            cost = next_cost(chance, limit)
            fits = model.decide(now, cost)
            state, allowed = rule.decide(state, now, limit, cost)
            assert allowed == fits, where
            if allowed:
                taken.append(now)
                assert rule.delay(state, now, limit, cost) == model.delay(now, cost), where
        assert rule.remaining(state, now, limit) == model.remaining(now), where
        if step % answers_every == 0:
            assert rule.reset_after(state, now, limit) == model.reset_after(now), where
            for price in {1, cost, limit.parts[0].capacity, limit.parts[0].capacity + 1}:
                assert rule.retry_after(state, now, limit, price) == model.retry_after(now, price), where
            assert (rule.debt(state, now, limit) == 0) == (model.reset_after(now) == 0), where
    return steps

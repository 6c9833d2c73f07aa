"""Random reservations and settlements beside the exact models: what is used is charged in full.

The models know nothing of marks, caps in bits or rings: a debit is recorded, and the key owes it.  A window owes one
limit more at most (a sliding one only as its ``debt`` says), a log remembers its newest ``count`` units, and ``debt``
in a limit is the cap of its own.
"""

from __future__ import annotations

import random

from ratekeeper import Limit, Limiter
from ratekeeper.algorithms import BUCKETS
from ratekeeper.limit import parse_limits
from tests.laws.models import Several, SlidingLog, model_of

LIMITS = [
    *[Limit.parse(text) for text in (
        "10/minute", "100/second burst 1", "7 per 3 seconds token_bucket",
        "97 per 11 milliseconds burst 30 leaky_bucket",
        "10/minute fixed_window", "10/minute sliding_window", "10/minute sliding_window debt 10",
        "14 per 2 seconds sliding_window slices 3 debt 9",
        "10/minute sliding_log", "100 per 10 seconds sliding_log",
        "10/minute debt 5", "10/minute debt 0", "10/minute fixed_window debt 3", "10/minute sliding_window debt 3",
        "10/minute sliding_log debt 4",
    )],
    parse_limits(["9/second fixed_window", "100/minute", "14 per 2 seconds sliding_window slices 3"]),
    parse_limits(["9/second burst 3", "80/minute sliding_log"]),
]  # fmt: skip


def debit(model, limit, now, cost):
    """Record ``cost``, but for what is above the cap."""
    if isinstance(model, Several):
        for part, its_limit in zip(model.models, limit.parts, strict=True):
            debit(part, its_limit, now, cost)
        return
    if limit.algorithm in BUCKETS:
        before = model.used(now)
        model.record(now, cost)
        if limit.debt is not None:  # in fractions of a unit, as a bucket recovers
            model.tokens = max(model.tokens, -max(limit.debt * model.micros, before - model.full))
        return
    most = limit.debt
    if most is None:
        most = 0 if limit.algorithm == "sliding_window" else limit.count
    cost = min(cost, max(0, (model.full + most * model.micros - model.used(now)) // model.micros))
    if isinstance(model, SlidingLog):
        cost = min(cost, limit.count)
    if cost:
        model.record(now, cost)
    while isinstance(model, SlidingLog) and model.used(now) > model.full:
        model.log[0][1] -= 1
        model.log = [entry for entry in model.log if entry[1]]


def in_debt_for_ever(model):
    """No clock steps back here, so no state is ever too far ahead."""
    for part in getattr(model, "models", [model]):
        part.is_too_far = lambda now: False
    return model


def walk(clock, store, limit, seed, steps):
    chance, name = random.Random(f"{seed} {limit}"), f"settle {seed} {limit}"
    limiter, model, open_reservations = Limiter(limit, store=store, name=name), in_debt_for_ever(model_of(limit)), []
    micros, capacity = max(part.micros for part in limit.parts), min(part.capacity for part in limit.parts)
    for step in range(steps):
        clock.move_to(clock.micros + chance.choice([0, 0, 1, micros // 9, micros // 2, micros, 5 * micros]))
        now, cost = clock.micros, chance.randint(1, capacity)
        if open_reservations and chance.random() < 0.5:
            reservation, taken, at = open_reservations.pop(chance.randrange(len(open_reservations)))
            used = chance.choice([0, taken // 2, taken, taken + 1, taken + capacity, chance.randint(0, 5 * capacity)])
            reservation.settle(used)
            if used > taken:
                debit(model, limit, now, used - taken)
            elif used < taken:
                model.refund(now, taken - used, at)
        else:
            reservation = limiter.reserve("k", cost=cost)
            assert bool(reservation) == model.decide(now, cost), (seed, step, str(limit))
            if reservation:
                open_reservations.append((reservation, cost, now))
        decision = limiter.peek("k", cost=1)
        assert decision.remaining == model.remaining(now), (seed, step, str(limit))
        wait = None if decision.retry_after is None else round(decision.retry_after * 1e6)
        assert wait == model.retry_after(now, 1), (seed, step, str(limit))
        assert round(decision.reset_after * 1e6) == model.reset_after(now), (seed, step, str(limit))

"""Random steps through stores beside the exact model: one walk, any number of stores on its clock.

``walk`` takes one key through all kinds of stores.  ``walk_keys`` takes many keys through a server at once, so that a
long walk does not wait for the network; a store in this process may forget a key that has recovered while another one
comes, and cannot know what a clock that steps back returns to.

Every step is a check (in each of the ways to check), a take, a refund or a reset at a random time, then a look.
Compared are admitted, remaining, retry_after, reset_after and delay, in whole microseconds.
"""

from __future__ import annotations

import random
from asyncio import gather
from collections import Counter

from ratekeeper import Limit
from ratekeeper.algorithms import BUCKETS
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.testing.contract import walk_limits
from tests.laws.models import model_of
from tests.laws.walk import next_cost, next_instant, next_refund


def is_exact(limit):
    """Whether the rule has the very rate that was asked for, as the model has."""
    return limit.algorithm not in BUCKETS or limit.unit * limit.count == limit.micros * limit.drain


LIMITS = [
    *[limit for limit in walk_limits() if all(is_exact(part) for part in limit.parts)],
    *[
        Limit.parse(text)
        for text in (
            "100 per 10 seconds sliding_log", "100/second sliding_log", "70 per 7 microseconds sliding_log",
            "10 per 10 seconds sliding_window", "10/minute burst 1", "10/minute burst 45 leaky_bucket",
            "100/minute burst 3 token_bucket", "10/minute fixed_window",
        )
    ],
    parse_limits(["9/second fixed_window", "100/minute sliding_log", "20/minute"]),
    parse_limits(["9/second fixed_window", "14 per 2 seconds sliding_window slices 3", "7/second burst 3"]),
    parse_limits(["8/second leaky_bucket", "14 per 2 seconds burst 9", "80/minute sliding_log", "7/s sliding_log"]),
]  # fmt: skip
STARTS = (0, 1_000_000_000_000, 1_790_000_000_000_000)


def ask(store, way, plan):
    if way == "table":
        return [store.table(check.space, check.limit).check(check.key, check.cost) for check in plan]
    if way == "prepared":
        more = (None,) if store.blocking else ()  # on_store_error
        ready = store.prepare(tuple([(check.space, check.limit, check.cost, *more) for check in plan]))
        return ready.check(tuple([check.key for check in plan]))[1]
    return getattr(store, way)(plan)


def micros(seconds):
    return None if seconds is None else round(seconds * 1e6)


def figures(decision):
    return (
        decision.allowed,
        decision.remaining,
        micros(decision.retry_after),
        micros(decision.reset_after),
        micros(decision.delay),
    )


def expected(model, now, fits, cost, queued, answer):
    """The same figures by the model: after a decision about ``cost``, of which ``queued`` are in a queue.

    The model tries the waits of ``answer`` first, and searches for its own where they are not the least.
    """
    wait = 0 if fits else model.retry_after(now, cost, answer[2])
    reset = model.reset_after(now, answer[3])
    return fits, model.remaining(now), wait, reset, model.delay(now, queued) if fits else 0


def compare(stores, answers, right, *where):
    for name, answer in zip(stores, answers, strict=True):
        assert answer == right, (name, *where)


def walk(clock, stores, limit, seed, steps):
    """Walk ``steps`` on a key of its own; how many of each kind.  An AssertionError names the place otherwise."""
    chance, model, taken, kinds = random.Random(f"{seed} {limit}"), model_of(limit), [], Counter()
    clock.move_to(chance.choice(STARTS))
    key, space = f"{seed}", f"{limit}"
    for step in range(steps):
        before = clock.micros
        clock.move_to(next_instant(chance, limit, before))
        now, kind, cost = clock.micros, chance.random(), next_cost(chance, limit)
        plan, where = (Check(space, key, limit, cost),), (str(limit), seed, step)
        if kind < 0.8:
            way = chance.choice(["check", "check", "table", "table", "prepared"])
            fits = model.decide(now, cost)
            answers = [figures(ask(store, way, plan)[0]) for store in stores.values()]
            compare(stores, answers, expected(model, now, fits, cost, cost, answers[0]), way, *where)
            kinds["admitted" if fits else "refused"] += 1
            if fits:
                taken.append(now)
        elif kind < 0.93:
            cost, at = next_refund(chance, limit, now, taken)
            model.refund(now, cost, at)
            for store in stores.values():
                store.refund((Check(space, key, limit, cost),), at)
            kinds["refund"] += 1
        elif kind < 0.98:
            there = min(cost, model.remaining(now))
            if there:
                model.decide(now, there)
            for store in stores.values():
                store.take(plan)
            kinds["take"] += 1
        else:
            model = model_of(limit)
            for store in stores.values():
                store.reset(plan)
            kinds["reset"] += 1
        cost = next_cost(chance, limit)
        answers = [figures(store.peek((Check(space, key, limit, cost),))[0]) for store in stores.values()]
        compare(stores, answers, expected(model, now, model.fits(now, cost), cost, 0, answers[0]), "look", *where)
        kinds["look"] += 1
        kinds["clock back"] += now < before
    return kinds


async def walk_keys(clock, stores, limit, seed, steps, keys):
    """The same for many keys at the same instants, through asynchronous stores."""
    chance, kinds, space = random.Random(f"{seed} {limit} {keys}"), Counter(), f"{limit}"
    models, taken = [model_of(limit) for _ in range(keys)], [[] for _ in range(keys)]
    clock.move_to(chance.choice(STARTS))
    for step in range(steps):
        before = clock.micros
        clock.move_to(next_instant(chance, limit, before))
        now, calls, looks = clock.micros, [], []
        for key, model in enumerate(models):
            kind, cost, more, fits, operation = chance.random(), next_cost(chance, limit), (), None, "check"
            if kind < 0.8:
                fits = model.decide(now, cost)
                kinds["admitted" if fits else "refused"] += 1
                if fits:
                    taken[key].append(now)
            elif kind < 0.93:
                operation = "refund"
                cost, at = next_refund(chance, limit, now, taken[key])
                model.refund(now, cost, at)
                more = (at,)
            elif kind < 0.98:
                operation, there = "take", min(cost, model.remaining(now))
                if there:
                    model.decide(now, there)
            else:
                operation, models[key] = "reset", model_of(limit)
            kinds[operation] += operation != "check"
            calls.append((operation, (Check(space, f"{seed} {key}", limit, cost),), more, fits))
            looks.append((Check(space, f"{seed} {key}", limit, next_cost(chance, limit)),))
        kinds["look"] += keys
        kinds["clock back"] += keys * (now < before)
        for name, store in stores.items():
            replies = await gather(*[getattr(store, operation)(plan, *more) for operation, plan, more, _ in calls])
            seen = await gather(*[store.peek(plan) for plan in looks])
            for key, model in enumerate(models):
                operation, (check,), _, fits = calls[key]
                where = (name, key, str(limit), seed, step)
                if operation == "check":
                    answer = figures(replies[key][0])
                    assert answer == expected(model, now, fits, check.cost, check.cost, answer), where
                answer, cost = figures(seen[key][0]), looks[key][0].cost
                assert answer == expected(model, now, model.fits(now, cost), cost, 0, answer), (*where, "look")
    return kinds

"""Clocks that go back and forth: what a step unlocks and for how long it locks out, by decision 13.

A history is *near* if no call comes one period or more before the latest instant at which anything was admitted.
"""

import random

import pytest

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS, BUCKETS, RULES
from tests import tier
from tests.laws.test_laws import bound
from tests.laws.walk import edge_after, moved

TEXTS = ["10/minute", "3/second", "7 per 3 seconds", "2 per 5 microseconds"]


def limits(name):
    if name == "concurrency":
        return [Limit.parse(text) for text in ("3 concurrent for 2 seconds", "10 concurrent for 1 minute")]
    found = [Limit.parse(text, name) for text in TEXTS]
    if name in BUCKETS:
        found += [Limit.parse(text, name) for text in ("100/minute burst 1", "10/minute burst 45")]
    if name == "sliding_window":
        found += [Limit.parse(f"10/minute sliding_window slices {slices}") for slices in (2, 7)]
    return found


def cost_of(chance, limit):
    return chance.choice([1, 1, 1, 1, 2, limit.capacity, limit.capacity + 1])


def play(limit, seed, steps, far=False):
    """Yield now, cost, allowed, and the state before and after; with ``far``, some steps go back by many periods."""
    chance = random.Random(seed)
    rule, state, now = limit.rule, limit.rule.EMPTY, 10**12 + chance.randrange(10**6)
    furthest = now
    for _ in range(steps):
        if far and chance.random() < 0.1:
            now = furthest = max(0, now - chance.randrange(1, 5 * limit.micros))
        now = moved(chance, limit, now, furthest)
        before, cost = state, cost_of(chance, limit)
        state, allowed = rule.decide(state, now, limit, cost)
        if allowed:
            furthest = max(furthest, now)
        yield now, cost, allowed, before, state


def most(limit, begin, end):
    """The most that a near history admits while its furthest clock goes from ``begin`` to ``end``."""
    if limit.algorithm == "sliding_window":  # a step back into a slice is taken to be at its beginning
        begin = -(-(begin * limit.slices // limit.micros) * limit.micros // limit.slices)
    return bound(limit, begin, end)


def admissions(history):
    """Each cost that was admitted, with the furthest clock."""
    furthest, found = 0, []
    for now, cost, allowed, *_ in history:
        if allowed:
            furthest = max(furthest, now)
            found.append((furthest, cost))
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_step_back_of_one_period_admits_more_than_the_furthest_clock_allows(name):
    for limit in limits(name):
        for seed in range(tier.steps(60, 6)):
            admitted = admissions(play(limit, seed, 80))
            for first, (begin, _) in enumerate(admitted):
                total = 0
                for end, cost in admitted[first:]:
                    total += cost
                    assert total <= most(limit, begin, end), (limit, seed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_longer_step_back_unlocks_one_period_at_most(name):
    """Each such step begins a new history, which is bounded like the first."""
    for limit in limits(name):
        for seed in range(tier.steps(60, 6)):
            allowance, total, begin, furthest = 0, 0, None, 0
            for now, cost, allowed, *_ in play(limit, seed, 80, far=True):
                if now <= furthest - limit.micros:
                    allowance += 0 if begin is None else most(limit, begin, furthest)
                    begin, furthest = None, now
                if allowed:
                    total += cost
                    begin, furthest = now if begin is None else begin, max(furthest, now)
                    assert total <= allowance + most(limit, begin, furthest), (limit, seed)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_answers_are_true_wherever_the_clock_steps(name, far):
    for limit in limits(name):
        rule = limit.rule
        for seed in range(tier.steps(40, 4)):
            for now, cost, allowed, before, state in play(limit, seed, 60, far):
                assert allowed or far or state is before
                left = rule.remaining(state, now, limit)
                assert 0 <= left <= limit.capacity
                assert left == 0 or rule.decide(state, now, limit, left)[1]
                assert not rule.decide(state, now, limit, left + 1)[1]
                for price in {1, cost, limit.capacity}:
                    wait = rule.retry_after(state, now, limit, price)
                    if wait is None:
                        assert price > limit.capacity
                        continue
                    assert (wait == 0) == (price <= left)
                    assert rule.decide(state, now + wait, limit, price)[1], (limit, seed)
                    # A state that is still to be repaired recovers from the instant at which that is done.
                    assert wait == 0 or far or not rule.decide(state, now + wait - 1, limit, price)[1], (limit, seed)
                reset = rule.reset_after(state, now, limit)
                assert (reset == 0) == (rule.debt(state, now, limit) == 0)
                assert rule.debt(state, now + reset, limit) == 0
                assert reset == 0 or far or rule.debt(state, now + reset - 1, limit) > 0
                assert rule.remaining(state, now + reset, limit) == limit.capacity


@pytest.mark.parametrize("name", RULES)
def test_a_step_back_locks_out_for_the_step_and_no_longer_than_one_period_more(name):
    for limit in limits(name):
        rule, chance = limit.rule, random.Random(5)
        for seed in range(tier.steps(60, 6)):
            history = list(play(limit, seed, 40))
            state, now = history[-1][-1], max(now for now, _, allowed, *_ in history if allowed)
            state, _ = rule.decide(state, now, limit, rule.remaining(state, now, limit) or 1)
            wait, reset = rule.retry_after(state, now, limit, 1), rule.reset_after(state, now, limit)
            back = chance.choice([1, chance.randrange(1, limit.micros), limit.micros - 1, chance.randint(1, 10**9)])
            # What has recovered by now counts again, where the clock goes back to before that.
            same = rule.decide(state, now - back, limit, limit.capacity + 1)[0]
            latest = limit.recovery + limit.micros
            if name == "sliding_window":
                latest += limit.micros
            assert rule.remaining(state, now - back, limit) <= rule.remaining(state, now, limit)
            assert rule.reset_after(same, now - back, limit) <= latest
            if back < limit.micros and wait:
                assert same is state
                assert wait <= rule.retry_after(state, now - back, limit, 1) <= wait + back
                assert reset <= rule.reset_after(state, now - back, limit) <= reset + back


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_clock_that_trembles_over_an_edge_unlocks_nothing(algorithm):
    limit = Limit(10, 60, algorithm=algorithm)
    edge = edge_after(random.Random(0), limit, 10**12)
    state, admitted = limit.rule.EMPTY, 0
    for _ in range(100):
        for now in (edge - 1_000, edge + 1_000):  # two milliseconds back and forth
            for _ in range(12):
                state, allowed = limit.rule.decide(state, now, limit, 1)
                admitted += allowed
    assert admitted == (20 if algorithm == "fixed_window" else 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_random_jitter_of_two_seconds_unlocks_nothing(algorithm):
    chance = random.Random(1)
    limit = Limit(10, 60, algorithm=algorithm)
    edge = edge_after(random.Random(0), limit, 10**12)
    state, admitted = limit.rule.EMPTY, 0
    for tenth in range(600):
        now = edge - 30_000_000 + tenth * 100_000 + chance.randint(-2_000_000, 2_000_000)
        state, allowed = limit.rule.decide(state, now, limit, 1)
        admitted += allowed
    assert admitted <= 20


@pytest.mark.parametrize("text", ["3 concurrent for 2 seconds", "10 concurrent for 1 minute"])
def test_leases_are_found_again_wherever_the_clock_steps(text):
    limit = Limit.parse(text)
    for seed in range(tier.steps(60, 6)):
        chance = random.Random(seed)
        state, leases, now, furthest = limit.rule.EMPTY, [], 10**12, 10**12
        for _ in range(120):
            now = moved(chance, limit, now, furthest)
            if leases and chance.random() < 0.4:
                at = leases.pop(chance.randrange(len(leases)))
                state = limit.rule.refund(state, now, limit, 1, at)
            else:
                in_force = [at for at in leases if at > max([now, *leases]) - limit.micros]
                state, allowed = limit.rule.decide(state, now, limit, 1)
                assert allowed == (len(in_force) < limit.count)
                if allowed:
                    leases, furthest = [*in_force, now], max(furthest, now)
            in_force = [at for at in leases if at > max([now, *leases]) - limit.micros]
            assert limit.rule.remaining(state, now, limit) == limit.count - len(in_force)

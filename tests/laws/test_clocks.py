"""Clocks that go back and forth: what a step unlocks and for how long it locks out, by decision 3.

A history is *near* if no call comes further than ``tolerated`` before the latest instant at which anything was
admitted.
"""

import random
from fractions import Fraction

import pytest

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from tests import tier
from tests.laws.test_laws import bound
from tests.laws.walk import edge_after, next_instant

LAWFUL = (*ALGORITHMS, "first_use_window")
TEXTS = ["10/minute", "3/second", "7 per 3 seconds", "2 per 5 microseconds"]


def limits(name):
    chosen = [Limit.parse(text, name) for text in TEXTS]
    if name in BUCKETS:
        bursts = ("100/minute burst 1", "10/minute burst 45", "100/minute burst 7")
        chosen += [Limit.parse(text, name) for text in bursts]
    if name == "sliding_window":
        chosen += [Limit.parse(f"10/minute sliding_window slices {slices}") for slices in (2, 7)]
    return chosen


def tolerated(limit):
    """Microseconds by which the clock may be behind a key, and unlocks nothing."""
    return limit.slack if limit.algorithm in BUCKETS else limit.micros - 1


def cost_of(chance, limit):
    return chance.choice([1, 1, 1, 1, 2, limit.capacity, limit.capacity + 1])


def play(limit, seed, steps, far=False):
    """Yield now, cost, allowed, and the state before and after; unless ``far``, no step goes too far back."""
    chance = random.Random(seed)
    rule, state, now = limit.rule, limit.rule.EMPTY, 10**12 + chance.randrange(10**6)
    furthest = now
    for _ in range(steps):
        now = next_instant(chance, limit, now)
        if not far:
            now = max(now, furthest - tolerated(limit))
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
    furthest, costs = 0, []
    for now, cost, allowed, *_ in history:
        if allowed:
            furthest = max(furthest, now)
            costs.append((furthest, cost))
    return costs


@pytest.mark.parametrize("name", LAWFUL)
def test_no_tolerated_step_back_admits_more_than_the_furthest_clock_allows(name):
    for limit in limits(name):
        for seed in range(tier.steps(60, 6)):
            admitted = admissions(play(limit, seed, 80))
            for first, (begin, _) in enumerate(admitted):
                total = 0
                for end, cost in admitted[first:]:
                    total += cost
                    assert total <= most(limit, begin, end), (limit, seed)


@pytest.mark.parametrize("name", LAWFUL)
def test_every_longer_step_back_unlocks_one_period_at_most(name):
    """Each such step begins a new history, which is bounded like the first."""
    for limit in limits(name):
        for seed in range(tier.steps(60, 6)):
            allowance, total, begin, furthest = 0, 0, None, 0
            for now, cost, allowed, *_ in play(limit, seed, 80, far=True):
                if furthest - now > tolerated(limit):
                    allowance += 0 if begin is None else most(limit, begin, furthest)
                    begin, furthest = None, now
                if allowed:
                    total += cost
                    begin, furthest = now if begin is None else begin, max(furthest, now)
                    assert total <= allowance + most(limit, begin, furthest), (limit, seed)


@pytest.mark.parametrize("name", sorted(BUCKETS))
def test_a_longer_step_back_of_a_bucket_unlocks_only_what_drains_beyond_the_slack(name):
    """A key's own clock is ahead of the store's by the slack at most; what it is set back by drains once more."""
    for limit in limits(name):
        for seed in range(tier.steps(60, 6)):
            begin, own, set_back, total = -1, 0, 0, 0
            for now, cost, allowed, *_ in play(limit, seed, 80, far=True):
                if own - now > limit.slack:
                    set_back += own - now - limit.slack
                    own = now + limit.slack
                if not allowed:  # a key's clock is where it last admitted something
                    continue
                begin = now if begin < 0 else begin
                own = max(own, now)
                total += cost
                passed = own + set_back - begin
                assert total <= limit.burst + Fraction(limit.count * passed, limit.micros), (limit, seed)


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("name", LAWFUL)
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


@pytest.mark.parametrize("name", LAWFUL)
def test_a_step_back_locks_out_for_the_step_and_no_longer_than_one_period_more(name):
    for limit in limits(name):
        rule, chance = limit.rule, random.Random(5)
        for seed in range(tier.steps(60, 6)):
            history = list(play(limit, seed, 40))
            state, now = history[-1][-1], max(now for now, _, allowed, *_ in history if allowed)
            state, _ = rule.decide(state, now, limit, rule.remaining(state, now, limit) or 1)
            wait, reset = rule.retry_after(state, now, limit, 1), rule.reset_after(state, now, limit)
            near = max(1, tolerated(limit))
            back = chance.choice([1, chance.randint(1, near), near, limit.micros - 1, chance.randint(1, 10**9)])
            # What has recovered by now counts again, where the clock goes back to before that.
            same = rule.decide(state, now - back, limit, limit.capacity + 1)[0]
            latest = limit.recovery + limit.micros
            if name == "sliding_window":
                latest += limit.micros
            assert rule.remaining(state, now - back, limit) <= rule.remaining(state, now, limit)
            assert rule.reset_after(same, now - back, limit) <= latest
            later = rule.retry_after(same, now - back, limit, 1)
            if name in BUCKETS:  # for no longer than the limit itself
                assert later <= min(limit.recovery, limit.micros) + 1
            assert later <= wait + back
            if back <= tolerated(limit) and wait:
                assert same is state
                assert wait <= later
                assert reset <= rule.reset_after(state, now - back, limit) <= reset + back


@pytest.mark.parametrize("name", sorted(BUCKETS))
def test_a_lowered_burst_locks_out_for_no_longer_than_itself(name):
    for before, after in ((100, 1), (100, 2), (100, 7), (45, 44), (1000, 100), (1000, 999)):
        roomy, tight = (Limit(10, 60, burst=burst, algorithm=name) for burst in (before, after))
        now = 10**12
        state, _ = roomy.rule.decide(roomy.rule.EMPTY, now, roomy, before)
        state, allowed = tight.rule.decide(state, now, tight, 1)
        wait = tight.rule.retry_after(state, now, tight, 1)
        assert not allowed
        assert 0 < wait <= min(tight.recovery, tight.micros)
        assert tight.rule.decide(state, now + wait, tight, 1)[1]


@pytest.mark.parametrize("algorithm", LAWFUL)
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


@pytest.mark.parametrize("algorithm", LAWFUL)
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

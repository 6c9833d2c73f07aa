"""No provider sees more than its limit, whatever it counts with and wherever its windows begin: an exact model.

We send as much as our limit admits, with pauses at random.  The network delays each call by up to the margin, and an
adversary chooses the delays that crowd calls together.  The provider counts in whole numbers.
"""

import random

import pytest

from ratekeeper.outbound.limits import margin_of, paced_limit, provider_limit
from tests import tier

TEXTS = ["60/minute", "300/minute", "7/second", "1/second", "100 per 10 seconds", "200/hour", "3 per 7 seconds"]


def sent(limit, chance, costs, until, pauses=0.01):
    """When calls leave, and their costs: greedy, after a pause now and then."""
    rule, state, now, calls = limit.rule, limit.rule.EMPTY, chance.randrange(10**9), []
    end = now + until
    while now < end:
        cost = chance.choice(costs)
        if chance.random() < pauses:
            now += chance.randrange(limit.micros)
        now += rule.retry_after(state, now, limit, cost)
        state, allowed = rule.decide(state, now, limit, cost)
        assert allowed
        calls.append((now + rule.delay(state, now, limit, cost), cost))
    return calls


def delayed(calls, margin, chance, way):
    """When they arrive.  Crowding: all calls before an instant are late, all after it are not."""
    edges = sorted(chance.sample([at for at, _ in calls], min(len(calls), 9)))
    arrivals = []
    for number, (at, cost) in enumerate(calls):
        late = sum(edge < at for edge in edges) % 2 == 0 if way == "crowd" else number % 2
        delay = chance.randrange(margin) if way == "random" and margin else (margin - 1) * late if margin else 0
        arrivals.append((at + delay, cost))
    return sorted(arrivals)


def most_in_a_window(arrivals, micros):
    """The largest sum in any half-open window: so in any fixed window, and in a sliding log."""
    most = total = first = 0
    for at, cost in arrivals:
        total += cost
        while arrivals[first][0] <= at - micros:
            total -= arrivals[first][1]
            first += 1
        most = max(most, total)
    return most


def least_in_a_bucket(arrivals, count, micros):
    """The fewest tokens of a bucket of ``count`` that refills in one period, in 1/period of a token."""
    tokens, counted_at, least = count * micros, 0, count * micros
    for at, cost in arrivals:
        tokens = min(count * micros, tokens + (at - counted_at) * count) - cost * micros
        counted_at, least = at, min(least, tokens)
    return least


def most_in_two_counters(arrivals, micros, phase):
    """The largest estimate of a sliding window with two counters, in 1/period of a call."""
    window, newer, older, most = None, 0, 0, 0
    for at, cost in arrivals:
        here = (at - phase) // micros
        if here != window:
            older, newer, window = newer if window is not None and here == window + 1 else 0, 0, here
        newer += cost
        most = max(most, newer * micros + older * (micros - (at - phase) % micros))
    return most


@pytest.mark.parametrize("way", ["random", "crowd", "alternate"])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [provider_limit, paced_limit])
def test_no_window_of_a_provider_sees_more_than_the_limit(with_margin, make, text, way):
    given, limit = provider_limit(f"{text} gcra"), make(text)
    margin = margin_of(given.micros, None) - given.micros
    for seed in range(tier.steps(10, 2)):
        chance = random.Random(f"{text} {way} {seed}")
        costs = [1] if make is paced_limit else [1, max(1, given.count // 3), given.count]
        arrivals = delayed(sent(limit, chance, costs, 6 * given.micros), margin, chance, way)
        assert most_in_a_window(arrivals, given.micros) <= given.count
        assert least_in_a_bucket(arrivals, given.count, given.micros) >= 0
        if make is paced_limit:  # evenly spaced: an estimate is right to one call
            for _ in range(5):
                estimate = most_in_two_counters(arrivals, given.micros, chance.randrange(given.micros))
                assert estimate < (given.count + 1) * given.micros


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("make", [provider_limit, paced_limit])
def test_at_least_93_percent_of_the_limit_is_used(with_margin, make, text):
    given, limit = provider_limit(f"{text} gcra"), make(text)
    calls = sent(limit, random.Random(text), [1], 16 * given.micros, pauses=0)
    start = calls[0][0] + given.micros  # after the first period
    used = sum(cost for at, cost in calls if start <= at < start + 14 * given.micros)
    assert 0.93 * 14 * given.count <= used <= 14 * given.count


def test_without_the_margin_the_limit_would_be_exceeded(with_margin):
    """The model is able to fail: the bucket that a text alone means, and a log without a margin."""
    chance, given = random.Random(1), provider_limit("60/minute gcra")
    arrivals = sent(given, chance, [1], 5 * given.micros)
    assert most_in_a_window(arrivals, given.micros) > 100
    bare = provider_limit("60/minute", 0)
    arrivals = delayed(sent(bare, chance, [1], 5 * given.micros), 2_000_000, chance, "crowd")
    assert most_in_a_window(arrivals, given.micros) > 60


def test_a_margin_is_a_part_of_the_period_within_bounds(with_margin):
    def margins(text):
        return margin_of(provider_limit(f"{text} gcra").micros, None) - provider_limit(f"{text} gcra").micros

    assert [margins(text) for text in ("5/second", "5/minute", "5/day", "1 per 100 milliseconds")] == [
        25_000, 1_500_000, 2_000_000, 20_000
    ]  # fmt: skip
    assert (
        str(provider_limit("300/minute", 1_000_000))
        == "300 per 62033899 microseconds sliding_window slices 60 debt 300"
    )
    assert str(provider_limit("300/minute burst 10")) == "300/minute burst 10"
    assert str(provider_limit(["unlimited", "300/minute gcra"])) == "300/minute"

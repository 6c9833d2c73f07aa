"""Laws that hold for every sequence of calls, sought by Hypothesis."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import Limit
from ratekeeper.algorithms import ALGORITHMS, BUCKETS, WINDOWS
from tests import tier

START = 10**9
SPRING = 1_774_695_600_000_000  # the noon before Berlin moves its clocks
counts = st.integers(1, 12)
periods = st.sampled_from([1, 3, 7, 10, 1_000, 999_983, 1_000_000])
calls = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 14)), min_size=1, max_size=40)


@st.composite
def limits(draw, algorithms=(*ALGORITHMS, *WINDOWS)):
    algorithm = draw(st.sampled_from(algorithms))
    if algorithm == "calendar_window":
        unit = draw(st.sampled_from(["day", "week", "month"]))
        timezone = draw(st.sampled_from(["UTC", "Europe/Berlin"]))
        return Limit(draw(counts), unit, window="calendar", timezone=timezone)
    burst = draw(st.none() | counts) if algorithm in BUCKETS else None
    slices = draw(st.integers(1, 5)) if algorithm == "sliding_window" else 1
    micros = draw(periods)
    return Limit(draw(counts), micros / 1_000_000, burst=burst, algorithm=algorithm, slices=slices)


def play(limit, calls):
    """Each call with its time, in fortieths of the period, and what became of it."""
    rule, state, now = limit.rule, limit.rule.EMPTY, START if limit.calendar is None else SPRING
    for step, cost in calls:
        now += step * limit.micros // 20
        before = state
        state, allowed = rule.decide(state, now, limit, cost)
        yield now, cost, allowed, before, state


def bound(limit, begin, end):
    """The most that may be admitted in the closed interval from begin to end."""
    span = Fraction(end - begin, limit.micros)
    if limit.algorithm in BUCKETS:
        return limit.burst + limit.count * span
    if limit.algorithm == "fixed_window":
        return limit.count * (end // limit.micros - begin // limit.micros + 1)
    if limit.algorithm == "calendar_window":
        return limit.count * (limit.calendar.index(end) - limit.calendar.index(begin) + 1)
    if limit.algorithm == "first_use_window":  # the next window starts after the instant ``begin``
        return limit.count * ((end - begin - 1) // limit.micros + 2)
    if limit.algorithm == "sliding_log":
        return limit.count * ((end - begin) // limit.micros + 1)
    if (end - begin + 1) * limit.slices <= limit.micros * (limit.slices - 1):
        return limit.count
    return limit.count * (1 + Fraction(end - begin + 1, limit.micros))


@given(limits(), calls)
@settings(max_examples=tier.examples(120))
def test_no_interval_admits_more_than_the_bound(limit, calls):
    admitted = [(now, cost) for now, cost, allowed, _, _ in play(limit, calls) if allowed]
    for first in range(len(admitted)):
        total = 0
        for now, cost in admitted[first:]:
            total += cost
            assert total <= bound(limit, admitted[first][0], now)


@given(limits(), calls)
@settings(max_examples=tier.examples(100))
def test_a_refusal_returns_the_very_state(limit, calls):
    for _, cost, allowed, before, after in play(limit, calls):
        assert allowed or after is before
        assert not (allowed and cost > limit.capacity)


@given(limits(), calls)
@settings(max_examples=tier.examples(100))
def test_retry_after_is_the_least_wait(limit, calls):
    rule = limit.rule
    for now, cost, allowed, _, state in play(limit, calls):
        if allowed:
            continue
        wait = rule.retry_after(state, now, limit, cost)
        if wait is None:
            assert cost > limit.capacity
            continue
        assert wait > 0
        assert not rule.decide(state, now + wait - 1, limit, cost)[1]
        assert rule.decide(state, now + wait, limit, cost)[1]


@given(limits(), calls)
@settings(max_examples=tier.examples(100))
def test_remaining_and_reset_after_are_true(limit, calls):
    rule = limit.rule
    for now, _, _, _, state in play(limit, calls):
        left = rule.remaining(state, now, limit)
        assert 0 <= left <= limit.capacity
        assert left == 0 or rule.decide(state, now, limit, left)[1]
        assert not rule.decide(state, now, limit, left + 1)[1]
        reset = rule.reset_after(state, now, limit)
        assert rule.debt(state, now + reset, limit) == 0
        assert reset == 0 or rule.debt(state, now + reset - 1, limit) > 0
        assert rule.remaining(state, now + reset, limit) == limit.capacity


@given(limits(), calls, st.integers(1, 10**7))
@settings(max_examples=tier.examples(120))
def test_a_clock_that_steps_back_grants_nothing(limit, calls, back):
    rule = limit.rule
    *_, (now, _, _, _, state) = play(limit, calls)
    left = rule.remaining(state, now, limit)
    earlier = max(0, now - back)
    assert rule.remaining(state, earlier, limit) <= left
    mended, allowed = rule.decide(state, earlier, limit, left + 1)
    assert not allowed
    # ... and locks nobody out for longer than the step, nor than one period more than a full recovery.
    worst = rule.reset_after(mended, earlier, limit)
    periods = {"sliding_window": 3, "fixed_window": 2, "first_use_window": 2, "calendar_window": 2, "sliding_log": 2}
    hours = 3_600_000_000 if limit.calendar is not None else 0  # that a day may have more
    if limit.algorithm in periods:
        assert worst <= periods[limit.algorithm] * limit.micros + hours
    else:
        assert worst <= -(-limit.ceiling // limit.drain)
    if limit.algorithm in BUCKETS:  # one unit is admitted within one recovery, and within one period
        longest = min(-(-limit.full // limit.drain), limit.micros + 1)
        assert rule.retry_after(mended, earlier, limit, 1) <= longest
    shortest = limit.micros * 27 // 31 - hours  # of a month
    if now - earlier <= (limit.slack if limit.algorithm in BUCKETS else shortest if hours else limit.micros - 1):
        assert worst <= rule.reset_after(state, now, limit) + now - earlier
    assert rule.decide(mended, earlier + worst, limit, limit.capacity)[1]


@given(limits(), calls, st.integers(1, 20), st.integers(0, 40))
@settings(max_examples=tier.examples(120))
def test_a_refund_never_credits_above_what_was_taken(limit, calls, cost, later):
    rule = limit.rule
    for now, taken, allowed, before, after in play(limit, calls):
        if not allowed:
            continue
        then = now + later * limit.micros // 20
        back = rule.refund(after, then, limit, cost, now)
        assert rule.remaining(after, then, limit) <= rule.remaining(back, then, limit) <= limit.capacity
        assert rule.remaining(back, then, limit) <= rule.remaining(after, then, limit) + cost
        undone = rule.refund(after, now, limit, taken, now)
        assert rule.remaining(undone, now, limit) == rule.remaining(before, now, limit)
        assert rule.reset_after(undone, now, limit) == rule.reset_after(before, now, limit)


@given(limits(algorithms=("gcra",)), calls)
@settings(max_examples=tier.examples(120))
def test_gcra_and_token_bucket_are_one(limit, calls):
    twin = Limit(limit.count, limit.period, burst=limit.burst, algorithm="token_bucket")
    for ours, theirs in zip(play(limit, calls), play(twin, calls), strict=True):
        assert ours == theirs


@given(limits(algorithms=("leaky_bucket",)), calls)
@settings(max_examples=tier.examples(100))
def test_turns_of_a_leaky_bucket_are_an_interval_apart(limit, calls):
    free = Fraction(0)  # the instant at which the one before has left
    for now, cost, allowed, _, state in play(limit, calls):
        if allowed:
            turn = now + limit.rule.delay(state, now, limit, cost)
            assert free <= turn < max(free, now) + 1
            free = max(free, Fraction(now)) + cost * Fraction(limit.micros, limit.count)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "first_use_window"])
def test_only_a_fixed_window_doubles_at_a_boundary(algorithm):
    limit = Limit(10, 60, algorithm=algorithm)
    boundary = 17 * limit.micros
    state, total = limit.rule.EMPTY, 0
    for now in (boundary - 1, boundary):
        for _ in range(20):
            state, allowed = limit.rule.decide(state, now, limit, 1)
            total += allowed
    assert total == (20 if algorithm == "fixed_window" else 10)

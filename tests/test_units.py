"""The notation: what is read, what is written back, and what is refused with which words."""

from datetime import timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import InvalidLimit, Limit, Limiter
from ratekeeper.algorithms import ALGORITHMS, BUCKETS
from ratekeeper.limit import MOST_DRAIN, MOST_TICKS, LimitSet, fraction_above, parse_limits
from ratekeeper.units import SPELLINGS, UNITS, format_period, parse_period, with_window

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "count", "micros", "burst"),
    [
        ("100/minute", 100, 60 * SECOND, 100),
        ("5 per 10 seconds", 5, 10 * SECOND, 5),
        ("10/s burst 20", 10, SECOND, 20),
        ("10/second burst 20", 10, SECOND, 20),
        ("1000/day", 1000, 86_400 * SECOND, 1000),
        ("7/week", 7, 604_800 * SECOND, 7),
        ("3/ms", 3, 1000, 3),
        ("  10 / 5s ", 10, 5 * SECOND, 10),
        ("1_000 PER Hour", 1000, 3600 * SECOND, 1000),
        ("1,000/1.5h", 1000, 5400 * SECOND, 1000),
        ("2 per 0.25 seconds", 2, 250_000, 2),
    ],
)
def test_text_is_read(text, count, micros, burst):
    limit = Limit.parse(text)
    assert (limit.count, limit.micros, limit.burst, limit.capacity) == (count, micros, burst, burst)
    assert limit.algorithm == "gcra"


@pytest.mark.parametrize("word", SPELLINGS)
def test_every_spelling_of_a_unit_is_read(word):
    assert Limit.parse(f"3 per 2 {word}").micros == 2 * SPELLINGS[word]
    assert Limit.parse(f"3/{word.upper()}").micros == SPELLINGS[word]


def test_units_reach_from_millisecond_to_week():
    assert [UNITS[name][0] for name in ("millisecond", "second", "minute", "hour", "day", "week")] == [
        1000, SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND, 604_800 * SECOND,
    ]  # fmt: skip


@st.composite
def any_limit(draw):
    algorithm = draw(st.sampled_from(list(ALGORITHMS)))
    burst = draw(st.none() | st.integers(1, 10**6)) if algorithm in BUCKETS else None
    slices = draw(st.integers(1, 100)) if algorithm == "sliding_window" else 1
    period = timedelta(microseconds=draw(st.integers(1, 10**12)))
    count = draw(st.integers(1, 10**6))
    if burst is not None and burst * period / count > timedelta(days=60 * 365):  # would take too long to recover
        burst = None
    return Limit(count, period, burst=burst, algorithm=algorithm, slices=slices)


@given(any_limit())
def test_a_limit_survives_the_way_to_text_and_back(limit):
    again = Limit.parse(str(limit))
    assert again == limit
    assert hash(again) == hash(limit)
    assert repr(limit) == f"Limit.parse({str(limit)!r})"


@given(any_limit())
def test_ticks_hold_the_rate_to_one_part_in_a_billion_and_never_in_favour_of_the_caller(limit):
    if limit.algorithm not in BUCKETS:
        return
    exact = Fraction(limit.micros, limit.count)
    held = Fraction(limit.unit, limit.drain)
    assert exact <= held < exact * (1 + Fraction(1, 10**9))
    assert limit.drain <= MOST_DRAIN
    assert limit.burst * limit.drain <= MOST_TICKS
    if limit.count <= 10_000 and limit.burst <= 10**6:
        assert held == exact


def test_an_odd_rate_beyond_the_words_is_rounded_against_the_caller():
    limit = Limit(99_999_989, 86_400, burst=99_999_989)
    exact = Fraction(limit.micros, limit.count)
    assert exact < Fraction(limit.unit, limit.drain) < exact * (1 + Fraction(1, 10**9))


@given(st.integers(1, 10**9), st.integers(1, 10**6), st.integers(1, 300))
def test_the_fraction_above_is_the_least(numerator, denominator, most):
    found = Fraction(*fraction_above(numerator, denominator, most))
    candidates = [Fraction(-(-numerator * of // denominator), of) for of in range(1, most + 1)]
    assert found == min(candidates)


def test_unlimited_is_a_limit_that_limits_nothing():
    limiter = Limiter("unlimited")
    assert str(Limit.parse(" Unlimited ")) == "unlimited"
    assert all(limiter.check("k", cost=10**12) for _ in range(100))
    decision = limiter.check("k")
    assert decision.limit == decision.remaining == 999_999_999_999_999
    assert (decision.retry_after, decision.reset_after, decision.delay) == (0.0, 0.0, 0.0)
    limiter.refund("k")
    limiter.reset("k")


def test_lists_hold_together_and_unlimited_adds_nothing():
    both = parse_limits(["10/second", "1000/hour"])
    assert isinstance(both, LimitSet)
    assert str(both) == "10/second, 1000/hour"
    assert parse_limits(["10/second", "unlimited", "10/second"]) == Limit.parse("10/second")
    assert parse_limits(["unlimited"]).is_unlimited
    assert parse_limits(both) is both


REFUSED = [
    ("", "limit '': expected a limit such as '100/minute', got nothing."),
    ("100", "limit '100': expected '/' or 'per' after the count, got nothing. "
            "Write for example '100/minute' or '5 per 10 seconds'."),
    ("ten/minute", "limit 'ten/minute': expected a count as a whole number, got 'ten'."),
    ("0/minute", "limit '0/minute': expected a count from 1 to 1,000,000,000,000, got 0. "
                 "To refuse everybody, take the route away."),
    ("-5/minute", "limit '-5/minute': expected a count as a whole number, got '-'."),
    ("1.5/minute", "limit '1.5/minute': expected a count as a whole number, got '1.5'."),
    ("10/minut", "limit '10/minut': expected a unit of time (millisecond, second, minute, hour, day, week), "
                 "got 'minut'. Did you mean 'minute'?"),
    ("100/minute;1000/hour", "limit '100/minute;1000/hour': expected one limit, got 2 in one text. "
                             "Write a list: ['100/minute', '1000/hour']."),
    ("9/hour, 5 per 2 s", "limit '9/hour, 5 per 2 s': expected one limit, got 2 in one text. "
                          "Write a list: ['9/hour', '5 per 2 s']."),
    ("10 per 0 seconds", "limit '10 per 0 seconds': expected a period from 1 microsecond to 400 days, got 0 seconds."),
    ("10 per 0.3 microseconds", "limit '10 per 0.3 microseconds': expected a period of whole microseconds, "
                                "got 0.3 microseconds."),
    ("10/s burst 0", "limit '10/s burst 0': expected a burst from 1 to 1,000,000,000,000, got 0. "
                     "To allow no bursts, write 'burst 1'."),
    ("10/s bust 3", "limit '10/s bust 3': expected 'burst', 'slices', 'debt', 'calendar', 'first-use' "
        "or an algorithm after the period, got 'bust'. "
                    "Did you mean 'burst'?"),
    ("10/s burst 3 burst 4", "limit '10/s burst 3 burst 4': expected 'burst' once, got it twice."),
    ("10/s gcra gcra", "limit '10/s gcra gcra': expected one algorithm, got gcra and gcra."),
    ("10/s gcra token_bucket", "limit '10/s gcra token_bucket': expected one algorithm, got gcra and token_bucket."),
    ("10 per 1.5 months", "limit '10 per 1.5 months': expected one month, as its length varies, got 1.5. "
        "Write a number of days, such as '90 days'."),
    ("10/s fixed_window burst 20", "limit '10/s fixed_window burst 20': expected no burst, as fixed_window admits its "
                                   "count at once, got burst 20. Use gcra, token_bucket or leaky_bucket for a burst."),
    ("10/s slices 3", "limit '10/s slices 3': expected slices with sliding_window only, got gcra."),
    ("9/s sliding_window slices 101", "limit '9/s sliding_window slices 101': expected slices from 1 to 100, got 101."),
    ("2000000/day sliding_log", "limit '2000000/day sliding_log': expected a count from 1 to 1,048,576, got 2000000."),
    ("1/week burst 1000000", "limit '1/week burst 1000000': expected a burst that is recovered within 35 years, "
                             "got 19178 years. Lower the burst."),
    ("999999999937/week", "limit '999999999937/week': expected a rate that can be held to one part in 10^9, got "
                          "999999999937 per 604800000000 microseconds. "
                          "Round the count to fewer digits, or lower the burst."),
    ("1000000000000 per 2 us", "limit '1000000000000 per 2 us': expected at most 67,108,864 per microsecond, "
                               "got 1,000,000,000,000 per 2."),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_is_impossible_is_refused_in_words_that_teach(text, message):
    with pytest.raises(InvalidLimit) as caught:
        Limit.parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("arguments", [
    (True, 60), (10.0, 60), ("10", 60), (None, 60), (10, None), (10, float("nan")), (10, float("inf")), (10, -1),
    (10, 0), (10, "fortnight"), (10, object()), (10**13, 60), (10, 400 * 86_400 + 1),
])  # fmt: skip
def test_a_limit_of_impossible_numbers_is_refused(arguments):
    with pytest.raises(InvalidLimit):
        Limit(*arguments)


def test_wrong_kinds_of_limits_are_refused():
    for wrong in (5, None, b"10/minute", [], [5], {"free": "10/minute"}, object()):
        with pytest.raises(InvalidLimit):
            Limiter(wrong)
    with pytest.raises(InvalidLimit, match="Did you mean 'token_bucket'"):
        Limit(10, 60, algorithm="tokenbucket")
    with pytest.raises(InvalidLimit, match="expected one algorithm"):
        Limiter("10/s gcra", algorithm="fixed_window")
    with pytest.raises(InvalidLimit, match="expected its own algorithm"):
        Limiter(Limit(10, 1), algorithm="fixed_window")
    assert Limiter("10/s", algorithm="fixed_window").limits.algorithm == "fixed_window"


def test_a_limit_reads_a_text_too():
    assert Limit("10/s burst 20", algorithm="token_bucket") == Limit(10, 1, burst=20, algorithm="token_bucket")
    assert Limit(" unlimited ").is_unlimited
    assert Limit(Limit("10/s")) == Limit(10, 1)
    with pytest.raises(InvalidLimit) as caught:
        Limit("10/s", burst=20)
    assert str(caught.value) == (
        "limit '10/second': expected burst, slices and debt in the text, got them beside it. "
        "Write '10/second burst 20', or give the period as well."
    )
    with pytest.raises(InvalidLimit, match="expected text such as '100/minute' or a Limit, got 10"):
        Limit(10)


def test_a_limit_is_frozen():
    limit = Limit.parse("10/second")
    with pytest.raises(AttributeError, match="make a new Limit"):
        limit.count = 5
    with pytest.raises(AttributeError):
        del limit.count


def test_periods_take_seconds_timedeltas_and_text():
    assert Limit(3, 1.5) == Limit(3, timedelta(seconds=1.5)) == Limit(3, "1.5 seconds") == Limit(3, "1500ms")
    assert Limit(3, 60).period == 60.0
    assert format_period(90 * SECOND) == "90 seconds"


@pytest.mark.parametrize("text", ["minute burst 3", "10..5 seconds", "1.2.3 seconds"])
def test_a_period_is_a_period_and_nothing_else(text):
    with pytest.raises(InvalidLimit):
        Limit(10, text)


def test_a_period_without_a_calendar_is_not_a_month():
    with pytest.raises(InvalidLimit, match="Its length varies: write a number of days, such as '30 days'"):
        parse_period("2 months", "max_delay")


@pytest.mark.parametrize("text", ["unlimited", "5 concurrent for 10 seconds", ""])
def test_what_has_no_window_gets_none(text):
    assert with_window(text, "calendar", "Europe/Berlin") == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"debt": -1}, "expected a debt from 0 to 1,000,000,000,000, got -1"),
        ({"debt": 1.5}, "expected a debt from 0 to 1,000,000,000,000, got 1.5"),
        ({"debt": True}, "expected a debt from 0 to 1,000,000,000,000, got True"),
        ({"debt": 1, "algorithm": "concurrency"}, "expected no debt, as places in flight are never owed, got debt 1"),
    ],
)
def test_an_impossible_debt_is_refused(arguments, message):
    with pytest.raises(InvalidLimit, match=message):
        Limit(5, 60, **arguments)

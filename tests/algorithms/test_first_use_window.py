"""Windows that start with the first call of a key."""

import pytest

from ratekeeper import InvalidLimit, Limit, Limiter
from ratekeeper.algorithms import first_use_window as rule
from ratekeeper.testing import FakeClock


def test_each_key_has_windows_of_its_own():
    clock = FakeClock(start=100.5)
    limiter = Limiter("2/minute first-use", clock=clock)
    assert [bool(limiter.check("a")) for _ in range(3)] == [True, True, False]
    clock.advance(59)
    assert limiter.check("b", 2)
    assert limiter.check("a").retry_after == 1.0
    clock.advance(1)
    assert limiter.check("a", 2)
    assert limiter.check("b").retry_after == 59.0


def test_the_next_window_starts_with_the_next_call_and_not_with_the_end_of_the_last():
    clock = FakeClock()
    limiter = Limiter("1/second first-use", clock=clock)
    assert limiter.check("a")
    clock.advance(1.7)
    assert limiter.check("a")
    clock.advance(0.5)
    assert limiter.check("a").retry_after == 0.5


@pytest.mark.parametrize(
    ("back", "wait"), [(1, 10), (999_999, 1_000_008), (1_000_000, 1_000_009), (1_000_001, 1_000_000), (10**7, 10**6)]
)
def test_a_step_back_keeps_the_window_for_up_to_a_period(back, wait):
    limit, start = Limit.parse("3/second first-use"), 10**12
    state, _ = rule.decide(rule.EMPTY, start, limit, 3)
    now = start + 999_991 - (back - 1)
    if back > 1_000_000:
        now = start - 1_000_000 - (back - 1_000_001)
    state, allowed = rule.decide(state, now, limit, 1)
    assert not allowed
    assert rule.retry_after(state, now, limit, 1) <= max(wait, 2_000_000 - 1)
    assert rule.decide(state, now + rule.retry_after(state, now, limit, 1), limit, 3)[1]


def test_a_refund_of_all_ends_the_window():
    clock = FakeClock()
    limiter = Limiter("5/second first-use", clock=clock)
    limiter.check("a", 3)
    clock.advance(0.4)
    limiter.refund("a", 3)
    assert limiter.peek("a").reset_after == 0.0
    assert limiter.check("a").reset_after == 1.0


def test_counts_too_large_for_a_packed_slot():
    clock = FakeClock(start=1_790_000_000.0)
    limiter = Limiter("1000000000000/day first-use", clock=clock)
    assert limiter.check("a", 10**12 - 1).remaining == 1
    assert limiter.check("a", 2).retry_after == 86_400.0
    clock.advance(86_400)
    assert limiter.check("a", 10**12)


def test_a_bucket_that_is_refilled_by_the_interval_is_full_one_period_after_its_first_call():
    clock = FakeClock(start=7.25)
    limiter = Limiter("3/second token_bucket refill interval", clock=clock)
    assert limiter.check("a")
    clock.advance(0.999999)
    assert limiter.check("a").remaining == 1  # nothing drips in
    clock.advance(0.000001)
    assert limiter.check("a").remaining == 2
    same = {"3/second refill interval", "3/second refill interval token_bucket", "3/second first-use"}
    assert {Limit.parse(text) for text in same} == {Limit.parse("3/second token_bucket refill interval")}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("3/second refill",
         "expected 'interval' after 'refill', got nothing. Without 'refill' a bucket is refilled steadily."),
        ("3/second refill daily",
         "expected 'interval' after 'refill', got 'daily'. Without 'refill' a bucket is refilled steadily."),
        ("3/second gcra refill interval", "expected 'refill' with token_bucket only, got gcra."),
        ("3/second refill interval gcra", "expected one algorithm, got first_use_window and gcra."),
        ("3/second burst 9 refill interval",
         "expected no burst, as first_use_window admits its count at once, got burst 9. "
         "Use gcra, token_bucket or leaky_bucket for a burst."),
    ],
)  # fmt: skip
def test_other_refills_are_refused(text, error):
    with pytest.raises(InvalidLimit) as caught:
        Limit.parse(text)
    assert str(caught.value) == f"limit {text!r}: {error}"

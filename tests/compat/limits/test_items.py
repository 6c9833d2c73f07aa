"""Rate limit items: the same texts, keys and order as in ``limits`` itself."""

import limits as original
import pytest

from ratekeeper.compat.limits import items

TEXTS = [
    "1/second", "1 per second", "10 per 2 minutes", "10/2minute", "5 per 1 hour", "7/DAY", "3 per month", "2/years",
    " 4 / hours ", "100 per day, 10 per hour", "1/second;2/minute|3/hour", "0/minute",
]  # fmt: skip
MISTAKES = ["", "x", "5", "5/", "5/fortnight", "per minute", "-1/minute", "5/minute,", "1.5/minute", None, 5]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_means_what_it_meant(text):
    ours, theirs = items.parse_many(text), original.parse_many(text)
    for mine, other in zip(ours, theirs, strict=True):
        assert repr(mine) == repr(other)
        assert mine.get_expiry() == other.get_expiry()
        assert mine.key_for("a", b"b", 3, 4.5) == other.key_for("a", b"b", 3, 4.5)
        assert tuple(mine.GRANULARITY) == tuple(other.GRANULARITY)
    assert repr(items.parse(text)) == repr(original.parse(text))


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_a_value_error_as_it_was(text):
    for parse in (items.parse_many, original.parse_many):
        with pytest.raises(ValueError, match=r"couldn't parse rate limit string|no granularity matched"):
            parse(text)


def test_items_are_compared_as_they_were():
    first, second = items.RateLimitItemPerMinute(5), items.RateLimitItemPerMinute(5, 1, "OTHER")
    assert first == second
    assert hash(first) != hash(second)
    assert first != items.RateLimitItemPerMinute(5, 2)
    assert first != "5 per 1 minute"
    assert items.RateLimitItemPerSecond(5) < first < items.RateLimitItemPerYear(1)
    assert items.RateLimitItemPerHour(1) >= first
    assert items.RateLimitItemPerMinute.check_granularity_string("Minutes")
    assert not items.RateLimitItemPerMinute.check_granularity_string("hour")

"""Files of envoyproxy/ratelimit: what they may say, and every message in full."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Limiter
from ratekeeper.errors import InvalidRules
from ratekeeper.service.envoy.config import Descriptors, load
from ratekeeper.testing import FakeClock

CONFIG = Path(__file__).parent / "ratelimit.yaml"

DAY = 86_400


def rated(**rate):
    return {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"requests_per_unit": 1, **rate}}]}


MISTAKES = [
    ({"descriptors": []}, "x.yaml: domain: expected text. It is the domain that the Envoy filter sends."),
    (
        {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "minut", "requests_per_unit": 1}}]},
        "x.yaml: descriptors[0].rate_limit.unit: expected one of second, minute, hour, day, week, month, year, "
        "got 'minut'. Did you mean 'minute'?",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": -1}}]},
        "x.yaml: descriptors[0].rate_limit.requests_per_unit: expected a whole number from 0 to 4,294,967,295, got -1.",
    ),
    (
        rated(unit="month", window="calender"),
        "x.yaml: descriptors[0].rate_limit.window: expected 'calendar' or 'first-use', got 'calender'. "
        "Did you mean 'calendar'?",
    ),
    (
        rated(unit="month", timezone="Europe/Berlin"),
        "x.yaml: descriptors[0].rate_limit.timezone: expected window: calendar beside it, got 'Europe/Berlin'.",
    ),
    (
        rated(unit="month", window="calendar", algorithm="gcra"),
        "x.yaml: descriptors[0].rate_limit.window: expected fixed_window or no algorithm beside it, got 'gcra'.",
    ),
    (
        rated(unit="hour", window="calendar"),
        "x.yaml: descriptors[0].rate_limit: expected a limit that is possible. limit 1 per 'hour': expected "
        "'day', 'week', 'month' or 'year' as the period of a calendar window, got another. Shorter periods start at "
        "full hours, minutes and seconds with algorithm='fixed_window'.",
    ),
    (
        {"domain": "d", "descriptors": [{"key": "a"}, {"key": "a"}]},
        "x.yaml: descriptors[1]: expected a key of its own, got 'a'. It stands here twice.",
    ),
]


@pytest.mark.parametrize(("found", "message"), MISTAKES)
def test_a_mistake_in_the_file_is_an_error(found, message):
    with pytest.raises(InvalidRules) as error:
        Descriptors().add(found, "x.yaml")
    assert str(error.value) == message


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), min_size=1, max_size=3))
def test_different_descriptors_have_different_keys(entries):
    """The service that we replace joins parts by '_': two descriptors could share a counter."""
    from ratekeeper.keys import encode

    tree = load(CONFIG)
    one, other = tree.find("edge", [("tenant", "a_b")]), tree.find("edge", [("tenant", "a")])
    assert one is not None
    assert other is not None
    assert encode(one[1]) != encode(other[1])
    tree.find("edge", entries)


def test_a_folder_of_files_is_taken_together(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\ndescriptors: [{{key: a}}]\n")
    assert set(load(tmp_path).domains) == {"one", "two"}


def limit_of(**rate):
    descriptors = Descriptors()
    descriptors.add(rated(**rate), "x.yaml")
    (found,) = descriptors.rates
    return found.limit


@pytest.mark.parametrize(("unit", "days"), [("month", 30), ("year", 365)])
def test_a_month_has_30_days_and_a_year_365_from_1970_on_as_in_envoyproxy_ratelimit(unit, days):
    start = 650 * 30 * DAY if unit == "month" else 55 * 365 * DAY
    clock = FakeClock(start + days * DAY - 1)
    limiter = Limiter(limit_of(unit=unit), clock=clock)
    assert limiter.check("a").allowed
    decision = limiter.check("a")
    assert (decision.allowed, decision.retry_after) == (False, 1.0)
    clock.advance(1)
    assert limiter.check("a").allowed


@pytest.mark.parametrize(
    ("rate", "limit"),
    [
        ({"unit": "month", "window": "calendar"}, "1/month"),
        ({"unit": "MONTH", "window": "calendar", "timezone": "Europe/Berlin"}, "1/month calendar Europe/Berlin"),
        ({"unit": "year", "window": "calendar"}, "1/year"),
        ({"unit": "day", "window": "calendar", "timezone": "Asia/Tokyo"}, "1/day calendar Asia/Tokyo"),
        ({"unit": "month", "window": "first-use"}, "1 per 30 days first-use"),
        ({"unit": "month"}, "1 per 30 days fixed_window"),
        ({"unit": "year"}, "1 per 365 days fixed_window"),
        ({"unit": "week"}, "1/week fixed_window"),
    ],
)
def test_windows_of_a_rate_limit(rate, limit):
    assert str(limit_of(**rate)) == limit

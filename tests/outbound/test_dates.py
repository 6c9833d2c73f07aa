"""Dates and waits in every form that servers send."""

import email.utils
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.outbound.dates import LONGEST, http_date, wait_until

NOW = 1_794_821_400.0  # Mon, 16 Nov 2026 09:30:00 GMT


@given(st.datetimes(datetime(1970, 1, 2), datetime(2068, 1, 1), timezones=st.just(UTC)))
def test_the_three_forms_of_an_http_date(instant):
    instant = instant.replace(microsecond=0)
    assert http_date(email.utils.format_datetime(instant, usegmt=True), NOW) == instant.timestamp()
    assert http_date(instant.strftime("%a %b ") + f"{instant.day:2d}" + instant.strftime(" %H:%M:%S %Y"), NOW) == (
        instant.timestamp()
    )
    if 1977 <= instant.year <= 2076:
        assert http_date(instant.strftime("%A, %d-%b-%y %H:%M:%S GMT"), NOW) == instant.timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("999999999", LONGEST),
        ("1794821460", 60.0),
        ("1794821460.5", 60.5),
        ("1794821460000", 60.0),
        ("6m0s", 360.0),
        ("350ms", 0.35),
        ("1h2m3.5s", 3723.5),
        ("2026-11-16T09:31:00Z", 60.0),
        ("2026-11-16T11:31:00+02:00", 60.0),
        ("2026-11-16T09:01:00.125-00:30", 60.125),
        ("Mon, 16 Nov 2026 09:31:00 GMT", 60.0),
        ("1000000000", 0.0),
        ("-1", None),
        ("10 apples", None),
    ],
)
def test_a_reset_is_a_wait_or_an_instant_by_its_shape(text, seconds):
    assert wait_until(text, NOW) == seconds

"""Time stamps of logs."""

from datetime import datetime

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.lab.timestamps import parse_stamp


@given(st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_stamps(stamp, minutes):
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}{abs(minutes) % 60:02}"
    text = stamp.strftime(f"%d/%b/%Y:%H:%M:%S {offset}")
    expected = datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
    local, distance = parse_stamp(text)
    assert local - distance == int(expected.timestamp()) * 1_000_000

"""Timestamps of access logs and of JSON lines -> microseconds since 1970."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from ratekeeper.errors import shown
from ratekeeper.units import SECOND

LATEST = 1 << 52  # in the year 2112: the algorithms count no further
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = {name: number for number, name in enumerate(NAMES, 1)}
STAMP = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)? ([+-])(\d\d):?(\d\d)")


def parse_stamp(text: str) -> tuple[int, int]:
    """``01/Aug/1995:00:00:01 -0400`` -> the written time and its offset from UTC, in microseconds."""
    match = STAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, month, year, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    if month not in MONTHS:
        raise ValueError(text)
    whole_second = min(int(second), 59)  # a leap second has the number 60
    local = datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), whole_second, tzinfo=UTC) - EPOCH
    offset = (int(hours) * 60 + int(minutes)) * 60 * SECOND * (-1 if sign == "-" else 1)
    return local // timedelta(microseconds=1) + int((fraction or "0").ljust(6, "0")), offset


def instant_of_stamp(text: str, zones: bool) -> int:
    """Return the instant of a timestamp, by its zone or as if it were UTC."""
    local, offset = parse_stamp(text)
    at = local - offset if zones else local
    if not 0 <= at < LATEST:
        raise ValueError(text)
    return at


def instant_of(value: Any, zones: bool) -> int:
    """Read the time of a JSON line: seconds or milliseconds since 1970, ISO 8601, or the form of access logs."""
    at: int
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"no readable time: {value}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        at = round(value * (1000 if abs(value) > 10**11 else SECOND))
    elif not isinstance(value, str):
        raise ValueError(f"no time: expected a number or text, got {shown(value, 30)}")
    else:
        try:
            local, offset = parse_stamp(value)
        except ValueError:
            try:
                stamp = datetime.fromisoformat(value.strip())
            except ValueError:
                raise ValueError(f"no readable time: {shown(value, 40)}") from None
            aware = stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)
            offset = (aware.utcoffset() or timedelta()) // timedelta(microseconds=1)
            local = (aware - EPOCH) // timedelta(microseconds=1) + offset
        at = local - offset if zones else local
    if not 0 <= at < LATEST:
        raise ValueError(f"expected a time between 1970 and 2112, got {shown(value, 40)}")
    return at

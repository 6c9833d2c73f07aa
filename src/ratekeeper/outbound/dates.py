"""Dates and waits, in every form that servers send, as seconds.

Law: any text gives a number or None, never an exception.  The shape of the text alone decides how it is read:

    120, 1.5            a wait in seconds; Unix time from 10^9, and Unix time in milliseconds from 10^12
    1m30s, 350ms        a wait, as Go writes durations
    2026-11-16T09:30:00Z                RFC 3339
    Mon, 16 Nov 2026 09:30:00 GMT       the three forms of an HTTP date (RFC 9110, section 5.6.7);
    Monday, 16-Nov-26 09:30:00 GMT      the year of two digits is the one within 50 years of the present
    Mon Nov 16 09:30:00 2026

No clock, no I/O.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

LONGEST = 400 * 86_400.0  # seconds; a longer wait is cut to this
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
NUMBER = re.compile(r"\d{1,18}(\.\d{1,9})?", re.A)
GO = re.compile(r"(?:\d{1,9}(?:\.\d{1,9})?(?:ms|us|µs|ns|h|m|s))+", re.A)
GO_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|us|µs|ns|h|m|s)", re.A)
GO_UNITS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "µs": 1000, "ns": 1}
TIME = r"(\d\d):(\d\d):(\d\d)"
IMF = re.compile(rf"[a-z]{{3}}, (\d\d) ([a-z]{{3}}) (\d{{4}}) {TIME} (?:gmt|utc)", re.A | re.I)
RFC850 = re.compile(rf"[a-z]{{6,9}}, (\d\d)-([a-z]{{3}})-(\d\d) {TIME} (?:gmt|utc)", re.A | re.I)
ASCTIME = re.compile(rf"[a-z]{{3}} ([a-z]{{3}}) ([ \d]\d) {TIME} (\d{{4}})", re.A | re.I)
RFC3339 = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)[t ]{TIME}(\.\d{{1,9}})?(z|[+-]\d\d:\d\d)", re.A | re.I)


def http_date(text: str, present: float) -> float | None:
    """An HTTP date as Unix time; ``present`` decides the century of a year of two digits."""
    if match := IMF.fullmatch(text):
        day, month, year, *clock = match.groups()
    elif match := RFC850.fullmatch(text):
        day, month, short, *clock = match.groups()
        century = datetime.fromtimestamp(bounded(present), UTC).year
        full = century - century % 100 + int(short)
        year = str(full - 100 if full > century + 50 else full + 100 if full <= century - 50 else full)
    elif match := ASCTIME.fullmatch(text):
        month, day, *clock, year = match.groups()
    else:
        return None
    return unix(year, month_number(month), day, clock)


def rfc3339(text: str) -> float | None:
    match = RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, *clock, fraction, zone = match.groups()
    instant = unix(year, int(month), day, clock)
    if instant is None:
        return None
    instant += float(fraction or 0)
    if zone in "zZ":
        return instant
    offset = int(zone[1:3]) * 3600 + int(zone[4:6]) * 60
    return instant + offset if zone[0] == "-" else instant - offset


def unix(year: str, month: int, day: str, clock: list[str]) -> float | None:
    hour, minute, second = [int(part) for part in clock]
    try:  # datetime has no leap seconds: 60 counts as 59
        return datetime(int(year), month, int(day), hour, minute, min(second, 59), tzinfo=UTC).timestamp()
    except ValueError:
        return None


def month_number(name: str) -> int:
    """1 to 12; 0 for an unknown name, which makes the date invalid."""
    return MONTHS.index(name.lower()) + 1 if name.lower() in MONTHS else 0


def bounded(present: float) -> float:
    return min(max(present, 0.0), 2.0**37)


def go_duration(text: str) -> float | None:
    if not GO.fullmatch(text):
        return None
    return sum(float(amount) * GO_UNITS[unit] for amount, unit in GO_PART.findall(text)) / 1e9


def wait_until(text: str, present: float) -> float | None:
    """Seconds from ``present``, the server's Unix time, until the instant in ``text``; 0.0 if that has passed."""
    text = text.strip()
    if len(text) > 64:
        return LONGEST if text.isascii() and text.isdecimal() else None
    if NUMBER.fullmatch(text):
        value = float(text)
        if value >= 1e12:
            value /= 1000
        return clamp(value - present if value >= 1e9 else value)
    if text.isascii() and text.isdecimal():
        return LONGEST
    wait = go_duration(text)
    if wait is not None:
        return clamp(wait)
    instant = http_date(text, present)
    if instant is None:
        instant = rfc3339(text)
    return None if instant is None else clamp(instant - present)


def retry_after(text: str, present: float) -> float | None:
    """Seconds of a Retry-After: a wait of any length, or a date.  A number here is never Unix time."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return clamp(float(text[:18])) if len(text) <= 18 else LONGEST
    if len(text) > 64:
        return None
    if NUMBER.fullmatch(text):  # the RFC has no fractions, but servers send them
        return clamp(float(text))
    instant = http_date(text, present)
    return None if instant is None else clamp(instant - present)


def clamp(seconds: float) -> float:
    return min(max(seconds, 0.0), LONGEST)

"""Where windows begin: zones, days of 23 and 25 hours, midnights that do not exist."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ratekeeper import InvalidLimit, Limit
from ratekeeper.calendars import Calendar, calendar_of


def micros(*civil, zone="UTC"):
    return round(datetime(*civil, tzinfo=ZoneInfo(zone)).timestamp()) * 1_000_000


def window(text, instant):
    """The instants at which the window of ``instant`` begins and ends, in the zone of the limit."""
    calendar = Limit.parse(text).calendar
    index = calendar.index(instant)
    zone = ZoneInfo(calendar.timezone)
    return [
        datetime.fromtimestamp(calendar.start(each) / 1e6, zone).replace(tzinfo=None).isoformat()
        for each in (index, index + 1)
    ]


@pytest.mark.parametrize(
    ("text", "civil", "begins", "ends"),
    [
        ("9/day calendar", (2026, 11, 18, 4), "2026-11-18T00:00:00", "2026-11-19T00:00:00"),
        ("9/week calendar", (2026, 11, 18, 4), "2026-11-16T00:00:00", "2026-11-23T00:00:00"),  # Monday to Monday
        ("9/month", (2028, 2, 29, 4), "2028-02-01T00:00:00", "2028-03-01T00:00:00"),
        ("9/year", (2028, 2, 29, 4), "2028-01-01T00:00:00", "2029-01-01T00:00:00"),
        ("9/day calendar Europe/Berlin", (2026, 11, 17, 23), "2026-11-18T00:00:00", "2026-11-19T00:00:00"),
        ("9/month calendar Asia/Tokyo", (2026, 1, 31, 15), "2026-02-01T00:00:00", "2026-03-01T00:00:00"),
        ("9/day calendar", (1970, 1, 1), "1970-01-01T00:00:00", "1970-01-02T00:00:00"),
        ("9/week calendar", (1970, 1, 1), "1970-01-01T00:00:00", "1970-01-05T00:00:00"),
        ("9/year", (2112, 6, 1), "2112-01-01T00:00:00", "2113-01-01T00:00:00"),
    ],
)  # fmt: skip
def test_windows_are_those_of_the_calendar(text, civil, begins, ends):
    assert window(text, micros(*civil)) == [begins, ends]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", (2026, 3, 29), 23),
        ("Europe/Berlin", (2026, 10, 25), 25),
        ("Europe/Berlin", (2026, 6, 1), 24),
        ("Australia/Lord_Howe", (2026, 4, 5), 24.5),
        ("America/Santiago", (2026, 9, 6), 23),  # the clocks are moved at midnight: the day begins at one o'clock
        ("Asia/Beirut", (2026, 10, 24), 25),  # and here the hour before midnight comes twice
        ("Asia/Kathmandu", (2026, 3, 29), 24),
    ],
)
def test_a_day_has_23_to_25_hours(zone, day, hours):
    calendar = Limit.parse(f"1/day calendar {zone}").calendar
    index = calendar.index(micros(*day, 12, zone=zone))
    assert (calendar.start(index + 1) - calendar.start(index)) / 3.6e9 == hours


def test_a_day_that_a_zone_left_out_has_no_window():
    """Samoa went from the 29th to the 31st of December 2011."""
    calendar = Limit.parse("1/day calendar Pacific/Apia").calendar
    before, after = (calendar.index(micros(2011, 12, day, 12, zone="Pacific/Apia")) for day in (29, 31))
    assert after == before + 1
    assert all(first < second for first, second in zip(calendar.edges, calendar.edges[1:], strict=False))


@pytest.mark.parametrize("zone", ["Europe/Berlin", "Asia/Gaza", "Africa/Casablanca", "America/Havana"])
def test_every_day_begins_at_its_midnight(zone):
    """The list is made a week at a time; here each day is asked for."""
    calendar, info = Limit.parse(f"1/day calendar {zone}").calendar, ZoneInfo(zone)
    edges = set(calendar.edges)
    for number in range(0, 366 * 30, 3):
        day = date(2011, 1, 1) + timedelta(days=number)
        midnight = datetime(day.year, day.month, day.day, tzinfo=info)
        assert round(midnight.astimezone(UTC).timestamp()) * 1_000_000 in edges, day


def test_edges_around_an_instant_are_those_of_three_windows():
    calendar = Limit.parse("1/month").calendar
    expected = tuple(micros(2026, month, 1) for month in (1, 2, 3, 4))
    assert calendar.around(micros(2026, 2, 14)) == expected
    assert calendar.around(0)[0] == 0  # there is no window before the first


def test_a_calendar_is_made_once():
    assert calendar_of("day", "Europe/Berlin", "here") is Limit.parse("3/day calendar Europe/Berlin").calendar
    assert repr(Calendar("day", "UTC")) == "<Calendar of each day in UTC>"


@pytest.mark.parametrize(
    ("zone", "advice"),
    [
        ("Europe/Berln", " Did you mean 'Europe/Berlin'?"),
        ("berlin", " Did you mean 'Europe/Berlin'?"),
        ("EUROPE/BERLIN", " Did you mean 'Europe/Berlin'?"),
        ("../../etc/passwd", ""),
        ("Mars/Phobos_Crater_Base", ""),
    ],
)
def test_an_unknown_zone_is_refused_with_the_nearest(zone, advice):
    with pytest.raises(InvalidLimit) as caught:
        Limit(3, "day", window="calendar", timezone=zone)
    assert str(caught.value) == (
        f"limit 3 per 'day': expected a time zone such as 'Europe/Berlin', got {zone!r}.{advice}"
    )


def test_a_machine_without_zones_says_what_to_install(monkeypatch):
    monkeypatch.setattr("zoneinfo.available_timezones", set)
    with pytest.raises(InvalidLimit, match="has no time zones"):
        Limit.parse("3/day calendar Europe/Nowhere")


def test_utc_needs_no_zones(monkeypatch):
    monkeypatch.setattr("zoneinfo.ZoneInfo", None)
    assert Calendar("month", "UTC").index(micros(2026, 11, 18)) == 56 * 12 + 10

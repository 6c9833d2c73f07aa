"""Calendars: where the days, weeks, months and years of a time zone begin, in microseconds since 1970.

Time zones and the lengths of months are known only here.  The rule of ``calendar_window`` and its twins get the edges
of the windows as numbers: C all of them, Redis those around its present instant.  No clock.
"""

from __future__ import annotations

from ratekeeper.errors import InvalidLimit, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from datetime import date

DAY = 86_400
LAST_YEAR = 2112  # instants are below 2^52 microseconds, which is in that year
WEEK = 7  # days
EPOCH = 719_163  # the ordinal of 1970-01-01
# The longest length of each, in days, without the hour that the end of summer time adds.
UNITS = {"day": 1, "week": 7, "month": 31, "year": 366}
calendars: dict[tuple[str, str], Calendar] = {}


class Calendar:
    """The days, weeks, months or years of one time zone.  Weeks begin on Monday."""

    __slots__ = ("_edges", "_packed", "timezone", "unit")

    def __init__(self, unit: str, timezone: str) -> None:
        self.unit = unit
        self.timezone = timezone
        self._edges: array[int] | None = None
        self._packed: bytes | None = None

    @property
    def edges(self) -> array[int]:
        """Where each window begins: the first holds the instant 0.  Made when it is first needed, once a process."""
        if self._edges is None:
            from array import array

            self._edges = array("Q", edges_of(self.unit, self.timezone))
        return self._edges

    @property
    def packed(self) -> bytes:
        """The edges as the C core reads them."""
        if self._packed is None:
            self._packed = self.edges.tobytes()
        return self._packed

    def index(self, now: int) -> int:
        """The number of the window that holds ``now``."""
        from _bisect import bisect_right

        return min(bisect_right(self.edges, now), len(self.edges) - 2) - 1

    def start(self, index: int) -> int:
        """The instant at which a window begins, and the one before it ends."""
        return self.edges[min(index, len(self.edges) - 1)]

    def around(self, now: int) -> tuple[int, int, int, int]:
        """The edges of the window that holds ``now``, of the one before it and of the one after it."""
        index = max(1, self.index(now))
        first, second, third, fourth = self.edges[index - 1 : index + 3]
        return first, second, third, fourth

    @property
    def longest(self) -> int:
        """The microseconds of the longest window."""
        hours = 0 if self.timezone == "UTC" else 24  # a zone may repeat up to a day when it changes its offset
        return (UNITS[self.unit] * DAY + hours * 3_600) * 1_000_000

    def __repr__(self) -> str:
        return f"<Calendar of each {self.unit} in {self.timezone}>"


def calendar_of(unit: str, timezone: str, place: str) -> Calendar:
    """The calendar of a unit and a zone: the same object for the same words."""
    calendar = calendars.get((unit, timezone))
    if calendar is None:
        if timezone != "UTC":
            zone_of(timezone, place)
        calendar = calendars.setdefault((unit, timezone), Calendar(unit, timezone))
    return calendar


def zone_of(name: str, place: str):  # type: ignore[no-untyped-def]
    """The ZoneInfo of that name, or an error that says what to write."""
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError):
        pass
    names = available_timezones()
    if not names:
        raise InvalidLimit(
            f"{place}: expected the time zone {shown(name)} to be known here, but this machine has no time zones. "
            "Install the package tzdata."
        )
    folded = {each.lower(): each for each in names}
    near = folded.get(str(name).lower()) or nearest(str(name), names)
    advice = f" Did you mean {near!r}?" if near else ""
    raise InvalidLimit(f"{place}: expected a time zone such as 'Europe/Berlin', got {shown(name)}.{advice}")


def nearest(name: str, names: set[str]) -> str | None:
    from difflib import get_close_matches

    ends = {each.rpartition("/")[2].lower(): each for each in sorted(names)}
    by_city = ends.get(name.rpartition("/")[2].lower())
    close = get_close_matches(name, names, n=1)
    return by_city or (close[0] if close else None)


def edges_of(unit: str, timezone: str) -> list[int]:
    """The microseconds at which each window begins, from the one that holds 1970 on; strictly rising."""
    seconds = [day * DAY for day in days_of(unit)] if timezone == "UTC" else midnights(unit, timezone)
    edges = [0]
    for second in seconds:  # a day that a zone left out has no length, and no window
        if second * 1_000_000 > edges[-1]:
            edges.append(second * 1_000_000)
    return edges


def days_of(unit: str) -> list[int]:
    """The first day of each window, in days since 1970."""
    from datetime import date

    if unit == "day":
        return list(range(-1, date(LAST_YEAR + 2, 1, 1).toordinal() - EPOCH))
    if unit == "week":  # 1970 began on a Thursday
        return list(range(-3, date(LAST_YEAR + 2, 1, 1).toordinal() - EPOCH, 7))
    months = range(1, 13) if unit == "month" else (1,)
    firsts: list[date] = [date(year, month, 1) for year in range(1969, LAST_YEAR + 4) for month in months]
    return [first.toordinal() - EPOCH for first in firsts]


def midnights(unit: str, timezone: str) -> list[int]:
    """The second at which each window begins in a time zone.

    A midnight that does not exist begins when the clock is moved over it; of two midnights the first one counts.
    """
    from datetime import datetime

    zone = zone_of(timezone, "limit")
    days = days_of(unit)

    def midnight(day: int) -> int:
        return int(datetime.fromordinal(day + EPOCH).replace(tzinfo=zone).timestamp())

    if unit != "day":
        return [midnight(day) for day in days]
    # To ask the zone about each day takes a third of a second.  Where the offset is the same at both ends of a week,
    # it does not change in between: no zone of the database has changed it and changed it back so soon since 1970.
    seconds: list[int] = []
    first = midnight(days[0])
    for at in range(0, len(days) - WEEK, WEEK):
        week, last = days[at : at + WEEK], midnight(days[at + WEEK])
        if last - first == WEEK * DAY:
            seconds += range(first, last, DAY)
        else:
            seconds += [midnight(day) for day in week]
        first = last
    return seconds

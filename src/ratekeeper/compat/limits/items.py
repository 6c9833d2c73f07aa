"""Rate limit items: ``parse("10 per 2 minutes")``, in the words of ``limits``.  No I/O."""

from __future__ import annotations

import re
from functools import total_ordering
from typing import ClassVar, NamedTuple

NAMES = r"seconds?|minutes?|hours?|days?|months?|years?"
ITEM = re.compile(rf"\s*(\d+)\s*(?:/|per)\s*(\d*)\s*({NAMES})\s*", re.IGNORECASE)
SEPARATORS = re.compile(r"[,;|]")


class Granularity(NamedTuple):
    """The unit of a period."""

    seconds: int
    name: str


class WindowStats(NamedTuple):
    """When something becomes available again, in seconds since 1970, and how much is left now."""

    reset_time: float
    remaining: int


@total_ordering
class RateLimitItem:
    """``amount`` calls in ``multiples`` of a unit; ``namespace`` separates the counts of equal items."""

    __slots__ = ("amount", "multiples", "namespace")
    GRANULARITY: ClassVar[Granularity]

    def __init__(self, amount: int, multiples: int | None = 1, namespace: str = "LIMITER") -> None:
        self.amount = int(amount)
        self.multiples = int(multiples or 1)
        self.namespace = namespace

    @classmethod
    def check_granularity_string(cls, granularity_string: str) -> bool:
        """Whether ``granularity_string`` is the name of the unit, in the singular or plural."""
        return granularity_string.lower() in (cls.GRANULARITY.name, cls.GRANULARITY.name + "s")

    def get_expiry(self) -> int:
        """The period in seconds."""
        return self.GRANULARITY.seconds * self.multiples

    def key_for(self, *identifiers: bytes | str | int | float) -> str:
        """The key under which ``identifiers`` are counted."""
        words = [each.decode() if isinstance(each, bytes) else str(each) for each in identifiers]
        return "/".join([self.namespace, *words, str(self.amount), str(self.multiples), self.GRANULARITY.name])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RateLimitItem):
            return False
        mine, theirs = (self.amount, self.multiples), (other.amount, other.multiples)
        return mine == theirs and self.GRANULARITY == other.GRANULARITY

    def __lt__(self, other: RateLimitItem) -> bool:
        return self.GRANULARITY.seconds < other.GRANULARITY.seconds

    def __hash__(self) -> int:
        return hash((self.namespace, self.amount, self.multiples, self.GRANULARITY))

    def __repr__(self) -> str:
        return f"{self.amount} per {self.multiples} {self.GRANULARITY.name}"


class RateLimitItemPerSecond(RateLimitItem):
    """So many calls in a number of seconds."""

    GRANULARITY = Granularity(1, "second")


class RateLimitItemPerMinute(RateLimitItem):
    """So many calls in a number of minutes."""

    GRANULARITY = Granularity(60, "minute")


class RateLimitItemPerHour(RateLimitItem):
    """So many calls in a number of hours."""

    GRANULARITY = Granularity(3600, "hour")


class RateLimitItemPerDay(RateLimitItem):
    """So many calls in a number of days."""

    GRANULARITY = Granularity(86_400, "day")


class RateLimitItemPerMonth(RateLimitItem):
    """So many calls in a number of months of 30 days."""

    GRANULARITY = Granularity(30 * 86_400, "month")


class RateLimitItemPerYear(RateLimitItem):
    """So many calls in a number of years of 360 days."""

    GRANULARITY = Granularity(360 * 86_400, "year")


UNITS: tuple[type[RateLimitItem], ...] = (
    RateLimitItemPerSecond,
    RateLimitItemPerMinute,
    RateLimitItemPerHour,
    RateLimitItemPerDay,
    RateLimitItemPerMonth,
    RateLimitItemPerYear,
)
GRANULARITIES = {unit.GRANULARITY.name: unit for unit in UNITS}


def parse_many(limit_string: str) -> list[RateLimitItem]:
    """The items of a text such as ``"1/second; 5 per 2 minutes"``; ValueError if it is none."""
    items: list[RateLimitItem] = []
    for text in SEPARATORS.split(limit_string) if isinstance(limit_string, str) else [""]:
        match = ITEM.fullmatch(text)
        if match is None:
            raise ValueError(f"couldn't parse rate limit string '{limit_string}'")
        amount, multiples, unit = match.groups()
        items.append(GRANULARITIES[unit.lower().removesuffix("s")](int(amount), int(multiples or 1)))
    return items


def parse(limit_string: str) -> RateLimitItem:
    """The first item of a text such as ``"5/minute"``; ValueError if it is none."""
    return parse_many(limit_string)[0]

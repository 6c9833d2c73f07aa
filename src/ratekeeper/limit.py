"""Limit: how many per how long, by which algorithm.  LimitSet: several limits that are decided together.

Both are frozen.  Durations are whole microseconds inside and seconds at the public edge.
"""

from __future__ import annotations

from ratekeeper.algorithms import BUCKETS, RULES, rule_of, several, unlimited
from ratekeeper.calendars import calendar_of
from ratekeeper.errors import InvalidLimit, did_you_mean, shown
from ratekeeper.units import (
    CALENDAR_UNITS,
    LEASE,
    LONGEST,
    SECOND,
    VARYING,
    WINDOW_WORDS,
    format_period,
    parse_limit,
    parse_period,
    to_micros,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType
    from typing import Any, NoReturn

    from ratekeeper.algorithms import Algorithm
    from ratekeeper.calendars import Calendar
    from ratekeeper.units import Seconds

    State = Any  # one whole number or a tuple of them: only the rule that wrote it reads it

MOST = 10**12  # the largest count and burst: a terabyte a month, counted in bytes
UNLIMITED = 10**15 - 1  # what "unlimited" reports; the largest whole number of an HTTP structured field
LONGEST_PERIOD = 400 * 86_400 * SECOND
LONGEST_LOG = 2**20
MOST_SLICES = 100
MOST_LEASES = 2**16
# Bounds that let a 64-bit word and a double hold the same numbers as a Python integer.
MOST_DRAIN = 2**26
MOST_TICKS = 2**52
LATEST = 2**52 - 1  # microseconds
MOST_OWED = 2**40 - 1  # units in a counter of a window
LONGEST_RECOVERY = 2**50


class Frozen:
    """Immutable: attributes are set once, by the constructor, through ``_set``."""

    __slots__ = ()

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be changed: make a new {type(self).__name__}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be deleted")

    def __setstate__(self, state: tuple[None, dict[str, object]]) -> None:
        """Set the attributes of a copy or of an unpickled object."""
        self._set(**state[1])


class Limit(Frozen):
    """A count per period: ``Limit(100, "minute")``, ``Limit(10, 1, burst=20, algorithm="token_bucket")``.

    ``Limit("100/minute")`` parses a text, as ``parse`` does.  ``period`` is in seconds, a timedelta, or text such as
    ``"10 seconds"``.  ``burst`` is what a bucket holds, by default ``count``; windows have none.  ``slices`` divides a
    ``sliding_window`` into that many parts.  All are attributes too, with ``capacity``: the most that can pass at once.

    ``window="calendar"`` counts by the days, weeks, months or years of a ``timezone``, by default UTC:
    ``Limit(1000, "month")``, ``Limit(1000, "day", window="calendar", timezone="Europe/Berlin")``.
    ``window="first-use"`` starts a window of one period with the first call.
    """

    __slots__ = (
        "algorithm",
        "burst",
        "calendar",
        "capacity",
        "ceiling",
        "count",
        "drain",
        "full",
        "micros",
        "owes",
        "rule",
        "slack",
        "slices",
        "unit",
    )
    count: int
    burst: int
    algorithm: str
    slices: int
    capacity: int  # burst, or the count of a window

    # For algorithms and stores only, like the properties below that have no docstring.
    micros: int  # the period
    unit: int  # ticks in one unit of cost
    drain: int  # ticks in a microsecond
    full: int  # ticks in a burst
    slack: int  # microseconds by which a bucket's state may be ahead of the clock, though none is admitted there
    ceiling: int  # ticks that a bucket owes at most: a burst, and the slack
    owes: int  # units that a debit makes a key owe at most: the capacity, and its debt
    rule: ModuleType  # the module of pure functions that decides
    calendar: Any  # where the windows of calendar_window begin; of other limits None

    def __init__(
        self,
        count: int | str,
        period: Seconds | str | None = None,
        *,
        burst: int | None = None,
        algorithm: Algorithm | None = None,
        slices: int = 1,
        debt: int | None = None,
        window: str | None = None,
        timezone: str | None = None,
    ) -> None:
        if period is None:
            if window is not None or timezone is not None:
                raise InvalidLimit(
                    f"limit {shown(count)}: expected the window and the time zone in the text, got them beside it. "
                    f"Write '1000/day calendar Europe/Berlin' or '1000/day first-use'."
                )
            self._copy(Limit.parse(count, algorithm), burst, slices, debt)  # type: ignore[arg-type]
            return
        place = f"limit {shown(count)} per {shown(period)}"
        unit = CALENDAR_UNITS.get(period.strip().lower(), "") if isinstance(period, str) else ""
        name = windowed(place, window, timezone, unit, algorithm)
        if unit in VARYING:
            micros = LONGEST[unit]
        else:
            micros = parse_period(period, place) if isinstance(period, str) else to_micros(period, place)
        calendar = calendar_of(unit, timezone or "UTC", place) if name == "calendar_window" else None
        self._build(place, count, micros, burst, "gcra" if name is None else name, slices, debt, calendar)  # type: ignore[arg-type]

    def _copy(self, parsed: Limit, burst: int | None, slices: int, debt: int | None) -> None:
        if burst is not None or slices != 1 or debt is not None:
            raise InvalidLimit(
                f"limit {str(parsed)!r}: expected burst, slices and debt in the text, got them beside it. "
                f"Write '{parsed} burst 20', or give the period as well."
            )
        self._set(**{name: getattr(parsed, name) for name in self.__slots__})

    def _build(
        self,
        place: str,
        count: int,
        micros: int,
        burst: int | None,
        algorithm: str,
        slices: int,
        debt: int | None = None,
        calendar: Calendar | None = None,
    ) -> None:
        if algorithm not in RULES:
            advice = did_you_mean(str(algorithm), RULES)
            raise InvalidLimit(f"{place}: expected an algorithm ({', '.join(RULES)}), got {shown(algorithm)}.{advice}")
        most = {"sliding_log": LONGEST_LOG, "concurrency": MOST_LEASES}.get(algorithm, MOST)
        expect_number(place, "a count", count, most, zero="To refuse everybody, take the route away.")
        if not 1 <= micros <= LONGEST_PERIOD:
            raise InvalidLimit(
                f"{place}: expected a period from 1 microsecond to 400 days, got {micros / SECOND:.9g} seconds."
            )
        if algorithm in BUCKETS:
            wanted = count if burst is None else burst
            expect_number(place, "a burst", wanted, MOST, zero="To allow no bursts, write 'burst 1'.")
        elif burst is not None and burst != count:
            raise InvalidLimit(
                f"{place}: expected no burst, as {algorithm} admits its count at once, got burst {shown(burst)}. "
                f"Use gcra, token_bucket or leaky_bucket for a burst."
            )
        expect_number(place, "slices", slices, MOST_SLICES, zero="The classic two counters are 'slices 1'.")
        if slices != 1 and algorithm != "sliding_window":
            raise InvalidLimit(f"{place}: expected slices with sliding_window only, got {algorithm}.")
        if (algorithm == "calendar_window") != (calendar is not None):
            raise InvalidLimit(
                f"{place}: expected a calendar, got calendar_window alone. Write '1000/day calendar' or '1000/month'."
            )
        capacity = count if burst is None else burst
        if debt is not None and algorithm == "concurrency":
            raise InvalidLimit(
                f"{place}: expected no debt, as places in flight are never owed, got debt {shown(debt)}."
            )
        if debt is not None and (debt.__class__ is not int or not 0 <= debt <= MOST):
            raise InvalidLimit(f"{place}: expected a debt from 0 to {MOST:,}, got {shown(debt)}.")
        if count > MOST_DRAIN * micros:
            raise InvalidLimit(f"{place}: expected at most {MOST_DRAIN:,} per microsecond, got {count:,} per {micros}.")
        unit, drain = ticks(place, count, micros, capacity) if algorithm in BUCKETS else (1, 1)
        full = capacity * unit
        # One unit is admitted after a full recovery or one period at the latest, wherever the clock steps.
        slack = max(0, min(full, micros * drain) - unit) // drain if algorithm in BUCKETS else 0
        self._set(
            count=count,
            micros=micros,
            burst=capacity,
            algorithm=algorithm,
            slices=slices,
            capacity=capacity,
            unit=unit,
            drain=drain,
            full=full,
            slack=slack,
            ceiling=full + slack * drain,
            owes=most_owed(algorithm, count, micros, capacity, unit, drain, debt),
            rule=rule_of(algorithm),
            calendar=calendar,
        )

    @classmethod
    def parse(cls, text: str | Limit, algorithm: str | None = None) -> Limit:
        """Parse ``"100/minute"``, ``"10/s burst 20"``, ``"5 per 10 seconds sliding_log"`` or ``"unlimited"``.

        ``algorithm`` is used if the text names none.
        """
        if isinstance(text, Limit):
            if algorithm not in (None, text.algorithm) and not text.is_unlimited:
                raise InvalidLimit(
                    f"limit {str(text)!r}: expected its own algorithm {text.algorithm}, got {shown(algorithm)} "
                    f"beside it. Make the Limit with algorithm={shown(algorithm)}."
                )
            return text
        if not isinstance(text, str):
            raise InvalidLimit(
                f"limit: expected text such as '100/minute' or a Limit, got {shown(text)} ({type(text).__name__})."
            )
        if text.strip().lower() == "unlimited":
            return UNLIMITED_LIMIT
        parsed: dict[str, Any] = parse_limit(text)
        place = f"limit {shown(text)}"
        if algorithm == "fixed_window" and parsed.get("algorithm") in WINDOW_WORDS.values():
            algorithm = None
        if algorithm is not None and parsed.setdefault("algorithm", algorithm) != algorithm:
            raise InvalidLimit(
                f"{place}: expected one algorithm, got {parsed['algorithm']} in the text "
                f"and {shown(algorithm)} beside it."
            )
        limit = cls.__new__(cls)
        limit._build(
            place,
            parsed["count"],
            parsed["micros"],
            parsed.get("burst"),
            parsed.get("algorithm", "gcra"),
            parsed.get("slices", 1),
            parsed.get("debt"),
            calendar_of(parsed["unit"], parsed.get("timezone", "UTC"), place) if "unit" in parsed else None,
        )
        return limit

    @property
    def period(self) -> float:
        """The period in seconds; of a month 31 days, and of a year 366."""
        return self.micros / SECOND

    @property
    def debt(self) -> int | None:
        """How much a settlement may charge beyond what is left; None: all of it, of a sliding window nothing."""
        most = most_owed(self.algorithm, self.count, self.micros, self.capacity, self.unit, self.drain, None)
        return None if self.owes == most else self.owes - self.capacity

    @property
    def period_name(self) -> str:
        # "minute", "10 seconds", "month".
        return format_period(self.micros) if self.calendar is None else self.calendar.unit

    @property
    def is_unlimited(self) -> bool:
        """Whether every call is admitted."""
        return self.algorithm == "unlimited"

    @property
    def is_leased(self) -> bool:
        """Whether an admitted call holds a lease, to be given back: ``"20 concurrent"``."""
        return self.algorithm == "concurrency"

    @property
    def timezone(self) -> str | None:
        """The time zone of a calendar's days, weeks, months or years: ``"UTC"``; None of any other limit."""
        return None if self.calendar is None else self.calendar.timezone

    @property
    def is_aligned(self) -> bool:
        # Whether its windows begin at times of day, so that the wall clock decides, and not the monotonic one.
        return self.algorithm in ("fixed_window", "calendar_window")

    @property
    def is_queue(self) -> bool:
        # Whether an admitted call may have to wait for its turn.
        return self.algorithm == "leaky_bucket"

    @property
    def parts(self) -> tuple[Limit, ...]:
        # The limits to decide: one here, several in a LimitSet.
        return (self,)

    @property
    def recovery(self) -> int:
        # Microseconds after which any state is empty again, if nothing more is taken.
        if self.algorithm in BUCKETS:
            return -(-self.full // self.drain)
        if self.algorithm == "sliding_window":
            return -(-self.micros * (self.slices + 1) // self.slices)
        return self.micros if self.calendar is None else self.calendar.longest

    @property
    def layout(self) -> str:
        # Names the meaning of a state: two limits may share states only if this is equal.
        if self.algorithm in BUCKETS:
            return f"bucket:2:{self.micros}"  # 1 was bound to one rate
        if self.algorithm in ("sliding_log", "concurrency"):
            return "log" if self.algorithm == "sliding_log" else "leases:2"  # 1 had no ids
        if self.calendar is not None:
            return f"calendar_window:{self.calendar.unit}:{self.calendar.timezone}"
        return f"{self.algorithm}:{self.micros}:{self.slices}"

    def __str__(self) -> str:
        if self.is_unlimited:
            return "unlimited"
        period = self.period_name
        if self.is_leased:
            lasts = "" if self.micros == LEASE else f" for {period}" if " " in period else f" for 1 {period}"
            return f"{self.count} concurrent{lasts}"
        if self.calendar is not None:
            unit, zone = self.calendar.unit, self.calendar.timezone
            words = [f"{self.count}/{unit}", *(["calendar"] if unit not in VARYING or zone != "UTC" else [])]
            words += [] if zone == "UTC" else [zone]
            return " ".join(words if self.debt is None else [*words, f"debt {self.debt}"])
        words = [f"{self.count} per {period}" if " " in period else f"{self.count}/{period}"]
        if self.burst != self.count:
            words.append(f"burst {self.burst}")
        if self.algorithm != "gcra":
            words.append("first-use" if self.algorithm == "first_use_window" else self.algorithm)
        if self.slices != 1:
            words.append(f"slices {self.slices}")
        if self.debt is not None:
            words.append(f"debt {self.debt}")
        return " ".join(words)

    def __repr__(self) -> str:
        return f"Limit.parse({str(self)!r})"

    def _identity(self) -> tuple[object, ...]:
        return self.count, self.micros, self.burst, self.algorithm, self.slices, self.owes, self.calendar

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Limit) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __reduce__(self) -> tuple[object, ...]:
        return Limit.parse, (str(self),)


def make_unlimited() -> Limit:
    limit = Limit.__new__(Limit)
    limit._set(
        count=UNLIMITED,
        micros=SECOND,
        burst=UNLIMITED,
        algorithm="unlimited",
        slices=1,
        capacity=UNLIMITED,
        unit=1,
        drain=1,
        full=UNLIMITED,
        slack=0,
        ceiling=UNLIMITED,
        owes=UNLIMITED,
        rule=unlimited,
        calendar=None,
    )
    return limit


UNLIMITED_LIMIT = make_unlimited()


def most_owed(algorithm: str, count: int, micros: int, capacity: int, unit: int, drain: int, debt: int | None) -> int:
    """The units that a key may owe: its capacity and ``debt``, or all that a state can hold."""
    if algorithm in ("unlimited", "concurrency") or (algorithm == "sliding_window" and debt is None):
        return capacity
    most = min(2 * count, MOST_OWED)
    if algorithm == "fixed_window":  # beside the index of the window it fits the 79 bits of a state in C
        most = min(most, 2 ** (79 - (LATEST // micros).bit_length()) - 1)
    if algorithm in BUCKETS:  # what recovers in 400 days, and is exact in a double
        most = capacity + max(0, min(LONGEST_PERIOD * drain // unit, MOST_TICKS // drain - capacity))
    return most if debt is None else min(most, capacity + debt)


def windowed(place: str, window: str | None, timezone: str | None, unit: str, algorithm: str | None) -> str | None:
    """The algorithm that ``window`` and the unit of the period choose; the given one if they choose none."""
    if window is not None and window not in WINDOW_WORDS:
        raise InvalidLimit(f"{place}: expected a window ('calendar' or 'first-use'), got {shown(window)}.")
    chosen = WINDOW_WORDS[window] if window is not None else "calendar_window" if unit in VARYING else algorithm
    if algorithm not in (None, "fixed_window", chosen):
        raise InvalidLimit(
            f"{place}: expected fixed_window or no algorithm with a {window or unit} window, got {shown(algorithm)}."
        )
    if chosen == "calendar_window" and not unit:
        raise InvalidLimit(
            f"{place}: expected 'day', 'week', 'month' or 'year' as the period of a calendar window, got another. "
            "Shorter periods start at full hours, minutes and seconds with algorithm='fixed_window'."
        )
    if chosen == "first_use_window" and unit in VARYING:
        raise InvalidLimit(f"{place}: expected a period of one length, got {unit}. Write a number of days.")
    if timezone is not None and chosen != "calendar_window":
        raise InvalidLimit(
            f"{place}: expected no time zone, as only calendar windows have one, got {shown(timezone)}. "
            "Say window='calendar'."
        )
    return chosen


def expect_number(place: str, what: str, value: object, most: int, zero: str) -> None:
    if value.__class__ is not int:
        raise InvalidLimit(f"{place}: expected {what} as a whole number, got {shown(value)}.")
    if not 1 <= value <= most:
        advice = f" {zero}" if value == 0 else ""
        raise InvalidLimit(f"{place}: expected {what} from 1 to {most:,}, got {shown(value)}.{advice}")


def ticks(place: str, count: int, micros: int, burst: int) -> tuple[int, int]:
    """The ticks of one unit of cost and of one microsecond: a unit takes ``unit / drain`` microseconds, exactly.

    If that fraction is too fine for the fixed-size words of the C and Lua twins, it is rounded up, against the caller,
    by less than one part in 10^9.  A limit that cannot be kept that closely is refused.
    """
    from math import gcd  # built in, but not loaded by a bare interpreter

    shared = gcd(count, micros)
    unit, drain = micros // shared, count // shared
    most = min(MOST_DRAIN, MOST_TICKS // burst)
    if drain > most:
        unit, drain = fraction_above(micros, count, most)
        if (unit * count - micros * drain) * 10**9 >= micros * drain:
            raise InvalidLimit(
                f"{place}: expected a rate that can be held to one part in 10^9, "
                f"got {count} per {micros} microseconds. "
                "Round the count to fewer digits, or lower the burst."
            )
    recovery = -(-burst * unit // drain)
    if recovery > LONGEST_RECOVERY:
        raise InvalidLimit(
            f"{place}: expected a burst that is recovered within 35 years, "
            f"got {recovery // (365 * 86_400 * SECOND)} years. "
            "Lower the burst."
        )
    return unit, drain


def fraction_above(numerator: int, denominator: int, most: int) -> tuple[int, int]:
    """The least fraction not below ``numerator / denominator`` whose denominator is at most ``most``."""
    low, low_of = numerator // denominator, 1
    high, high_of = low + 1, 1
    below = numerator - denominator * low  # how far the number is above the lower bound, and below the upper one
    above = denominator * high - numerator
    while below and above and high_of + low_of <= most:
        # Add the upper bound to the lower one as often as that stays below the number, then the other way round.
        steps = min(below // above, (most - low_of) // high_of)
        low, low_of, below = low + steps * high, low_of + steps * high_of, below - steps * above
        if below:
            steps = min(above // below, (most - high_of) // low_of)
            high, high_of, above = high + steps * low, high_of + steps * low_of, above - steps * below
    return (high, high_of) if below else (low, low_of)


class LimitSet(Frozen):
    """Several limits that are decided as one, all or nothing; used in the place of a Limit."""

    __slots__ = ("limits",)
    limits: tuple[Limit, ...]
    rule = several
    is_leased = False

    def __init__(self, limits: Sequence[Limit]) -> None:
        self._set(limits=tuple(limits))

    @property
    def parts(self) -> tuple[Limit, ...]:
        """The limits to decide, each by its own rule."""
        return self.limits

    @property
    def recovery(self) -> int:
        """Microseconds after which any state is empty again, if nothing more is taken."""
        return max([limit.recovery for limit in self.limits])

    @property
    def is_aligned(self) -> bool:
        """Whether the wall clock decides: all of them follow one clock."""
        return any(limit.is_aligned for limit in self.limits)

    @property
    def is_queue(self) -> bool:
        """Whether an admitted call may have to wait for its turn."""
        return any(limit.is_queue for limit in self.limits)

    @property
    def layout(self) -> str:
        """Names the meaning of a state, as for a Limit."""
        return ",".join(limit.layout for limit in self.limits)

    def __str__(self) -> str:
        return ", ".join(str(limit) for limit in self.limits)

    def __repr__(self) -> str:
        return f"LimitSet({list(self.limits)!r})"

    def __eq__(self, other: object) -> bool:
        return self.limits == other.limits if isinstance(other, LimitSet) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.limits)


def parse_limits(
    limits: str | Limit | LimitSet | Iterable[str | Limit], algorithm: str | None = None
) -> Limit | LimitSet:
    """Parse one limit, or several that are decided together; "unlimited" among others adds nothing."""
    if isinstance(limits, LimitSet):
        return limits
    if isinstance(limits, (str, Limit, bytes, dict)):  # bytes and dict are iterable, but not lists of limits
        return Limit.parse(limits, algorithm)  # type: ignore[arg-type]
    try:
        parsed = [Limit.parse(limit, algorithm) for limit in limits]
    except TypeError as error:
        if isinstance(error, InvalidLimit):
            raise
        advice = f" Write a period too, such as '{limits}/minute'." if type(limits) is int else ""  # type: ignore[comparison-overlap]
        raise InvalidLimit(
            f"limits: expected a limit such as '100/minute' or a list of limits, got {shown(limits)}.{advice}"
        ) from None
    if not parsed:
        raise InvalidLimit(
            "limits: expected at least one limit, got an empty list. Write 'unlimited' to limit nothing."
        )
    effective = [limit for limit in dict.fromkeys(parsed) if not limit.is_unlimited]
    if not effective:
        return UNLIMITED_LIMIT
    leased = next((limit for limit in effective if limit.is_leased), None)
    if leased is not None and len(effective) > 1:
        raise InvalidLimit(
            f"limits: expected '{leased}' alone, as its leases are given back and the other limits have none, "
            "got a list. Put it into a limiter or a rule of its own."
        )
    return effective[0] if len(effective) == 1 else LimitSet(effective)


def empty_state(limit: Limit | LimitSet) -> State:
    """The state of a key that was never used."""
    limits = getattr(limit, "limits", None)
    return limit.rule.EMPTY if limits is None else tuple([part.rule.EMPTY for part in limits])

"""Text and numbers <-> counts and whole microseconds.

``"100/minute burst 20"`` is parsed here into numbers and written back; ``limit.Limit`` decides whether the numbers make
a possible limit.  No regular expressions: importing ratekeeper stays cheap.
"""

from __future__ import annotations

from ratekeeper.algorithms import ALGORITHMS, WINDOWS
from ratekeeper.errors import InvalidLimit, did_you_mean, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

    Seconds = float | int | timedelta

SECOND = 1_000_000
LEASE = 60 * SECOND  # a lease of "20 concurrent" ends by itself after this

# The largest first: a period is written in the largest unit that divides it.
UNITS: dict[str, tuple[int, tuple[str, ...]]] = {
    "week": (604_800 * SECOND, ("weeks", "wk", "wks", "w")),
    "day": (86_400 * SECOND, ("days", "d")),
    "hour": (3_600 * SECOND, ("hours", "hr", "hrs", "h")),
    "minute": (60 * SECOND, ("minutes", "min", "mins", "m")),
    "second": (SECOND, ("seconds", "sec", "secs", "s")),
    "millisecond": (1_000, ("milliseconds", "millis", "msec", "msecs", "ms")),
    "microsecond": (1, ("microseconds", "micros", "usec", "usecs", "us", "µs", "μs")),
}
SPELLINGS = {word: size for name, (size, words) in UNITS.items() for word in (name, *words)}
# What a calendar divides time into, and its spellings.  Months and years have no other length.
CALENDAR_UNITS = {
    **dict.fromkeys(("day", *UNITS["day"][1]), "day"),
    **dict.fromkeys(("week", *UNITS["week"][1]), "week"),
    **dict.fromkeys(("month", "months", "mo"), "month"),
    **dict.fromkeys(("year", "years", "yr", "y"), "year"),
}
VARYING = ("month", "year")
LONGEST = {"month": 31 * 86_400 * SECOND, "year": 366 * 86_400 * SECOND}
# How a fixed window may start, and the rule that does it.
WINDOW_WORDS = dict(zip(("calendar", "first-use"), WINDOWS, strict=True))


def to_micros(value: Seconds, what: str) -> int:
    """Whole microseconds of ``value`` in seconds or as a timedelta, to the nearest."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != value or value in (float("inf"), float("-inf")):
            raise InvalidLimit(f"{what}: expected a finite number of seconds, got {value!r}.")
        return value * SECOND if isinstance(value, int) else round(value * SECOND)
    total = getattr(value, "total_seconds", None)  # a timedelta, without importing datetime
    if total is not None:
        return (value.days * 86_400 + value.seconds) * SECOND + value.microseconds  # type: ignore[union-attr]
    raise InvalidLimit(f"{what}: expected seconds as a number or a timedelta, got {shown(value)}.")


def format_period(micros: int) -> str:
    """``"minute"``, ``"10 seconds"``: in the largest unit that divides it."""
    name, size = next((name, size) for name, (size, _) in UNITS.items() if micros % size == 0)
    return name if micros == size else f"{micros // size} {name}s"


def parse_period(text: str, place: str) -> int:
    """``"minute"``, ``"10 seconds"``, ``"1.5h"`` -> microseconds."""
    words = split(text)
    micros, rest = take_period(words, place)
    if rest:
        raise InvalidLimit(f"{place}: expected nothing after the period, got {shown(' '.join(rest))}.")
    return micros


def split(text: str) -> list[str]:
    """Words, numbers and slashes, in lower case: ``"10/5s"`` -> ``["10", "/", "5", "s"]``."""
    words: list[str] = []
    kind = ""
    for letter in text.lower():
        if letter.isspace():
            kind = ""
            continue
        here = "number" if letter.isdecimal() or letter in ".," else "slash" if letter == "/" else "word"
        if letter == "_" and kind:
            here = kind
        if here != kind or here == "slash":
            words.append("")
        words[-1] += letter
        kind = here
    return words


def take_number(words: list[str], place: str, what: str) -> tuple[int, list[str]]:
    word = words[0] if words else ""
    digits = word.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        raise InvalidLimit(f"{place}: expected {what} as a whole number, got {shown(word) if word else 'nothing'}.")
    return int(digits), words[1:]


def take_period(words: list[str], place: str) -> tuple[int, list[str]]:
    amount, digits = 1, "1"
    scale = 1
    if words and words[0][:1].isdecimal():
        digits = words[0].replace("_", "").replace(",", "")
        integer, _, fraction = digits.partition(".")
        if not ((integer + fraction).isascii() and (integer + fraction).isdecimal() and len(digits) <= 20):
            raise InvalidLimit(f"{place}: expected a length of the period, got {shown(words[0])}.")
        amount, scale = int(integer + fraction), 10 ** len(fraction)
        words = words[1:]
    unit = words[0] if words else ""
    if unit not in SPELLINGS:
        advice = did_you_mean(unit, SPELLINGS)
        if CALENDAR_UNITS.get(unit) in VARYING:
            advice = " Its length varies: write a number of days, such as '30 days'."
        raise InvalidLimit(
            f"{place}: expected a unit of time (millisecond, second, minute, hour, day, week), "
            f"got {shown(unit) if unit else 'nothing'}.{advice}"
        )
    micros, rest = divmod(amount * SPELLINGS[unit], scale)
    if rest:
        raise InvalidLimit(f"{place}: expected a period of whole microseconds, got {digits} {unit}.")
    return micros, words[1:]


def parse_limit(text: str) -> dict[str, int | str]:
    """``"10/second burst 20 token_bucket"`` -> the arguments of a Limit that the text gives."""
    place = f"limit {shown(text)}"
    if limits := several_limits(text):
        raise InvalidLimit(f"{place}: expected one limit, got {len(limits)} in one text. Write a list: {limits}.")
    words = split(text)
    if not words:
        raise InvalidLimit(f"{place}: expected a limit such as '100/minute', got nothing.")
    count, words = take_number(words, place, "a count")
    if words[:1] == ["concurrent"]:
        return parse_leases(count, words[1:], place)
    if not words or words[0] not in ("/", "per"):
        raise InvalidLimit(
            f"{place}: expected '/' or 'per' after the count, got {shown(words[0]) if words else 'nothing'}. "
            "Write for example '100/minute' or '5 per 10 seconds'."
        )
    arguments: dict[str, int | str] = {"count": count}
    unit, words = calendar_unit(words[1:], place)
    if unit in VARYING:
        arguments.update(micros=LONGEST[unit], algorithm="calendar_window", unit=unit)
        words = words[1:]
    else:
        arguments["micros"], words = take_period(words, place)
    while words:
        word = words[0]
        if word in ("calendar", "calendar_window"):
            words = take_calendar(words[1:], unit, text, arguments, place)
            continue
        if word in arguments:
            raise InvalidLimit(f"{place}: expected {word!r} once, got it twice.")
        if word == "refill":
            words = take_refill(words[1:], arguments, place)
            continue
        word = WINDOW_WORDS.get(word, word)
        if word in (*ALGORITHMS, *WINDOWS) and "algorithm" in arguments:
            raise InvalidLimit(
                f"{place}: expected one algorithm, got {arguments['algorithm']} and {word}."
                + (
                    f" The length of a {unit} varies: write 'days' for any other than calendar."
                    if unit in VARYING
                    else ""
                )
            )
        if word in ("burst", "slices", "debt"):
            arguments[word], words = take_number(words[1:], place, f"a number after {word!r}")
        elif word in (*ALGORITHMS, *WINDOWS):
            arguments["algorithm"], words = word, words[1:]
        else:
            known = ("burst", "slices", "debt", *WINDOW_WORDS, *ALGORITHMS)
            raise InvalidLimit(
                f"{place}: expected 'burst', 'slices', 'debt', 'calendar', 'first-use' or an algorithm "
                f"after the period, got {shown(word)}.{did_you_mean(word, known)}"
            )
    return arguments


def calendar_unit(words: list[str], place: str) -> tuple[str, list[str]]:
    """The unit that a calendar would divide time into, "" if there is none; and the words from the unit on."""
    single = words[1:] if words[:1] == ["1"] else words
    unit = CALENDAR_UNITS.get(single[0], "") if single else ""
    if unit:
        return unit, single
    if len(words) > 1 and CALENDAR_UNITS.get(words[1]) in VARYING:
        raise InvalidLimit(
            f"{place}: expected one {CALENDAR_UNITS[words[1]]}, as its length varies, got {words[0]}. "
            "Write a number of days, such as '90 days'."
        )
    return "", words


def take_calendar(words: list[str], unit: str, text: str, arguments: dict[str, int | str], place: str) -> list[str]:
    """Parse what follows ``calendar``: a time zone, in the letters of ``text``, or nothing, which is UTC."""
    if not unit:
        raise InvalidLimit(
            f"{place}: expected one day, week, month or year with 'calendar', "
            f"got {format_period(int(arguments['micros']))}. "
            "Shorter periods start at full hours, minutes and seconds with fixed_window."
        )
    if arguments.get("algorithm", "calendar_window") != "calendar_window" or "timezone" in arguments:
        raise InvalidLimit(f"{place}: expected 'calendar' once and no other algorithm, got both.")
    zone = "UTC"
    if words and words[0] not in ("burst", "slices", "debt", *WINDOW_WORDS, *WINDOWS, *ALGORITHMS):
        after = text[
            text.lower().index("calendar") + len("calendar") :
        ]  # in the letters of the text: zones have capitals
        zone = after.removeprefix("_window").split()[0]
        words = words[len(split(zone)) :]
    arguments.update(algorithm="calendar_window", unit=unit, timezone=zone)
    return words


def take_refill(words: list[str], arguments: dict[str, int | str], place: str) -> list[str]:
    """Parse what follows ``refill``: ``interval``, by which a bucket is filled up one period after its first call.

    That is a window that starts with the first call, and is kept as one.
    """
    if words[:1] != ["interval"]:
        raise InvalidLimit(
            f"{place}: expected 'interval' after 'refill', got {shown(words[0]) if words else 'nothing'}. "
            "Without 'refill' a bucket is refilled steadily."
        )
    if arguments.get("algorithm", "token_bucket") != "token_bucket":
        raise InvalidLimit(f"{place}: expected 'refill' with token_bucket only, got {arguments['algorithm']}.")
    arguments["algorithm"] = "first_use_window"
    return words[2:] if words[1:2] == ["token_bucket"] else words[1:]


def with_window(text: str, window: str | None, timezone: str | None) -> str:
    """``text`` with the window and the time zone that it does not name itself."""
    words = split(text)
    if not words or "concurrent" in words or words == ["unlimited"]:
        return text
    is_calendar = "calendar" in words or CALENDAR_UNITS.get(words[2] if len(words) > 2 else "") in VARYING
    names_its_own = is_calendar or any(word in (*WINDOW_WORDS, *ALGORITHMS, "refill") for word in words)
    if window is not None and not names_its_own:
        text, is_calendar = f"{text} {window}", window == "calendar"
    if timezone is None or not is_calendar:
        return text
    if "calendar" not in split(text):
        text += " calendar"
    return f"{text} {timezone}" if text.lower().endswith("calendar") else text


def several_limits(text: str) -> list[str]:
    """The limits of ``"100/minute;1000/hour"``, as other libraries write several; [] for any other text."""
    for mark in (";", "|", ",", " and "):
        texts = [each.strip() for each in text.split(mark)]
        if len(texts) > 1 and all(each[:1].isdecimal() and ("/" in each or " per " in each) for each in texts):
            return texts
    return []


def parse_leases(count: int, words: list[str], place: str) -> dict[str, int | str]:
    """Parse what follows ``20 concurrent``: nothing, or ``for 30 seconds``, after which a lease ends by itself."""
    micros = LEASE
    if words[:1] == ["for"]:
        micros, words = take_period(words[1:], place)
    if words:
        raise InvalidLimit(
            f"{place}: expected nothing more, or 'for' and how long a lease lasts at most, "
            f"got {shown(' '.join(words))}."
        )
    return {"count": count, "micros": micros, "algorithm": "concurrency"}

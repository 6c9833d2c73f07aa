"""Text and numbers <-> counts and whole microseconds.

``"100/minute burst 20"`` is parsed here into numbers and written back; ``limit.Limit`` decides whether the numbers make
a possible limit.  No regular expressions: importing ratekeeper stays cheap.
"""

from __future__ import annotations

from ratekeeper.algorithms import ALGORITHMS
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
        if unit.rstrip("s") in ("month", "year"):
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
    micros, words = take_period(words[1:], place)
    arguments: dict[str, int | str] = {"count": count, "micros": micros}
    while words:
        word = words[0]
        if word in arguments:
            raise InvalidLimit(f"{place}: expected {word!r} once, got it twice.")
        if word in ALGORITHMS and "algorithm" in arguments:
            raise InvalidLimit(f"{place}: expected one algorithm, got {arguments['algorithm']} and {word}.")
        if word in ("burst", "slices", "debt"):
            arguments[word], words = take_number(words[1:], place, f"a number after {word!r}")
        elif word in ALGORITHMS:
            arguments["algorithm"], words = word, words[1:]
        else:
            known = ("burst", "slices", "debt", *ALGORITHMS)
            raise InvalidLimit(
                f"{place}: expected 'burst', 'slices', 'debt' or an algorithm after the period, "
                f"got {shown(word)}.{did_you_mean(word, known)}"
            )
    return arguments


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

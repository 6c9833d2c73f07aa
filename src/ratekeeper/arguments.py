"""Wrong arguments of a limiter's constructor, and the right spelling.  Loaded only to raise."""

from __future__ import annotations

from ratekeeper.algorithms import RULES
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.limit import Limit
from ratekeeper.stores.options import advice_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMITS = "a limit such as '100/minute' or a list of limits"
COUNTS = ("rate", "count", "max_rate", "max_calls", "times", "calls", "requests", "max_requests")  # in other libraries
PERIODS = ("period", "per", "time_period", "seconds", "window", "interval", "duration")


def misspelled(cls: type, limits: tuple[Any, ...], options: dict[str, Any]) -> InvalidInput:
    """The error for ``cls(*limits, **options)``, which the constructor does not take."""
    name = cls.__name__
    known = [each for each in cls.__init__.__annotations__ if each not in ("limits", "return")]  # type: ignore[misc]
    unknown = next((each for each in options if each not in known and each != "limits"), None)
    limit = limits[0] if limits else options.get("limits", options.get("limit", first(options, COUNTS)))
    period = limits[1] if len(limits) == 2 else first(options, PERIODS)
    wanted = LIMITS
    if is_number(limit) and (is_number(period) or isinstance(period, str)):
        text = f"{limit:g} per {period:g} seconds" if is_number(period) else f"{limit:g}/{period}"
        got, advice = "a count and a period", f" Write {name}({text!r})."
    elif unknown in ("burst", "slices") and isinstance(limit, (str, Limit)):
        text = f"{limit} {unknown} {options[unknown]}"
        wanted, got = f"{unknown} in the text of the limit", f"{unknown}={shown(options[unknown])} beside it"
        advice = f" Write {name}({text!r})."
    elif unknown == "limit" and not limits:
        got, advice = "limit=", f" Write {name}({shown(limit)}) or limits={shown(limit)}."
    elif unknown is not None:
        wanted, got = f"an option ({', '.join(known)})", repr(unknown)  # not its value, which may be a password
        advice = advice_on(unknown, known)
    elif not limits:
        got, advice = "nothing", f" Write for example {name}('100/minute')."
    elif "limits" in options:
        got, advice = "a positional argument and limits=", " Give one of the two."
    else:
        got, advice = f"{len(limits)} positional arguments", f" Write {name}({spelled(limits)})."
    return InvalidInput(f"{name}: expected {wanted}, got {got}.{advice}")


def first(options: dict[str, Any], names: tuple[str, ...]) -> Any:
    """The option that is there, of several names for one thing."""
    return next((options[name] for name in names if name in options), None)


def spelled(values: tuple[Any, ...]) -> str:
    """Positional arguments as they have to be written."""
    limits, options = [], []
    for value in values:
        if isinstance(value, str) and value in RULES:
            options.append(f", algorithm={value!r}")
        elif hasattr(value, "blocking") or (isinstance(value, str) and "://" in value):
            options.append(", store=...")  # a URL may hold a password
        elif isinstance(value, (str, Limit)):
            limits.append(shown(str(value)))
        else:
            options.append(f", NAME={shown(value)}")
    return (limits[0] if len(limits) == 1 else f"[{', '.join(limits)}]") + "".join(options)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)

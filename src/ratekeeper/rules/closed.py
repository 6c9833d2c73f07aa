"""Limits of rules, where a count of 0 means that nobody passes: ``limit = { free = "0/day", paid = "1000/day" }``.

No store sees such a limit: a rule refuses by it without counting.  A limiter for everybody of which nobody passes is a
mistake, so ``Limit`` itself has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.decision import Decision
from ratekeeper.limit import Limit, LimitSet, parse_limits
from ratekeeper.units import format_period, split, with_window

if TYPE_CHECKING:
    from collections.abc import Iterable

CLOSED = "closed"  # in the place of an algorithm
REFUSAL = Decision(False, 0, 0, None, 0.0, 0.0)


def parse_rule_limits(
    given: str | Limit | LimitSet | Iterable[str | Limit],
    algorithm: str | None,
    window: str | None = None,
    timezone: str | None = None,
) -> Limit | LimitSet:
    """Parse one limit or several, as ``parse_limits`` does; a count of 0 among them closes all.

    ``window`` and ``timezone`` are of texts that do not name their own.
    """
    if (window is not None or timezone is not None) and not isinstance(given, (Limit, LimitSet)):
        texts = [given] if isinstance(given, str) else given
        given = [with_window(text, window, timezone) if isinstance(text, str) else text for text in texts]
        algorithm = None if window is not None else algorithm
    listed: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if any(is_zero(limit) for limit in listed):
        limits = [Limit.parse("1" + limit.strip()[1:], algorithm) if is_zero(limit) else limit for limit in listed]
        parse_limits(limits, algorithm)
        return closed(next(limit for limit, text in zip(limits, listed, strict=True) if is_zero(text)))
    return parse_limits(given, algorithm)


def is_zero(limit: Any) -> bool:
    return isinstance(limit, str) and split(limit)[:1] == ["0"] and "concurrent" not in limit


class ClosedLimit(Limit):
    """A limit of 0 in a period."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(Limit(1, format_period(self.micros))).replace("1", "0", 1)


def closed(limit: Limit) -> Limit:
    """A limit of 0 in the same period."""
    made = ClosedLimit.__new__(ClosedLimit)
    made._set(**{name: getattr(limit, name) for name in Limit.__slots__})
    made._set(count=0, burst=0, capacity=0, full=0, slices=1, algorithm=CLOSED)
    return made


def is_closed(limit: Limit | LimitSet) -> bool:
    """Whether nobody passes."""
    return isinstance(limit, ClosedLimit)

"""``count_when``: which responses count.

``"status >= 400"``, ``"status == 401 or status == 403"``: comparisons of the status, joined by ``and`` and ``or``;
``and`` binds tighter.  A request is counted before it is answered, and given back if its response does not count.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable

OPERATORS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
COMPARISON = re.compile(r"\s*status\s*(==|!=|<=|>=|<|>)\s*(\d{3})\s*")
EXPECTED = "a condition such as 'status >= 400' or 'status == 401 or status == 403', or a function of the response"


class ResponseHead:
    """What an adapter without response objects knows of a response; names of headers in lower case."""

    __slots__ = ("headers", "status_code")

    def __init__(self, status_code: int, headers: dict[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers


class Condition:
    """Which responses count: by their status, or as a function of the response says."""

    __slots__ = ("alternatives", "function", "text")

    def __init__(self, given: str | Callable[[Any], Any]) -> None:
        self.function = given if callable(given) else None
        self.text = given if isinstance(given, str) else "function"
        self.alternatives = [] if callable(given) else [
            [comparison(part) for part in alternative.split(" and ")] for alternative in given.split(" or ")
        ]  # fmt: skip

    def __call__(self, status: int, response: Any) -> bool:
        if self.function is None:
            return any(all(compare(status, number) for compare, number in every) for every in self.alternatives)
        counts = self.function(response)
        if not isinstance(counts, bool):
            if hasattr(counts, "close"):
                counts.close()  # a coroutine: else Python warns that it was never awaited
            raise InvalidInput(
                f"count_when: expected a plain function that returns True or False, got {type(counts).__name__}."
            )
        return counts


def comparison(text: str) -> tuple[Callable[[int, int], bool], int]:
    match = COMPARISON.fullmatch(text)
    if match is None:
        raise ValueError(text)
    return OPERATORS[match[1]], int(match[2])

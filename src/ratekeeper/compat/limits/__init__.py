"""The interface of the ``limits`` library, with our engine behind it.

``install()`` puts it in the place of ``limits``, so that flask-limiter and slowapi use it without a change.
"""

from __future__ import annotations

import sys

from ratekeeper.compat.limits import errors, items, storage, strategies
from ratekeeper.compat.limits.items import (  # noqa: F401 - the names of limits
    RateLimitItem,
    RateLimitItemPerDay,
    RateLimitItemPerHour,
    RateLimitItemPerMinute,
    RateLimitItemPerMonth,
    RateLimitItemPerSecond,
    RateLimitItemPerYear,
    WindowStats,
    parse,
    parse_many,
)
from ratekeeper.errors import InvalidInput

__all__ = ["install"]  # what else is here has the names and meanings of ``limits``

INSTALLED = {"": None, "errors": errors, "limits": items, "storage": storage, "strategies": strategies, "util": items}


def install() -> None:
    """Let ``import limits`` find this module, in this process: call it before flask_limiter or slowapi is imported."""
    this = sys.modules[__name__]
    if sys.modules.get("limits") is this:
        return
    users = [name for name in ("flask_limiter", "slowapi", "limits") if name in sys.modules]
    if users:
        raise InvalidInput(
            f"install: expected to be called before {users[0]} is imported, got it imported already. "
            "Move the call to the top of the program."
        )
    for name, module in INSTALLED.items():
        sys.modules[f"limits.{name}" if name else "limits"] = this if module is None else module

"""ratekeeper: a rate limiter that gives exact answers, in process, across processes and across a fleet.

>>> from ratekeeper import Limiter
>>> limiter = Limiter("100/minute")
>>> decision = limiter.check("user:42")
>>> decision.allowed, decision.limit, decision.remaining
(True, 100, 99)
"""

from ratekeeper.errors import (
    AlreadySettled,
    Closed,
    InvalidCost,
    InvalidInput,
    InvalidKey,
    InvalidLimit,
    InvalidRules,
    InvalidStore,
    LimitExceeded,
    RatekeeperError,
    StoreUnavailable,
)
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.model import Decision, Limit, Verdict
from ratekeeper.native import info
from ratekeeper.stores import MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.policy import Policy
    from ratekeeper.request import Request

__version__ = "0.1.0"

__all__ = [
    "AlreadySettled",
    "AsyncLimiter",
    "Closed",
    "Decision",
    "InvalidCost",
    "InvalidInput",
    "InvalidKey",
    "InvalidLimit",
    "InvalidRules",
    "InvalidStore",
    "Limit",
    "LimitExceeded",
    "Limiter",
    "MemoryStore",
    "Policy",
    "RatekeeperError",
    "Request",
    "StoreUnavailable",
    "Verdict",
    "info",
]


def __getattr__(name: str) -> object:
    """Policy and Request are loaded when first asked for: a program that only limits never pays for them."""
    if name == "Policy":
        from ratekeeper.policy import Policy

        return Policy
    if name == "Request":
        from ratekeeper.request import Request

        return Request
    raise AttributeError(f"module 'ratekeeper' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""ratekeeper: exact rate limiting for one process, one host, or a fleet.

>>> from ratekeeper import Limiter
>>> limiter = Limiter("100/minute")
>>> decision = limiter.check("user:42")
>>> decision.allowed, decision.limit, decision.remaining
(True, 100, 99)
"""

from ratekeeper.decision import Decision, Verdict
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
from ratekeeper.limit import Limit
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.native import info
from ratekeeper.stores import MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy
    from ratekeeper.version import __version__ as __version__

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
    """Load Policy, Request and the version on first use: a program that uses only limiters does not pay for them."""
    if name == "Policy":
        from ratekeeper.rules.policy import Policy

        return Policy
    if name == "Request":
        from ratekeeper.identity.request import Request

        return Request
    if name == "__version__":
        from ratekeeper.version import __version__

        return __version__
    raise AttributeError(f"module 'ratekeeper' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

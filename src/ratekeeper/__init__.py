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
    InvalidStore,
    LimitExceeded,
    RatekeeperError,
    StoreUnavailable,
)
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.model import Decision, Limit, Verdict
from ratekeeper.stores.memory import MemoryStore

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
    "InvalidStore",
    "Limit",
    "LimitExceeded",
    "Limiter",
    "MemoryStore",
    "RatekeeperError",
    "StoreUnavailable",
    "Verdict",
]

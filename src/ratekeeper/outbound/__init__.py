"""Outbound calls: pacing, retries that honour the server's limits, and budgets for costs that are known afterwards.

``ratekeeper.outbound.httpx``, ``.httpx2``, ``.requests``, ``.aiohttp``, ``.grpc`` and ``.boto3`` are for those clients,
``pace`` for any call.
"""

from __future__ import annotations

from ratekeeper.outbound.adaptive import Adaptive
from ratekeeper.outbound.budget import AsyncBudget, Budget
from ratekeeper.outbound.call_options import call_options
from ratekeeper.outbound.delivery import TooLate
from ratekeeper.outbound.estimate import ModelCall, TokenEstimator
from ratekeeper.outbound.meter import Meter, Progress
from ratekeeper.outbound.pace import Pace, pace
from ratekeeper.outbound.retry import Retry
from ratekeeper.outbound.throttle import throttle_bytes
from ratekeeper.outbound.usage import Usage, UsageReader

__all__ = [
    "Adaptive",
    "AsyncBudget",
    "Budget",
    "Meter",
    "ModelCall",
    "Pace",
    "Progress",
    "Retry",
    "TokenEstimator",
    "TooLate",
    "Usage",
    "UsageReader",
    "call_options",
    "pace",
    "throttle_bytes",
]

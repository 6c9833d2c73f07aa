"""Outbound calls: pacing, retries that honour the server's limits, and budgets for costs that are known afterwards.

``ratekeeper.outbound.httpx``, ``.requests``, ``.aiohttp`` and ``.grpc`` are for those clients, ``pace`` for any call.
"""

from __future__ import annotations

from ratekeeper.outbound.adaptive import Adaptive
from ratekeeper.outbound.budget import AsyncBudget, Budget
from ratekeeper.outbound.delivery import TooLate
from ratekeeper.outbound.pace import Pace, pace
from ratekeeper.outbound.retry import Retry
from ratekeeper.outbound.throttle import throttle_bytes

__all__ = ["Adaptive", "AsyncBudget", "Budget", "Pace", "Retry", "TooLate", "pace", "throttle_bytes"]

"""No limit at all: what "unlimited" means for a tier.  Stores nothing, admits everything."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.limit import Limit

EMPTY = 0


def decide(state: int, now: int, limit: Limit, cost: int) -> tuple[int, bool]:
    return state, True


def remaining(state: int, now: int, limit: Limit) -> int:
    return limit.capacity


def retry_after(state: int, now: int, limit: Limit, cost: int) -> int | None:
    return 0


def reset_after(state: int, now: int, limit: Limit) -> int:
    return 0


def delay(state: int, now: int, limit: Limit, cost: int) -> int:
    return 0


def refund(state: int, now: int, limit: Limit, cost: int, at: int) -> int:
    return state


def debit(state: int, now: int, limit: Limit, cost: int) -> int:
    return state


def debt(state: int, now: int, limit: Limit) -> int:
    return 0

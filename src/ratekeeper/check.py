"""Check: one cost for one key under one limit.  A plan is a tuple of them, decided together.  Both are frozen."""

from __future__ import annotations

from ratekeeper.errors import InvalidCost, shown
from ratekeeper.limit import UNLIMITED, Frozen, Limit, LimitSet

TYPE_CHECKING = False

if TYPE_CHECKING:
    Plan = tuple["Check", ...]


def whole_cost(cost: object, least: int = 1) -> int:
    """``cost`` as a whole number, or InvalidCost; other integer types (numpy's) are taken at their word."""
    if cost.__class__ is int and least <= cost <= UNLIMITED:
        return cost
    if not isinstance(cost, bool):
        index = getattr(type(cost), "__index__", None)
        number = index(cost) if index is not None else None
        if number is not None and least <= number <= UNLIMITED:
            return int(number)
    raise InvalidCost(f"cost: expected a whole number from {least} to {UNLIMITED:,}, got {shown(cost)}.")


class Check(Frozen):
    """One subject of a plan: ``cost`` for ``key`` under ``limit``, counted in the space of that name.

    ``on_store_error`` says what decides if the store cannot: local, allow or deny; None leaves it to the store.
    """

    __slots__ = ("cost", "key", "limit", "on_store_error", "space")
    space: str
    key: str | bytes  # encoded: see keys.py
    limit: Limit | LimitSet
    cost: int
    on_store_error: str | None

    def __init__(
        self, space: str, key: str | bytes, limit: Limit | LimitSet, cost: int, on_store_error: str | None = None
    ) -> None:
        fix = object.__setattr__
        fix(self, "space", space)
        fix(self, "key", key)
        fix(self, "limit", limit)
        fix(self, "cost", cost)
        fix(self, "on_store_error", on_store_error)

    def __repr__(self) -> str:
        return f"Check({self.space!r}, <key>, {str(self.limit)!r}, cost={self.cost})"

"""Check: one cost for one key under one limit.  A plan is a tuple of checks, decided together.  Both are frozen."""

from __future__ import annotations

from os import urandom

from ratekeeper.errors import InvalidCost, shown
from ratekeeper.limit import UNLIMITED, Frozen, Limit, LimitSet

TYPE_CHECKING = False

if TYPE_CHECKING:
    Plan = tuple["Check", ...]


def to_cost(cost: object, least: int = 1) -> int:
    """``cost`` as an int; raises InvalidCost.  Other integer types, such as numpy's, are accepted."""
    if cost.__class__ is int and least <= cost <= UNLIMITED:
        return cost
    if not isinstance(cost, bool):
        index = getattr(type(cost), "__index__", None)
        number = index(cost) if index is not None else None
        if number is not None and least <= number <= UNLIMITED:
            return int(number)
    advice = " To look without taking anything, use peek." if cost.__class__ is int and cost == 0 else ""
    raise InvalidCost(f"cost: expected a whole number from {least} to {UNLIMITED:,}, got {shown(cost)}.{advice}")


class Check(Frozen):
    """Take ``cost`` for ``key`` under ``limit``, counted in the space of that name.

    ``on_store_error`` is the fallback if the store is unavailable: local, allow or deny; None: the store's own.
    """

    __slots__ = ("cost", "key", "limit", "on_store_error", "space")
    lease = 0  # the id of a LeaseCheck; 0: nobody can renew or give back what this check takes of a concurrency limit
    lasts = 0
    space: str
    key: str | bytes  # encoded: see keys.py
    limit: Limit | LimitSet
    cost: int
    on_store_error: str | None

    def __init__(
        self, space: str, key: str | bytes, limit: Limit | LimitSet, cost: int, on_store_error: str | None = None
    ) -> None:
        write = object.__setattr__  # _set takes half as long again, and a store makes a Check for each call
        write(self, "space", space)
        write(self, "key", key)
        write(self, "limit", limit)
        write(self, "cost", cost)
        write(self, "on_store_error", on_store_error)

    def __repr__(self) -> str:
        return f"Check({self.space!r}, <key>, {str(self.limit)!r}, cost={self.cost})"


def new_id() -> int:
    """The id of a lease: 64 random bits."""
    return int.from_bytes(urandom(8), "big") or 1


class LeaseCheck(Check):
    """Hold ``cost`` places of a concurrency limit under the id ``lease``, for ``lasts`` microseconds from now.

    A store that is asked to ``end_leases`` lets the lease keep ``cost`` places, and notes for ``lasts`` that the lease
    was withdrawn, so that a request that arrives late is recognised; 0: the lease was surely taken before.
    """

    __slots__ = ("lasts", "lease")
    lease: int
    lasts: int

    def __init__(
        self,
        space: str,
        key: str | bytes,
        limit: Limit | LimitSet,
        cost: int,
        on_store_error: str | None,
        lease: int,
        lasts: int,
    ) -> None:
        super().__init__(space, key, limit, cost, on_store_error)
        self._set(lease=lease, lasts=lasts)

    def renamed(self) -> LeaseCheck:
        """The same check under a new id."""
        return LeaseCheck(self.space, self.key, self.limit, self.cost, self.on_store_error, new_id(), self.lasts)

    def having(self, cost: int, lasts: int) -> LeaseCheck:
        """The same lease with another number of places, for another time."""
        return LeaseCheck(self.space, self.key, self.limit, cost, self.on_store_error, self.lease, lasts)

"""What the fallback of a store admitted, and the store must still be charged when it is back.  No I/O.

Each admission is counted under the full limit, at its own instant: so the store is charged what it would still count,
and not what has recovered meanwhile.  The keys of one limit are bounded; admissions of further keys are not charged.
"""

from __future__ import annotations

from _thread import allocate_lock

from ratekeeper.check import Check
from ratekeeper.native import core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.clock import Clock
    from ratekeeper.limit import Limit
    from ratekeeper.stores.protocol import Store

MOST_KEYS = 10_000  # of one limit


class Owed:
    """What the store is owed for the keys of one limit, or of several that are decided as one."""

    __slots__ = ("keys", "limits", "lock", "spaces", "store")

    def __init__(self, store: Store, spaces: Sequence[str], limits: Sequence[Limit]) -> None:
        self.store = store  # in this process: counts under the full limits
        self.spaces = spaces
        self.limits = limits
        self.keys: dict[str | bytes, None] = {}
        self.lock = allocate_lock()

    def checks(self, key: str | bytes, costs: Sequence[int]) -> tuple[Check, ...]:
        rows = zip(self.spaces, self.limits, costs, strict=True)
        return tuple([Check(space, key, limit, cost) for space, limit, cost in rows if cost and not limit.is_unlimited])

    def add(self, key: str | bytes, costs: Sequence[int]) -> None:
        """Note what was admitted now, under each of the limits."""
        with self.lock:
            if key not in self.keys:
                if len(self.keys) >= MOST_KEYS:
                    return
                self.keys[key] = None
            self.store.take(self.checks(key, costs))

    def subtract(self, key: str | bytes, cost: int, at: int | None) -> None:
        """Note that some of it was given back, before the store was charged."""
        with self.lock:
            if key in self.keys:
                self.store.refund(self.checks(key, [cost] * len(self.limits)), at)

    def collect(self, most: int) -> list[tuple[str | bytes, tuple[int, ...]]]:
        """What ``most`` keys owe under each limit: it is the caller's now."""
        collected = []
        with self.lock:
            for key in list(self.keys)[:most]:
                del self.keys[key]
                checks = self.checks(key, [1] * len(self.limits))
                used = iter([decision.limit - decision.remaining for decision in self.store.peek(checks)])
                costs = tuple([0 if limit.is_unlimited else next(used) for limit in self.limits])
                self.store.reset(checks)
                if any(costs):
                    collected.append((key, costs))
        return collected

    def forget(self) -> None:
        """Drop all of it, as another process charges for it."""
        self.lock = allocate_lock()
        self.keys.clear()


def memory_store(clock: Clock) -> Store:
    """A store in this process: in C if the core was built."""
    if core is None:
        from ratekeeper.stores.memory import MemoryStore

        return MemoryStore(clock=clock)
    from ratekeeper.stores.native import NativeStore

    return NativeStore(clock=clock)

"""Cooldowns: until when a server asked to be left alone, for all requests of this process and of a fleet.

All clients of one store in this process share one ``Cooldowns`` object, so a cooldown stops all of them at once.  Other
processes learn of it through the store.  There a cooldown is the state of a bucket that drains one unit a millisecond:
to start one of n milliseconds is to take whatever is left of a bucket of that size.  That keeps the later of two ends,
in one atomic step on any store.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ratekeeper.check import Check
from ratekeeper.flow.effects import Ask
from ratekeeper.limit import Limit
from ratekeeper.stores import MemoryStore
from ratekeeper.stores.memory import MemoryStore as PureMemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.stores.protocol import Store

# How often the store is asked for cooldowns that other processes started: microseconds between two look-ups of a key.
EVERY_100_MS = 100_000
EVERY_REQUEST = 0
NEVER = None

MOST_KEYS = 10_000
MOST_LIMITS = 1_000
MILLISECOND = 1_000
LONGEST = 3_600  # seconds: after an hour a server is tried again, however long it asked to wait

shared: WeakKeyDictionary[Store, dict[str, Cooldowns]] = WeakKeyDictionary()


def cooldowns_of(store: Store, name: str) -> Cooldowns:
    """The cooldowns of all clients in this process that have this store and this name."""
    interval = look_up_interval(store)
    try:
        by_name = shared.setdefault(store, {})
    except TypeError:  # a store of the caller's own that has no weak references
        return Cooldowns(name, store.clock, EVERY_REQUEST if interval is NEVER else interval)
    cooldowns = by_name.get(name)
    if cooldowns is None or cooldowns.clock is not store.clock:  # a test may have put the store on another clock
        cooldowns = by_name[name] = Cooldowns(name, store.clock, interval)
    return cooldowns


def look_up_interval(store: Store) -> int | None:
    if isinstance(store, (MemoryStore, PureMemoryStore)):
        return NEVER  # no other process uses it
    return EVERY_100_MS if store.blocking else EVERY_REQUEST


class Cooldowns:
    """When the cooldown of each key ends, on the clock of this process."""

    def __init__(self, name: str, clock: Clock, interval: int | None) -> None:
        self.space = f"{name} holds"  # part of the keys in Redis: processes of older versions use it too
        self.clock = clock
        self.interval = interval
        self.ends: dict[str | bytes, int] = {}
        self.look_up_at: dict[str | bytes, int] = {}
        self.limits: dict[int, Limit] = {}

    def remaining(self, key: str | bytes) -> int:
        """Microseconds that are left of the cooldown of ``key``, as far as this process knows; 0 if there is none."""
        end = self.ends.get(key)
        if end is None:
            return 0
        micros = end - self.clock.nanos() // 1000
        if micros <= 0:
            self.ends.pop(key, None)
            return 0
        return micros

    def is_due(self, key: str | bytes) -> bool:
        """Whether the store must be asked for a cooldown that another process started."""
        if self.interval is None:
            return False
        return not self.interval or self.clock.nanos() // 1000 >= self.look_up_at.get(key, 0)

    def look_up(self, key: str | bytes) -> Flow[int]:
        """Ask the store; microseconds that are left of the cooldown."""
        (micros,) = yield from self.look_up_all([key])
        return micros

    def look_up_all(self, keys: list[str | bytes]) -> Flow[list[int]]:
        """Ask the store for several keys at once."""
        asked_at = self.clock.nanos() // 1000
        limit, longest = self.limit(1), self.limit(LONGEST * MILLISECOND)
        instants, states = yield Ask("states", tuple([Check(self.space, key, limit, 1) for key in keys]))
        lasting: list[int] = []
        for key, store_now, state in zip(keys, instants, states, strict=True):
            if self.interval:
                put(self.look_up_at, key, asked_at + self.interval)
            micros: int = limit.rule.reset_after(state, store_now, longest)
            if micros:
                put(self.ends, key, self.clock.nanos() // 1000 + micros)
            lasting.append(micros)
        return lasting

    def start(self, key: str | bytes, micros: int) -> Flow[None]:
        """Start a cooldown, here and in the store; an earlier one that lasts longer stays."""
        micros = min(micros, LONGEST * 1_000_000)
        if micros <= self.remaining(key):
            return
        put(self.ends, key, self.clock.nanos() // 1000 + micros)
        if self.interval is not None:
            size = -(-micros // MILLISECOND)
            yield Ask("take", (Check(self.space, key, self.limit(size), size),))

    def limit(self, size: int) -> Limit:
        limit = self.limits.get(size)
        if limit is None:
            if len(self.limits) >= MOST_LIMITS:
                self.limits.clear()
            limit = self.limits[size] = Limit(1000, 1, burst=size)
        return limit


def put(instants: dict[str | bytes, int], key: str | bytes, instant: int) -> None:
    if len(instants) >= MOST_KEYS and key not in instants:
        del instants[next(iter(instants))]
    instants[key] = instant

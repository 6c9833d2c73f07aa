"""Adaptive concurrency: how many at once is found out, by how long answers take.

While answers take about as long as they do on a quiet day, the limit grows by its root; once they take clearly longer,
work is waiting somewhere and the limit shrinks in proportion; a failure shrinks it by a tenth.  A quiet day is the
quickest answer seen; now and then the limit is halved for a moment to look afresh, as a queue that always stands would
pass for a quiet day, and a server may have become slower.

Law: the limit stays between ``least`` and ``most``, and grows only while at least half of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, InvalidStore, shown
from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import give_back
from ratekeeper.keys import encode
from ratekeeper.limit import MOST_LEASES, Limit
from ratekeeper.outbound.delivery import TooLate, patience_of
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_store
from ratekeeper.units import LEASE, SECOND

if TYPE_CHECKING:
    from types import TracebackType

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

TOLERANCE = 1.5  # an answer that takes so many times as long as on a quiet day is no sign of waiting yet
SMOOTHING = 0.2
FAILURE = 0.9
PROBE_EVERY = 1000  # answers


class Gradient:
    """The limit as a function of what was seen: no clock, no I/O."""

    def __init__(self, start: int, least: int, most: int) -> None:
        if not 1 <= least <= start <= most <= MOST_LEASES:
            raise InvalidInput(
                f"adaptive: expected 1 <= least <= start <= most <= {MOST_LEASES:,}, "
                f"got {shown(least)}, {shown(start)}, {shown(most)}."
            )
        self.exact = float(start)
        self.least = least
        self.most = most
        self.quiet = float("inf")
        self.until_probe = PROBE_EVERY
        self.probing = 0  # answers that are still to come with half the limit
        self.resume = 0.0

    @property
    def limit(self) -> int:
        """How many at once, now."""
        return int(self.exact)

    def observe(self, seconds: float, in_flight: int, failed: bool = False) -> int:
        """Learn of one answer that took so long while so many were under way; returns the new limit."""
        if failed:
            self.exact = max(float(self.least), self.exact * FAILURE)
            return self.limit
        self.quiet = min(self.quiet, seconds)
        if self.probing:
            self.probing -= 1
            if not self.probing:
                self.exact = max(self.exact, FAILURE * self.resume)
            return self.limit
        self.until_probe -= 1
        if self.until_probe <= 0:
            self.probe()
            return self.limit
        gradient = min(1.0, max(0.5, TOLERANCE * self.quiet / max(seconds, 1e-9)))
        wanted = self.exact * gradient
        if in_flight * 2 >= self.exact:
            wanted += self.exact**0.5
        # Each answer moves the limit by its share: about a root's worth of answers is one step.
        self.exact += (wanted - self.exact) * SMOOTHING / max(1.0, self.exact**0.5)
        self.exact = min(float(self.most), max(float(self.least), self.exact))
        return self.limit

    def probe(self) -> None:
        """Halve the limit until all that is under way has been answered, and half of it again."""
        self.resume = self.exact
        self.probing = int(1.5 * self.exact) + 1
        self.exact = max(float(self.least), self.exact / 2)
        self.quiet = float("inf")
        self.until_probe = PROBE_EVERY


class Adaptive:
    """Lets so many through at once as the other side can take: ``with adaptive.hold():``, ``async with``.

    ``store`` is where the leases are: in this process, or on Redis, each process with its own idea of the limit.  For
    ``async with`` on Redis give an AsyncRedisStore.
    """

    def __init__(
        self,
        *,
        start: int = 10,
        least: int = 1,
        most: int = 1000,
        key: Key = "all",
        store: str | Store = "memory://",
        name: str = "adaptive",
        clock: Clock | None = None,
    ) -> None:
        self.gradient = Gradient(start, least, most)
        self.key = encode(key)
        self.name = name
        if isinstance(store, str):
            store = open_store(store, clock=clock)
        expect_store(store)
        if not getattr(store, "has_room", True):
            raise InvalidStore(
                "adaptive: expected memory:// or Redis, as a table in shared memory has room for one count, got shm://."
            )
        self.store: Any = store
        self.lines = WaitQueue()
        self.in_flight = 0
        self.limits: dict[int, Limit] = {}

    @property
    def limit(self) -> int:
        """How many at once, now."""
        return self.gradient.limit

    def hold(self, timeout: Seconds | None = None, priority: int = 0) -> AdaptivePermit:
        """A block that holds a place; waits for one, for ever or up to ``timeout`` seconds, then raises TooLate."""
        return AdaptivePermit(self, patience_of(timeout), priority)

    def plan(self) -> Plan:
        count = self.limit
        limit = self.limits.get(count)
        if limit is None:
            limit = self.limits[count] = Limit(count, LEASE / SECOND, algorithm="concurrency")
        return (Check(self.name, self.key, limit, 1),)


class AdaptivePermit:
    """One call's place.  ``failed`` may be set to tell that the other side is overloaded."""

    def __init__(self, adaptive: Adaptive, patience: int | None, priority: int) -> None:
        self.adaptive = adaptive
        self.patience = patience
        self.priority = priority
        self.failed = False

    def begin(self) -> Any:
        adaptive = self.adaptive
        self.plan = adaptive.plan()
        return acquire_plan(adaptive.lines, adaptive.key, self.plan, self.patience, adaptive.store.clock, self.priority)

    def began(self, decisions: tuple[Decision, ...]) -> None:
        (self.decision,) = decisions
        if not self.decision:
            raise TooLate(self.decision, self.adaptive.name)
        self.adaptive.in_flight += 1
        self.began_at = self.adaptive.store.clock.nanos()

    def end(self, kind: type[BaseException] | None) -> Any:
        adaptive = self.adaptive
        seconds = (adaptive.store.clock.nanos() - self.began_at) / 1e9
        failed = self.failed or (kind is not None and issubclass(kind, Exception))
        if kind is None or failed:  # a cancelled call says nothing of the other side
            adaptive.gradient.observe(seconds, adaptive.in_flight, failed)
        adaptive.in_flight -= 1
        return give_back(self.plan, self.decision)

    def __enter__(self) -> AdaptivePermit:
        adaptive = self.adaptive
        self.began(drive(self.begin(), adaptive.store, adaptive.store.clock, adaptive.lines))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        adaptive = self.adaptive
        drive(self.end(kind), adaptive.store, adaptive.store.clock, adaptive.lines)

    async def __aenter__(self) -> AdaptivePermit:
        adaptive = self.adaptive
        self.began(await adrive(self.begin(), adaptive.store, adaptive.store.clock, adaptive.lines))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        adaptive = self.adaptive
        await adrive(self.end(kind), adaptive.store, adaptive.store.clock, adaptive.lines)

"""Adaptive concurrency: find out from response times how many calls a server can take at once.

While responses are about as fast as without load, the limit grows by its square root.  Once they are clearly slower,
calls are queueing somewhere, and the limit shrinks in proportion; a failure shrinks it by a tenth.  The response time
without load is the fastest one seen.  Now and then the limit is halved for a short time to measure it again: a queue
that never empties would look like a server without load, and a server may have become slower.

Law: the limit stays between ``least`` and ``most``, and grows only while at least half of it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.check import Check
from ratekeeper.errors import InvalidInput, InvalidStore, shown
from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.lease_renewal import named_lease, renewer_of
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import end
from ratekeeper.keys import encode
from ratekeeper.limit import MOST_LEASES, Limit
from ratekeeper.outbound.delivery import TooLate, patience_of
from ratekeeper.outbound.outage import open_outbound
from ratekeeper.outbound.teaching import TeachingOptions
from ratekeeper.stores.options import expect_store
from ratekeeper.units import LEASE, SECOND

if TYPE_CHECKING:
    from types import TracebackType

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow
    from ratekeeper.keys import Key
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

TOLERANCE = 1.5  # a response up to this many times slower than without load is no sign of a queue
SMOOTHING = 0.2
FAILURE = 0.9
PROBE_EVERY = 1000  # responses
ADVICE = "Pass a longer timeout to hold()."


class Gradient:
    """The limit as a function of the response times.  No clock, no I/O."""

    def __init__(self, start: int, least: int, most: int) -> None:
        if not 1 <= least <= start <= most <= MOST_LEASES:
            raise InvalidInput(
                f"adaptive: expected 1 <= least <= start <= most <= {MOST_LEASES:,}, "
                f"got {shown(least)}, {shown(start)}, {shown(most)}."
            )
        self.exact = float(start)
        self.least = least
        self.most = most
        self.fastest = float("inf")
        self.until_probe = PROBE_EVERY
        self.probing = 0  # responses still to come with half the limit
        self.resume = 0.0

    @property
    def limit(self) -> int:
        """How many calls at once, at present."""
        return int(self.exact)

    def observe(self, seconds: float, in_flight: int, failed: bool = False) -> int:
        """Learn from one response that took ``seconds`` while ``in_flight`` calls ran; returns the new limit."""
        if failed:
            self.exact = max(float(self.least), self.exact * FAILURE)
            return self.limit
        self.fastest = min(self.fastest, seconds)
        if self.probing:
            self.probing -= 1
            if not self.probing:
                self.exact = max(self.exact, FAILURE * self.resume)
            return self.limit
        self.until_probe -= 1
        if self.until_probe <= 0:
            self.probe()
            return self.limit
        gradient = min(1.0, max(0.5, TOLERANCE * self.fastest / max(seconds, 1e-9)))
        target = self.exact * gradient
        if in_flight * 2 >= self.exact:
            target += self.exact**0.5
        # Each response moves the limit by a fraction, so that about sqrt(limit) responses make one step.
        self.exact += (target - self.exact) * SMOOTHING / max(1.0, self.exact**0.5)
        self.exact = min(float(self.most), max(float(self.least), self.exact))
        return self.limit

    def probe(self) -> None:
        """Halve the limit until all calls in flight have ended, and half as many again."""
        self.resume = self.exact
        self.probing = int(1.5 * self.exact) + 1
        self.exact = max(float(self.least), self.exact / 2)
        self.fastest = float("inf")
        self.until_probe = PROBE_EVERY


class Adaptive(TeachingOptions):
    """Admit as many calls at once as the server can take: ``with adaptive.hold():``, ``async with``.

    ``store`` is where the leases are counted: in this process, or on Redis, where each process finds its own limit.  To
    use ``async with`` on Redis, pass an AsyncRedisStore.  While a store that is named by its URL does not answer, calls
    wait for it, up to their timeout.
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
        self.in_flight = 0
        self._gradient = Gradient(start, least, most)
        self._key = encode(key)
        self._name = name
        if isinstance(store, str):
            store = open_outbound(store, clock, asynchronous=False)
        expect_store(store)
        if not getattr(store, "has_room", True):
            raise InvalidStore(
                "adaptive: expected memory:// or Redis, as a table in shared memory has room for one count, got shm://."
            )
        self._store: Any = store
        self._queue = WaitQueue()
        self._limits: dict[int, Limit] = {}

    @property
    def limit(self) -> int:
        """How many calls at once, at present."""
        return self._gradient.limit

    def hold(self, timeout: Seconds | None = None, priority: int = 0) -> AdaptivePermit:
        """A block that holds one of the places: waits for it for ever, or raises TooLate after ``timeout`` seconds."""
        return AdaptivePermit(self, patience_of(timeout, "timeout"), priority)

    def _plan(self) -> Plan:
        count = self.limit
        limit = self._limits.get(count)
        if limit is None:
            limit = self._limits[count] = Limit(count, LEASE / SECOND, algorithm="concurrency")
        return (named_lease(Check(self._name, self._key, limit, 1), self._store),)


class AdaptivePermit:
    """The place of one call.  Set ``failed`` to report that the server is overloaded."""

    def __init__(self, adaptive: Adaptive, patience: int | None, priority: int) -> None:
        self.failed = False
        self._adaptive = adaptive
        self._patience = patience
        self._priority = priority

    def _begin(self) -> Flow[None]:
        adaptive = self._adaptive
        clock = adaptive._store.clock
        self._plan = adaptive._plan()
        (self._decision,) = yield from acquire_plan(
            adaptive._queue,
            adaptive._key,
            self._plan,
            self._patience,
            clock,
            self._priority,
            renewer_of(adaptive._store),
        )
        if not self._decision:
            raise TooLate(self._decision, adaptive._name, ADVICE)
        adaptive.in_flight += 1
        self._began_at = clock.nanos()

    def _end(self, kind: type[BaseException] | None) -> Flow[None]:
        adaptive = self._adaptive
        seconds = (adaptive._store.clock.nanos() - self._began_at) / 1e9
        failed = self.failed or (kind is not None and issubclass(kind, Exception))
        if kind is None or failed:  # a cancelled call says nothing about the server
            adaptive._gradient.observe(seconds, adaptive.in_flight, failed)
        adaptive.in_flight -= 1
        (lease,) = self._plan
        yield from end(lease, self._decision, renewer_of(adaptive._store))  # type: ignore[arg-type]

    def __enter__(self) -> AdaptivePermit:
        adaptive = self._adaptive
        drive(self._begin(), adaptive._store, adaptive._store.clock, adaptive._queue)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        adaptive = self._adaptive
        drive(self._end(kind), adaptive._store, adaptive._store.clock, adaptive._queue)

    async def __aenter__(self) -> AdaptivePermit:
        adaptive = self._adaptive
        await adrive(self._begin(), adaptive._store, adaptive._store.clock, adaptive._queue)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        adaptive = self._adaptive
        await adrive(self._end(kind), adaptive._store, adaptive._store.clock, adaptive._queue)

"""``pace``: space out calls of any kind.

>>> from ratekeeper.outbound import pace
>>> from ratekeeper.testing import FakeClock
>>> clock = FakeClock()
>>> for letter in pace("2/second", margin=0, clock=clock).each("abc"):
...     print(letter, clock.now)
a 0.0
b 0.5
c 1.0
"""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.outbound.delivery import TooLate, patience_of
from ratekeeper.outbound.limits import expect_rate, paced_limit
from ratekeeper.outbound.outage import counted, open_outbound
from ratekeeper.outbound.teaching import TeachingOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow
    from ratekeeper.keys import Key
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])
    T = TypeVar("T")


class Pace(TeachingOptions):
    """Admit callers at a pace: ``pace.wait()``, ``await pace.turn()``, ``with``, ``@``, ``each``.

    One object serves threads and event loops; on ``memory://`` they wait in the same queue.  A wait longer than
    ``max_wait`` seconds is not begun: it raises TooLate.  Processes with the same Redis or shm:// store and the same
    ``name`` share the pace.  ``margin`` is how many seconds longer a call may take to the server than the quickest one:
    the server's limit is kept in spite of that.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        key: Key = "all",
        store: str | Store = "memory://",
        name: str | None = None,
        max_wait: Seconds | None = None,
        priority: int = 0,
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        patience_of(max_wait)
        self._limit = paced_limit(limit, margin=patience_of(margin, "margin"))
        expect_rate("pace", self._limit)
        self._key = key
        self._name = name or f"pace {self._limit}"
        self._store = store
        self._max_wait = max_wait
        self._priority = priority
        self._clock = clock
        self._limiter: Limiter | None = None
        self._async_limiter: AsyncLimiter | None = None
        if not isinstance(store, str) or store.startswith("memory:"):
            self._for_threads()

    def _for_threads(self) -> Limiter:
        if self._limiter is None:
            store, clock = self._opened(asynchronous=False)
            self._limiter = Limiter(self._limit, store=store, name=self._name, clock=clock)  # type: ignore[arg-type]
        return self._limiter

    def _for_loops(self) -> AsyncLimiter:
        if self._async_limiter is None:
            store, clock = self._opened(asynchronous=True) if self._limiter is None else (self._limiter.store, None)
            self._async_limiter = AsyncLimiter(self._limit, store=store, name=self._name, clock=clock)  # type: ignore[arg-type]
            if self._limiter is not None:
                self._async_limiter._share_queue(self._limiter)
        return self._async_limiter

    def _opened(self, asynchronous: bool) -> tuple[str | Store, Clock | None]:
        """The store and its clock; a shared store that is named by its URL has no fallback: see outage.py."""
        if isinstance(self._store, str) and not self._store.startswith("memory:"):
            return open_outbound(self._store, self._clock, asynchronous), None
        return self._store, self._clock

    def wait(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for this call's turn."""
        limiter = self._for_threads()
        if not limiter.store.blocking:
            return self._admitted(limiter.acquire(*self._arguments(key, cost, priority)))
        return self._admitted(limiter._flows().run(self._turn(limiter, key, cost, priority)))

    async def turn(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for this call's turn on an event loop."""
        limiter = self._for_loops()
        if not limiter.store.blocking:
            return self._admitted(await limiter.acquire(*self._arguments(key, cost, priority)))
        return self._admitted(await limiter._flows().run(self._turn(limiter, key, cost, priority)))

    def _turn(self, limiter: Any, key: Key | None, cost: int, priority: int | None) -> Flow[Decision]:
        check = limiter._plan(self._key if key is None else key, cost)
        clock, queue, patience = limiter.store.clock, limiter._flows().queue, patience_of(self._max_wait)
        began = clock.nanos() // 1000

        def acquire() -> Flow[tuple[Decision, ...]]:
            left = None if patience is None else max(0, patience - (clock.nanos() // 1000 - began))
            return acquire_plan(
                queue, check.key, (check,), left, clock, self._priority if priority is None else priority
            )

        (decision,) = yield from counted(limiter.store, (check,), acquire)
        return decision

    def _arguments(self, key: Key | None, cost: int, priority: int | None) -> tuple[Key, int, Seconds | None, int]:
        return (
            self._key if key is None else key,
            cost,
            self._max_wait,
            self._priority if priority is None else priority,
        )

    def _admitted(self, decision: Decision) -> Decision:
        if not decision:
            raise TooLate(decision, self._name)
        return decision

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield each item when its turn comes."""
        for item in items:
            self.wait()
            yield item

    async def aeach(self, items: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
        """Yield each item when its turn comes, on an event loop."""
        if hasattr(items, "__aiter__"):
            async for item in items:
                await self.turn()
                yield item
        else:
            for item in items:
                await self.turn()
                yield item

    def __call__(self, function: F) -> F:
        if iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                await self.turn()
                return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            self.wait()
            return function(*args, **kwargs)

        return called  # type: ignore[return-value]

    def __enter__(self) -> Decision:
        return self.wait()

    def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Decision:
        return await self.turn()

    async def __aexit__(self, *error: object) -> None: ...


pace = Pace

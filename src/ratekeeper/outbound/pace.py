"""``pace``: space out calls of any kind.

>>> from ratekeeper.outbound import pace
>>> from ratekeeper.testing import FakeClock
>>> clock = FakeClock()
>>> for letter in pace("2/second", clock=clock).each("abc"):
...     print(letter, clock.now)
a 0.0
b 0.5
c 1.0
"""

from __future__ import annotations

from functools import wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, TypeVar

from ratekeeper.limiter import AsyncLimiter, Limiter
from ratekeeper.outbound.delivery import TooLate, patience_of
from ratekeeper.outbound.limits import expect_rate, paced_limit

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])
    T = TypeVar("T")


class Pace:
    """Admit callers at a pace: ``pace.wait()``, ``await pace.turn()``, ``with``, ``@``, ``each``.

    One object serves threads and event loops; on ``memory://`` they wait in the same queue.  A wait longer than
    ``max_wait`` seconds is not begun: it raises TooLate.  Processes with the same Redis or shm:// store and the same
    ``name`` share the pace.
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
    ) -> None:
        patience_of(max_wait)
        self._limit = paced_limit(limit)
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
            self._limiter = Limiter(self._limit, store=self._store, name=self._name, clock=self._clock)  # type: ignore[arg-type]
        return self._limiter

    def _for_loops(self) -> AsyncLimiter:
        if self._async_limiter is None:
            store = self._store if self._limiter is None else self._limiter.store
            clock = self._clock if isinstance(store, str) else None
            self._async_limiter = AsyncLimiter(self._limit, store=store, name=self._name, clock=clock)  # type: ignore[arg-type]
            if self._limiter is not None:
                self._async_limiter._share_queue(self._limiter)
        return self._async_limiter

    def wait(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for this call's turn."""
        limiter = self._for_threads()
        return self._admitted(limiter.acquire(*self._arguments(key, cost, priority)))

    async def turn(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for this call's turn on an event loop."""
        limiter = self._for_loops()
        return self._admitted(await limiter.acquire(*self._arguments(key, cost, priority)))

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

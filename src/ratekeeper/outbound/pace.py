"""``pace``: one call after the other, for anything that is called.

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
    """Lets callers through at a pace: ``pace.wait()``, ``await pace.turn()``, ``with``, ``@``, ``each``.

    One object serves threads and event loops; on ``memory://`` they stand in the same line.  A wait longer than
    ``max_wait`` seconds is not begun: it raises TooLate.  A store elsewhere is shared by all who use its ``name``.
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
        self.limit = paced_limit(limit)
        expect_rate("pace", self.limit)
        self.key = key
        self.name = name or f"pace {self.limit}"
        self.store = store
        self.max_wait = max_wait
        self.priority = priority
        self.clock = clock
        self.threads: Limiter | None = None
        self.loops: AsyncLimiter | None = None
        if not isinstance(store, str) or store.startswith("memory:"):
            self.sync()

    def sync(self) -> Limiter:
        if self.threads is None:
            self.threads = Limiter(self.limit, store=self.store, name=self.name, clock=self.clock)  # type: ignore[arg-type]
        return self.threads

    def asynchronous(self) -> AsyncLimiter:
        if self.loops is None:
            store = self.store if self.threads is None else self.threads.store
            clock = self.clock if isinstance(store, str) else None
            self.loops = AsyncLimiter(self.limit, store=store, name=self.name, clock=clock)  # type: ignore[arg-type]
            if self.threads is not None:
                self.loops._share_queue(self.threads)
        return self.loops

    def wait(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for one's turn."""
        who = self.key if key is None else key
        rank = self.priority if priority is None else priority
        return self.admitted(self.sync().acquire(who, cost, timeout=self.max_wait, priority=rank))

    async def turn(self, key: Key | None = None, cost: int = 1, priority: int | None = None) -> Decision:
        """Wait for one's turn on an event loop."""
        who = self.key if key is None else key
        rank = self.priority if priority is None else priority
        return self.admitted(await self.asynchronous().acquire(who, cost, timeout=self.max_wait, priority=rank))

    def admitted(self, decision: Decision) -> Decision:
        if not decision:
            raise TooLate(decision, self.name)
        return decision

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """The items, each when its turn has come."""
        for item in items:
            self.wait()
            yield item

    async def aeach(self, items: AsyncIterable[T] | Iterable[T]) -> AsyncIterator[T]:
        """The items on an event loop, each when its turn has come."""
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

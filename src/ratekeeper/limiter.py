"""Limiter and AsyncLimiter: a constructor, and methods of a line or two over stores and flows."""

from __future__ import annotations

from ratekeeper.awaitable import AsyncCall, awaited
from ratekeeper.check import Check, to_cost
from ratekeeper.errors import Closed, InvalidInput, InvalidStore, shown
from ratekeeper.keys import encode
from ratekeeper.limit import parse_limits
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_options, expect_store
from ratekeeper.units import to_micros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TypeVar, overload

    from ratekeeper.algorithms import Algorithm
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.flow.run import AsyncFlowRunner, FlowRunner
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit
    from ratekeeper.reservation import AsyncReservation, Reservation
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])
else:

    def overload(function):  # typing is slow to import
        return function


class AnyLimiter:
    """What Limiter and AsyncLimiter share: the constructor, the state of a limiter, and the decorator."""

    if not TYPE_CHECKING:

        def __new__(cls, *limits, **options):
            """Refuse arguments that ``__init__`` does not take, with the right spelling."""
            if cls.__init__ is AnyLimiter.__init__ and (
                len(limits) + ("limits" in options) != 1 or not options.keys() <= cls.__init__.__annotations__.keys()
            ):
                from ratekeeper.arguments import misspelled

                raise misspelled(cls, limits, options)
            return object.__new__(cls)

    def __init__(
        self,
        limits: str | Limit | Iterable[str | Limit],
        *,
        algorithm: Algorithm | None = None,
        store: str | Store = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        max_keys: int | None = None,
        on_store_error: str | None = None,
        deadline: Seconds | None = None,
        local_share: float | None = None,
        prefetch: str | int | None = None,
    ) -> None:
        self.limits = parse_limits(limits, algorithm)
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidInput(f"name: expected text, got {shown(name)}. It separates limiters that share a store.")
        self.name = name or str(self.limits)
        self._owns_store = isinstance(store, str)
        options = {"on_store_error": on_store_error, "deadline": deadline, "local_share": local_share}
        expect_options("limiter", prefetch=prefetch, **options)
        if isinstance(store, str):
            self.store = open_store(store, clock=clock, max_keys=max_keys, asynchronous=self._is_async, **options)
        elif not all(each is None for each in (clock, max_keys, deadline, local_share)):
            raise InvalidStore(
                "store: expected clock, max_keys, deadline and local_share to be given to the store itself, "
                "got them beside it."
            )
        else:
            expect_store(store)
            self.store = store
        self._on_store_error = on_store_error
        table = self._table(prefetch)
        if table is not None:
            self._serve(table)
        if self.store.blocking:
            warm_up = getattr(self.store, "warm_up", None)
            if warm_up is not None:  # of a store elsewhere: it starts to connect
                warm_up()

    if not TYPE_CHECKING:
        __new__.__wrapped__ = __init__  # what inspect.signature and help() show

    _is_async = False
    _runner: Any = None  # see _flows
    _close_table: Callable[[], Any] | None = None
    _check_now: Callable[..., Decision] | None = None  # a table's check, if an admitted call may go ahead at once
    check: Any

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return isinstance(self.store, ClosedStore)

    @property
    def clock(self) -> Clock:
        """The clock of the store: a FakeClock in tests."""
        return self.store.clock

    def _table(self, prefetch: str | int | None) -> Any:
        """The table of the store that answers ``check`` with the least work, if the store has tables."""
        make = getattr(self.store, "table", None)
        if make is None:
            return None
        try:
            return make(self.name, self.limits, self._on_store_error, prefetch=prefetch, strict=True)
        except InvalidStore:  # the caller gets no limiter to close
            if self._owns_store and not self.store.blocking:  # a remote store is not connected yet: see warm_up
                self.store.close()
            raise

    def _serve(self, table: Any) -> None:
        self._close_table = getattr(table, "close", None)  # of a table that prefetches: it gives back what is left
        self.check = table.check  # the one bypass: the table's own method, with nothing in between
        if not self.store.blocking and not self.limits.is_queue:  # a leaky bucket admits calls that must still wait
            self._check_now = table.check

    def _flows(self) -> Any:
        """What runs flows here.  The first call that needs it makes it, so that importing us does not load flows."""
        runner = self._runner
        if runner is None:
            from ratekeeper.flow import run

            new = (run.AsyncFlowRunner if self._is_async else run.FlowRunner)(self.store)
            runner = self.__dict__.setdefault("_runner", new)
            if self.is_closed:  # by another thread, which did not see the runner: _close sets store, then reads _runner
                runner.close(self.store)
        return runner

    def _share_queue(self, other: AnyLimiter) -> None:
        """Let the calls of both limiters, which share a store and a name, wait in one queue."""
        self._flows().queue = other._flows().queue

    def _take_now(self, key: Key, cost: int) -> Decision | None:
        """What ``acquire`` returns if the cost fits and no call waits for ``key``; None: run the flow."""
        if self._check_now is None or (self._runner is not None and encode(key) in self._runner.queue.waiting):
            return None
        decision = self._check_now(key, cost)
        return decision if decision.allowed else None

    def _plan(self, key: Key, cost: int) -> Check:
        return Check(self.name, encode(key), self.limits, to_cost(cost), self._on_store_error)

    def _lease(self, check: Check) -> Check:
        """The check with the id of a new lease."""
        from ratekeeper.flow.lease_renewal import named_lease

        return named_lease(check, self.store)

    def _refundable(self, key: Key, cost: int) -> Check:
        if self.limits.is_leased:
            raise InvalidInput(
                f"refund: expected a limit without leases, got '{self.limits}', which is given back by the lease. "
                "Use reserve() as a block, or settle its reservation."
            )
        return self._plan(key, cost)

    def _close(self) -> Store:
        """Let waiting and later calls raise Closed; returns the store, which is still open."""
        store = self.store
        self.store = ClosedStore(self.name)
        self._check_now = None
        self.__dict__.pop("check", None)
        if self._runner is not None:
            self._runner.close(self.store)
        return store

    def _expect_open(self, block: str) -> None:
        if self.is_closed:
            raise Closed(
                f"limiter {self.name!r}: expected an open limiter, but the end of a {block!r} block has closed it. "
                f"To limit a block, write: {block} limiter.reserve(key)."
            )

    def _warn_if_unused(self, block: str) -> None:
        """Warn of a block that was meant to be limited, as in other libraries: this one only closes the limiter."""
        if self.is_closed or not self._owns_store or self.store.blocking or self._runner is not None:
            return
        size = getattr(self.store, "size", None)
        if size is not None and not size() and not self.limits.parts[0].is_unlimited:
            from warnings import warn

            warn(
                f"limiter {self.name!r}: expected calls of the limiter inside {block!r}, which closes it at the end, "
                f"got none: nothing was limited. To limit a block, write: {block} limiter.reserve(key).",
                RuntimeWarning,
                stacklevel=3,
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.limits)!r}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidInput(
            f"limiter {self.name!r}: expected to be made where it is used, because it holds locks and connections, "
            "got a copy or a pickle of it. Make one in each process; shm:// and redis:// let them count together."
        )

    @overload
    def limit(self, function: F) -> F: ...

    @overload
    def limit(  # noqa: F811 - ruff knows overload by the name of typing only
        self,
        function: None = None,
        *,
        key: Key | Callable[..., Any] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: Seconds | None = None,
    ) -> Callable[[F], F]: ...

    def limit(  # noqa: F811
        self,
        function: F | None = None,
        *,
        key: Key | Callable[..., Any] | None = None,
        cost: int | Callable[..., int] = 1,
        timeout: Seconds | None = None,
    ) -> Any:
        """Decorate a function, sync or async, to check each call first; a refused call raises LimitExceeded.

        ``key`` and ``cost`` may be functions of the call's own arguments.  Without a key all calls count together.
        With a ``timeout`` a call waits up to that many seconds for its turn.
        """
        from ratekeeper.decorator import decorated

        timeout_micros(timeout)
        if function is not None:
            return decorated(self, function, key, cost, timeout)
        return lambda function: decorated(self, function, key, cost, timeout)


# Python's own errors about arguments name the public class.
AnyLimiter.__init__.__qualname__ = "Limiter.__init__"
AnyLimiter.limit.__qualname__ = "Limiter.limit"


class Limiter(AnyLimiter):
    """Limits how often each key may act: ``Limiter("100/minute").check("user:42")``.

    ``limits`` is a limit or a list of limits, which are decided together, all or nothing.  ``name`` separates limiters
    that share a ``store``; the default is the text of the limits.  ``max_keys`` bounds the memory of a store in this
    process.  If a store elsewhere does not answer within ``deadline`` seconds, ``on_store_error`` decides: ``local``
    (a limit in this process, ``local_share`` of the full one), ``allow`` or ``deny``.  ``limits``, ``name`` and
    ``store`` are attributes too.
    """

    if TYPE_CHECKING:

        def _flows(self) -> FlowRunner: ...

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        return self._flows().ask("check", self._plan(key, cost))

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Return the decision that ``check`` would make, and take nothing."""
        return self._flows().ask("peek", self._plan(key, cost))

    def acquire(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Decision:
        """Wait until ``cost`` fits, first come first served; refuse at once if that takes over ``timeout`` seconds.

        Calls of a higher ``priority`` are served first, except before the call that is already first in the queue.
        """
        patience = timeout_micros(timeout)
        expect_priority(priority)
        if (decision := self._take_now(key, cost)) is not None:
            return decision
        return self._flows().acquire(self._plan(key, cost), patience, priority)

    def reserve(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Reservation:
        """Take ``cost`` now, or within ``timeout`` seconds, and settle later for what was really used.

        In a ``with`` block a refusal raises LimitExceeded, and an exception gives everything back.  A lease, of a limit
        such as ``"20 concurrent"``, is always given back at the end of the block.
        """
        from ratekeeper.reservation import Reservation  # here, so that importing us does not import it

        check = self._plan(key, cost)
        expect_priority(priority)
        if self.limits.is_leased:
            check = self._lease(check)
            patience = timeout_micros(timeout)
            flows = self._flows()
            return Reservation(
                self, check, flows.hold(check) if patience is None else flows.acquire(check, patience, priority)
            )
        if timeout is None:
            return Reservation(self, check, self._flows().ask("check", check))
        return Reservation(self, check, self.acquire(key, cost, timeout, priority))

    def refund(self, key: Key, cost: int = 1) -> Decision:
        """Give ``cost`` back, never above the capacity."""
        return self._flows().ask("refund", self._refundable(key, cost))

    def reset(self, key: Key) -> None:
        """Forget what ``key`` has used; raises StoreUnavailable if the store does not answer."""
        self.store.reset((self._plan(key, 1),))

    def close(self) -> None:
        """Close the store, if this limiter opened it.  Calls that wait, and all later ones, raise Closed."""
        if not self.is_closed:
            store = self._close()  # first, so that no call reaches a store that is being closed
            if self._owns_store:
                store.close()
            elif self._close_table is not None:
                self._close_table()

    def __enter__(self) -> Limiter:
        """Close the limiter at the end of the block; to limit a block, use ``reserve``."""
        self._expect_open("with")
        return self

    def __exit__(self, *error: object) -> None:
        self._warn_if_unused("with")
        self.close()


class AsyncLimiter(AnyLimiter):
    """Limiter for an event loop: the same constructor and the same methods, to be awaited."""

    if TYPE_CHECKING:

        def _flows(self) -> AsyncFlowRunner: ...

    _is_async = True

    def _serve(self, table: Any) -> None:
        super()._serve(table)
        self.check = AsyncCall(table.check, "AsyncLimiter.check", self.store.blocking).call  # type: ignore[method-assign]

    @awaited
    async def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        return await self._flows().ask("check", self._plan(key, cost))

    @awaited
    async def peek(self, key: Key, cost: int = 1) -> Decision:
        """Return the decision that ``check`` would make, and take nothing."""
        return await self._flows().ask("peek", self._plan(key, cost))

    @awaited
    async def acquire(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Decision:
        """Wait until ``cost`` fits, first come first served; refuse at once if that takes over ``timeout`` seconds.

        Calls of a higher ``priority`` are served first, except before the call that is already first in the queue.
        """
        patience = timeout_micros(timeout)
        expect_priority(priority)
        if (decision := self._take_now(key, cost)) is not None:
            return decision
        return await self._flows().acquire(self._plan(key, cost), patience, priority)

    def reserve(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> AsyncReservation:
        """Take ``cost`` now, or within ``timeout`` seconds, and settle later: ``async with``, or await it.

        In an ``async with`` block a refusal raises LimitExceeded, and an exception gives everything back.  A lease, of
        a limit such as ``"20 concurrent"``, is always given back at the end of the block.
        """
        from ratekeeper.reservation import AsyncReservation

        expect_priority(priority)
        check = self._plan(key, cost)
        if self.limits.is_leased:
            check = self._lease(check)
        return AsyncReservation(self, check, timeout_micros(timeout), priority)

    @awaited
    async def refund(self, key: Key, cost: int = 1) -> Decision:
        """Give ``cost`` back, never above the capacity."""
        return await self._flows().ask("refund", self._refundable(key, cost))

    @awaited
    async def reset(self, key: Key) -> None:
        """Forget what ``key`` has used; raises StoreUnavailable if the store does not answer."""
        reset: Callable[..., Any] = self.store.reset
        await finish(reset((self._plan(key, 1),)))

    async def close(self) -> None:
        """Close the store, if this limiter opened it.  Calls that wait, and all later ones, raise Closed."""
        if not self.is_closed:
            close: Callable[..., Any] = self._close().close
            if self._owns_store:
                await finish(close())
            elif self._close_table is not None:
                await finish(self._close_table())

    async def __aenter__(self) -> AsyncLimiter:
        """Close the limiter at the end of the block; to limit a block, use ``reserve``."""
        self._expect_open("async with")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._warn_if_unused("async with")
        await self.close()


class ClosedStore:
    """The store of a closed limiter: every operation raises Closed."""

    blocking = True

    def __init__(self, name: str) -> None:
        self.why = f"limiter {name!r}: expected an open limiter, but it was closed. Make a new one."

    def __getattr__(self, operation: str) -> NoReturn:
        raise Closed(self.why)


async def finish(outcome: Any) -> None:
    """Await ``outcome`` if the store is asynchronous; others have finished already."""
    if hasattr(outcome, "__await__"):
        await outcome


def timeout_micros(timeout: Seconds | None) -> int | None:
    if timeout is None:
        return None
    micros = to_micros(timeout, "timeout")
    if micros < 0:
        raise InvalidInput(f"timeout: expected seconds of at least 0, got {shown(timeout)}.")
    return micros


def expect_priority(priority: object) -> None:
    if priority.__class__ is not int:
        raise InvalidInput(f"priority: expected a whole number, got {shown(priority)}.")

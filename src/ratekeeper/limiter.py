"""Limiter and AsyncLimiter: constructors, and methods of a line or two over flows and stores."""

from __future__ import annotations

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import Closed, InvalidInput, InvalidStore, shown
from ratekeeper.flow.acquire import acquire
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask
from ratekeeper.keys import encode
from ratekeeper.limit import parse_limits
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_options, expect_store
from ratekeeper.units import to_micros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, NoReturn, TypeVar, overload

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit
    from ratekeeper.reservation import AsyncReservation, Reservation
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    F = TypeVar("F", bound=Callable[..., Any])
else:

    def overload(function):  # typing is slow to import
        return function


class Front:
    """What both limiters are made of: the limit, its name, where its state lives and who waits for it."""

    def __init__(
        self,
        limits: str | Limit | Iterable[str | Limit],
        *,
        algorithm: str | None = None,
        store: str | Store = "memory://",
        name: str | None = None,
        clock: Clock | None = None,
        max_keys: int | None = None,
        on_store_error: str | None = None,
        deadline: Seconds | None = None,
        local_share: float | None = None,
        lease: str | int | None = None,
    ) -> None:
        self.limits = parse_limits(limits, algorithm)
        if name is not None and not (isinstance(name, str) and name):
            raise InvalidInput(f"name: expected text, got {shown(name)}. It keeps limiters on one store apart.")
        self.name = name or str(self.limits)
        self.owns_store = isinstance(store, str)
        options = {"on_store_error": on_store_error, "deadline": deadline, "local_share": local_share}
        expect_options("limiter", lease=lease, **options)
        if isinstance(store, str):
            self.store = open_store(store, clock=clock, max_keys=max_keys, asynchronous=self.asynchronous, **options)
        elif not all(each is None for each in (clock, max_keys, deadline, local_share)):
            raise InvalidStore(
                "store: expected clock, max_keys, deadline and local_share to be given to the store itself, "
                "got them beside it."
            )
        else:
            expect_store(store)
            self.store = store
        self.lines = WaitQueue()
        self.on_store_error = on_store_error
        self.lease = lease
        table = self.table()
        if table is not None:
            self.serve(table)

    asynchronous = False
    check: Any
    at_once: Callable[..., Decision] | None = None  # a table's check, where admitted means admitted now

    def shut(self) -> None:
        self.store = ClosedStore(self.name)
        self.at_once = None
        self.__dict__.pop("check", None)
        self.lines.close(self.store.why)

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return isinstance(self.store, ClosedStore)

    @property
    def clock(self) -> Clock:
        """Where its time comes from."""
        return self.store.clock

    def table(self) -> Any:
        """Where ``check`` is answered with the least work, if the store has such a place."""
        make = getattr(self.store, "table", None)
        if make is None:
            return None
        try:
            return make(self.name, self.limits, self.on_store_error, lease=self.lease, strict=True)
        except InvalidStore:  # there will be no limiter to close it
            if self.owns_store and not self.store.blocking:
                self.store.close()
            raise

    def serve(self, table: Any) -> None:
        self.check = table.check  # the one bypass: the table's own method, with nothing in between
        parts: Any = self.limits.parts
        if not self.store.blocking and all(part.algorithm != "leaky_bucket" for part in parts):  # that gives turns
            self.at_once = table.check

    def taken_at_once(self, key: Key, cost: int) -> Decision | None:
        """What ``acquire`` returns if nobody waits and it fits: no line, no flow."""
        if self.at_once is None or encode(key) in self.lines.lines:
            return None
        decision = self.at_once(key, cost)
        return decision if decision.allowed else None

    def plan(self, key: Key, cost: int) -> Check:
        return Check(self.name, encode(key), self.limits, whole_cost(cost), self.on_store_error)

    def refundable(self, key: Key, cost: int) -> Check:
        if self.limits.is_leased:
            raise InvalidInput(
                f"refund: expected the reservation of a lease to be settled, as a lease of '{self.limits}' is known by "
                "when it was taken. Use reserve() as a block."
            )
        return self.plan(key, cost)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.limits)!r}, name={self.name!r})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidInput(
            f"limiter {self.name!r}: expected to be made where it is used, as it holds locks and connections, got a "
            "copy or a pickle of it. Make one in each process; shm:// and redis:// let them count together."
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
        """Decorate a function, plain or async, so that each call is checked first; raises LimitExceeded.

        ``key`` and ``cost`` may be functions of the call's own arguments.  Without a key all calls count together.
        With a ``timeout`` a call waits up to so many seconds for its turn.
        """
        from ratekeeper.decorator import decorated

        patience(timeout)
        if function is not None:
            return decorated(self, function, key, cost, timeout)
        return lambda function: decorated(self, function, key, cost, timeout)


class Limiter(Front):
    """Limits what any key may do: ``Limiter("100/minute").check("user:42")``.

    ``limits`` is a limit, a text or a list of them, which are then decided together, all or nothing.  ``name`` keeps
    limiters apart that share a ``store``; by default it is the limit's text.
    """

    def ask(self, operation: str, check: Check) -> Decision:
        flow = ask(operation, (check,))
        return drive(flow, self.store, self.clock, self.lines)[0]

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        return self.ask("check", self.plan(key, cost))

    def peek(self, key: Key, cost: int = 1) -> Decision:
        """Say what ``check`` would, and take nothing."""
        return self.ask("peek", self.plan(key, cost))

    def acquire(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Decision:
        """Wait for one's turn, first come first served; refused at once if it comes later than ``timeout`` seconds.

        A higher ``priority`` goes before a lower one, except before whoever is already first in line.
        """
        waits = patience(timeout)
        whole_priority(priority)
        if (decision := self.taken_at_once(key, cost)) is not None:
            return decision
        flow = acquire(self.lines, self.plan(key, cost), waits, self.clock, priority)
        return drive(flow, self.store, self.clock, self.lines)

    def reserve(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Reservation:
        """Take ``cost`` now, or within ``timeout`` seconds, and settle later for what was really used.

        In a ``with`` block a refusal raises LimitExceeded, and an exception gives everything back.  A lease, of a limit
        such as ``"20 concurrent"``, is given back at the end of the block in any case.
        """
        from ratekeeper.reservation import Reservation  # here, so that importing us does not import it

        plan = self.plan(key, cost)
        whole_priority(priority)
        if timeout is None:
            return Reservation(self, plan, self.ask("check", plan))
        return Reservation(self, plan, self.acquire(key, cost, timeout, priority))

    def refund(self, key: Key, cost: int = 1) -> Decision:
        """Give ``cost`` back, never above the capacity."""
        return self.ask("refund", self.refundable(key, cost))

    def reset(self, key: Key) -> None:
        """Forget all that ``key`` has used; raises StoreUnavailable if the store does not answer."""
        self.store.reset((self.plan(key, 1),))

    def close(self) -> None:
        """Let go of the store, if this limiter opened it; whoever waits, and every later call, raises Closed."""
        if self.is_closed:
            return
        store = self.store
        self.shut()  # first, so that nobody asks a store that is being closed
        if self.owns_store:
            store.close()

    def __enter__(self) -> Limiter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncLimiter(Front):
    """Limiter for an event loop: the same methods, to be awaited."""

    asynchronous = True

    def serve(self, table: Any) -> None:
        super().serve(table)
        if not self.store.blocking:
            answer = table.check

            async def check(key: Key, cost: int = 1) -> Decision:
                return answer(key, cost)

            self.check = check  # type: ignore[method-assign]

    async def ask(self, operation: str, check: Check) -> Decision:
        flow = ask(operation, (check,))
        return (await adrive(flow, self.store, self.clock, self.lines))[0]

    async def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        return await self.ask("check", self.plan(key, cost))

    async def peek(self, key: Key, cost: int = 1) -> Decision:
        """Say what ``check`` would, and take nothing."""
        return await self.ask("peek", self.plan(key, cost))

    async def acquire(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> Decision:
        """Wait for one's turn, first come first served; refused at once if it comes later than ``timeout`` seconds.

        A higher ``priority`` goes before a lower one, except before whoever is already first in line.
        """
        waits = patience(timeout)
        whole_priority(priority)
        if (decision := self.taken_at_once(key, cost)) is not None:
            return decision
        flow = acquire(self.lines, self.plan(key, cost), waits, self.clock, priority)
        return await adrive(flow, self.store, self.clock, self.lines)

    def reserve(self, key: Key, cost: int = 1, timeout: Seconds | None = None, priority: int = 0) -> AsyncReservation:
        """Take ``cost`` now, or within ``timeout`` seconds, and settle later: ``async with``, or await it.

        In an ``async with`` block a refusal raises LimitExceeded, and an exception gives everything back.  A lease, of
        a limit such as ``"20 concurrent"``, is given back at the end of the block in any case.
        """
        from ratekeeper.reservation import AsyncReservation

        whole_priority(priority)
        return AsyncReservation(self, self.plan(key, cost), patience(timeout), priority)

    async def refund(self, key: Key, cost: int = 1) -> Decision:
        """Give ``cost`` back, never above the capacity."""
        return await self.ask("refund", self.refundable(key, cost))

    async def reset(self, key: Key) -> None:
        """Forget all that ``key`` has used; raises StoreUnavailable if the store does not answer."""
        reset: Callable[..., Any] = self.store.reset
        await settled(reset((self.plan(key, 1),)))

    async def close(self) -> None:
        """Let go of the store, if this limiter opened it; whoever waits, and every later call, raises Closed."""
        if self.is_closed:
            return
        close: Callable[..., Any] = self.store.close
        self.shut()
        if self.owns_store:
            await settled(close())

    async def __aenter__(self) -> AsyncLimiter:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class ClosedStore:
    """Stands in for the store of a closed limiter."""

    blocking = True

    def __init__(self, name: str) -> None:
        self.why = f"limiter {name!r}: expected an open limiter, but it was closed. Make a new one."

    def __getattr__(self, operation: str) -> NoReturn:
        raise Closed(self.why)


async def settled(outcome: Any) -> None:
    if hasattr(outcome, "__await__"):
        await outcome


def patience(timeout: Seconds | None) -> int | None:
    if timeout is None:
        return None
    micros = to_micros(timeout, "timeout")
    if micros < 0:
        raise InvalidInput(f"timeout: expected seconds of at least 0, got {shown(timeout)}.")
    return micros


def whole_priority(priority: object) -> None:
    if priority.__class__ is not int:
        raise InvalidInput(f"priority: expected a whole number, got {shown(priority)}.")

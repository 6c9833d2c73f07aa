"""Runs the flows of one limiter.  The first call that needs a flow makes its runner: ``check`` needs none of this."""

from __future__ import annotations

from ratekeeper.flow.acquire import acquire
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.flow.lease_renewal import renewer_of
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask, hold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ratekeeper.check import Check
    from ratekeeper.decision import Decision
    from ratekeeper.flow.effects import Flow

    T = TypeVar("T")


class AnyRunner:
    """The store of one limiter, and the queue of the calls that wait for it."""

    __slots__ = ("queue", "store")

    def __init__(self, store: Any) -> None:
        self.store = store
        self.queue = WaitQueue()

    def close(self, closed_store: Any) -> None:
        """Let every waiting call, and every later one, raise Closed."""
        self.store = closed_store
        self.queue.close(closed_store.why)


class FlowRunner(AnyRunner):
    """Runs flows in the calling thread."""

    __slots__ = ()

    def run(self, flow: Flow[T]) -> T:
        return drive(flow, self.store, self.store.clock, self.queue)

    def ask(self, operation: str, check: Check) -> Decision:
        return drive(ask(operation, (check,)), self.store, self.store.clock, self.queue)[0]

    def hold(self, check: Check) -> Decision:
        return drive(hold((check,), renewer_of(self.store)), self.store, self.store.clock, self.queue)[0]

    def acquire(self, check: Check, patience: int | None, priority: int) -> Decision:
        renewer = renewer_of(self.store) if check.lease else None
        flow = acquire(self.queue, check, patience, self.store.clock, priority, renewer)
        return drive(flow, self.store, self.store.clock, self.queue)


class AsyncFlowRunner(AnyRunner):
    """Runs flows on the event loop of the calling task."""

    __slots__ = ()

    async def run(self, flow: Flow[T]) -> T:
        return await adrive(flow, self.store, self.store.clock, self.queue)

    async def ask(self, operation: str, check: Check) -> Decision:
        return (await adrive(ask(operation, (check,)), self.store, self.store.clock, self.queue))[0]

    async def hold(self, check: Check) -> Decision:
        return (await adrive(hold((check,), renewer_of(self.store)), self.store, self.store.clock, self.queue))[0]

    async def acquire(self, check: Check, patience: int | None, priority: int) -> Decision:
        renewer = renewer_of(self.store) if check.lease else None
        flow = acquire(self.queue, check, patience, self.store.clock, priority, renewer)
        return await adrive(flow, self.store, self.store.clock, self.queue)

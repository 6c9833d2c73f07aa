"""An asyncio loop that a system task of trio runs, one turn at a time, in trio's own thread.

The Redis store, its look-ups, probes and heartbeats are written for asyncio.  On trio they run unchanged on this loop.
A task of trio awaits their futures (``TrioFuture``); what needs more of asyncio runs as a task of the loop (``run``).
The loop's selector is a file that trio watches: a turn comes when the selector has an event, a timer is due, or
something was scheduled.  Each trio.run has its own loop, which ends with it.

Cancelling a task of trio cancels what it awaits, as asyncio does.  An answer that has already come is delivered: trio
cancels the task at its next checkpoint.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import trio
from trio.lowlevel import Abort, RunVar, current_task, reschedule, spawn_system_task, wait_readable
from trio.lowlevel import wait_task_rescheduled as wait_until_rescheduled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextvars import Context
    from typing import Any, TypeVar

    T = TypeVar("T")

LAST_TURNS = 100  # in which the loop's tasks may end after they were cancelled


class TrioFuture(asyncio.Future):  # type: ignore[type-arg]
    """A future that tasks of trio await too."""

    def __await__(self) -> Generator[Any, Any, Any]:
        if asyncio._get_running_loop() is not None:  # a task of the loop itself
            return super().__await__()
        return outcome_of(self).__await__()


async def outcome_of(future: asyncio.Future[T]) -> T:
    """Wait for a future in a task of trio; a cancelled task cancels the future."""
    if future.done():
        return future.result()
    task = current_task()
    is_waiting = True

    def wake(_: object) -> None:
        if is_waiting:
            reschedule(task)

    def abort(_: object) -> Abort:
        nonlocal is_waiting
        if future.done():
            return Abort.FAILED  # it was answered, and ``wake`` is about to be called
        is_waiting = False
        future.cancel()
        return Abort.SUCCEEDED

    future.add_done_callback(wake)
    await wait_until_rescheduled(abort)
    return future.result()


async def end_of(task: asyncio.Task[T]) -> T:
    """Wait for a task of the loop in a task of trio, until it has ended, also if it is cancelled."""
    waiting = current_task()
    raise_cancel: Callable[[], Any] | None = None

    def abort(raise_cancelled: Callable[[], Any]) -> Abort:
        nonlocal raise_cancel
        raise_cancel = raise_cancelled
        task.cancel()
        return Abort.FAILED

    task.add_done_callback(lambda _: reschedule(waiting))
    await wait_until_rescheduled(abort)
    if raise_cancel is not None and task.cancelled():
        raise_cancel()
    return task.result()


class TrioLoop(asyncio.SelectorEventLoop):
    """The asyncio loop of one trio.run."""

    def __init__(self) -> None:
        import selectors

        selector = selectors.DefaultSelector()
        if not hasattr(selector, "fileno"):
            selector.close()
            raise RuntimeError(
                "trio: expected a system with epoll or kqueue for a store elsewhere, got one without. "
                "Use asyncio, or memory://."
            )
        super().__init__(selector)
        self.selector_file: int = selector.fileno()
        self.timers: list[float] = []  # instants of the loop's clock, a heap
        self.is_due = False  # something was scheduled for the next turn
        self.sleep: trio.CancelScope | None = None

    def create_future(self) -> asyncio.Future[Any]:
        return TrioFuture(loop=self)

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:  # type: ignore[override]
        handle = super().call_soon(callback, *args, context=context)
        if not self.is_due:
            self.is_due = True
            if self.sleep is not None:
                self.sleep.cancel()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        heappush(self.timers, when)
        if self.sleep is not None and self.timers[0] == when:
            self.sleep.cancel()  # to sleep until that instant instead
        return handle

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine as a task of the loop, and wait for it in a task of trio."""
        return await end_of(self.create_task(coroutine))

    async def turn_forever(self) -> None:
        """Give the loop its turns until trio cancels this system task: the main task has ended."""
        try:
            while True:
                await self.wait_until_due()
                self.turn()
        finally:
            self.end()

    async def wait_until_due(self) -> None:
        if self.is_due:
            await trio.lowlevel.checkpoint()
            return
        timeout = self.timers[0] - self.time() if self.timers else inf
        with trio.move_on_after(max(0.0, timeout)) as self.sleep:
            await wait_readable(self.selector_file)
        self.sleep = None

    def turn(self) -> None:
        """Run what is due, and no more: ``stop`` before ``run_forever`` is asyncio's documented way to do that."""
        self.is_due = False
        now = self.time()
        while self.timers and self.timers[0] <= now:
            heappop(self.timers)
        self.stop()
        self.run_forever()

    def end(self) -> None:
        self.sleep = None
        for _ in range(LAST_TURNS):
            tasks = asyncio.all_tasks(self)
            if not tasks and not self.is_due:
                break
            for task in tasks:
                task.cancel()
            self.turn()  # transports that were closed release their sockets in a later one
        self.close()


loops: RunVar[TrioLoop] = RunVar("ratekeeper.loop")


def current_loop() -> TrioLoop:
    """Return the loop of the running trio.run, which starts it first if need be."""
    try:
        loop = loops.get()
    except LookupError:
        loop = TrioLoop()
        loops.set(loop)
        spawn_system_task(loop.turn_forever, name="ratekeeper.loop")
    return loop

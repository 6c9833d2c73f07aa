"""Runs flows: ``drive`` with blocking stores and sleeps, ``adrive`` on an event loop.

The two are the same function, once blocking and once async, and short enough to be compared by eye.
"""

from __future__ import annotations

from _thread import allocate_lock

from ratekeeper.errors import InvalidInput
from ratekeeper.event_loop import is_cancellation_of_trio, run_on_loop, running_loop, shielded
from ratekeeper.flow.effects import Ask, Await, Sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Coroutine
    from typing import Any, TypeVar

    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow, Turn
    from ratekeeper.flow.queue import WaitQueue
    from ratekeeper.stores.protocol import Store

    T = TypeVar("T")


def drive(flow: Flow[T], store: Store, clock: Clock, queue: WaitQueue) -> T:
    outcome: Any = None
    step = flow.send
    while True:
        try:
            effect = step(outcome)
        except StopIteration as done:
            return done.value
        try:
            if effect.__class__ is Ask:
                outcome = getattr(store, effect.operation)(*effect.arguments)
            elif effect.__class__ is Sleep:
                outcome = None
                clock.sleep(effect.micros)
            elif effect.__class__ is Await:
                getattr(effect.result, "close", int)()  # else Python warns that it was never awaited
                raise InvalidInput(
                    "limit: expected a plain function, as nothing can be awaited here, got an async one."
                )
            else:
                outcome = wait_turn(effect, clock, queue)
            step = flow.send
        except BaseException as error:
            outcome, step = error, flow.throw


async def adrive(flow: Flow[T], store: Store, clock: Clock, queue: WaitQueue, thrown: BaseException | None = None) -> T:
    outcome: Any = thrown
    step = flow.send if thrown is None else flow.throw
    while True:
        try:
            effect = step(outcome)
        except StopIteration as done:
            return done.value
        try:
            if effect.__class__ is Ask:
                outcome = getattr(store, effect.operation)(*effect.arguments)
                if hasattr(outcome, "__await__"):
                    outcome = await outcome
            elif effect.__class__ is Sleep:
                outcome = None
                await clock.asleep(effect.micros)
            elif effect.__class__ is Await:
                outcome = await effect.result
            else:
                outcome = await await_turn(effect, clock, queue)
            step = flow.send
        except BaseException as error:
            if thrown is None and is_cancellation_of_trio(error):  # what the flow gives back must arrive
                with shielded():
                    return await adrive(flow, store, clock, queue, error)
            outcome, step = error, flow.throw


def wait_turn(turn: Turn, clock: Clock, queue: WaitQueue) -> bool:
    gate = allocate_lock()
    gate.acquire()
    queue.when_first(turn.waiter, gate.release)
    return clock.wait(gate, turn.micros)


async def await_turn(turn: Turn, clock: Clock, queue: WaitQueue) -> bool:
    import asyncio

    loop = running_loop()
    is_first: asyncio.Future[None] = loop.create_future()

    def set_first() -> None:
        if not is_first.done():
            is_first.set_result(None)

    def wake() -> None:
        if asyncio._get_running_loop() is loop:
            set_first()  # already on its loop, which is awake
            return
        try:
            loop.call_soon_threadsafe(set_first)
        except RuntimeError:  # the loop was closed with this task pending: it will never take its turn
            queue.leave(turn.waiter, served=False)

    queue.when_first(turn.waiter, wake)
    if turn.micros is None:
        await is_first
        return True
    await run_on_loop(wait_at_most(is_first, clock.asleep(turn.micros)))
    return is_first.done()


async def wait_at_most(is_first: Future[None], sleep: Coroutine[Any, Any, None]) -> None:
    import asyncio

    deadline = asyncio.ensure_future(sleep)
    try:
        await asyncio.wait({is_first, deadline}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        deadline.cancel()

"""Runs flows: ``drive`` with blocking stores and sleeps, ``adrive`` on an event loop.

The two are one function in two colours, kept so short that they can be compared by eye.
"""

from __future__ import annotations

from _thread import allocate_lock

from ratekeeper.flow.effects import Ask, Sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow, Turn
    from ratekeeper.flow.queue import WaitQueue
    from ratekeeper.stores.protocol import Store

    T = TypeVar("T")


def drive(flow: Flow[T], store: Store, clock: Clock, lines: WaitQueue) -> T:
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
            else:
                outcome = wait_turn(effect, clock, lines)
            step = flow.send
        except BaseException as error:
            outcome, step = error, flow.throw


async def adrive(flow: Flow[T], store: Store, clock: Clock, lines: WaitQueue) -> T:
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
                if hasattr(outcome, "__await__"):
                    outcome = await outcome
            elif effect.__class__ is Sleep:
                outcome = None
                await clock.asleep(effect.micros)
            else:
                outcome = await await_turn(effect, clock, lines)
            step = flow.send
        except BaseException as error:
            outcome, step = error, flow.throw


def wait_turn(turn: Turn, clock: Clock, lines: WaitQueue) -> bool:
    gate = allocate_lock()
    gate.acquire()
    lines.when_first(turn.ticket, gate.release)
    return clock.wait(gate, turn.micros)


async def await_turn(turn: Turn, clock: Clock, lines: WaitQueue) -> bool:
    import asyncio

    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not first.done():
            first.set_result(None)

    def called() -> None:
        if asyncio._get_running_loop() is loop:
            wake()  # no need to wake the loop itself
            return
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:  # that loop was closed with this task pending: it will never take its turn
            lines.leave(turn.ticket, served=False)

    lines.when_first(turn.ticket, called)
    if turn.micros is None:
        await first
        return True
    deadline = asyncio.ensure_future(clock.asleep(turn.micros))
    try:
        await asyncio.wait({first, deadline}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        deadline.cancel()
    return first.done()

"""The event loop of the calling task: the running one of asyncio, or on trio an asyncio loop that trio runs.

Everything that needs timers, sockets or background tasks takes its loop from here.  ``trio_loop.py`` has the loop of
trio; without trio it is never imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Callable, Coroutine
    from contextlib import AbstractContextManager
    from typing import Any, TypeVar

    T = TypeVar("T")


class NoShield:
    """A context that does nothing."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


NO_SHIELD = NoShield()


def running_loop() -> AbstractEventLoop:
    """Return the loop for the calling task; raise RuntimeError if there is none."""
    from asyncio import _get_running_loop, get_running_loop

    loop = _get_running_loop()
    if loop is not None:
        return loop
    return trio_loop() if is_trio_task() else get_running_loop()


def trio_loop() -> AbstractEventLoop:
    """Return the loop that trio runs; raise RuntimeError if the caller is not a task of trio."""
    if not is_trio_task():
        raise RuntimeError("no running event loop")  # as asyncio says
    from ratekeeper.trio_loop import current_loop

    return current_loop()


def is_trio_task() -> bool:
    """Whether a task of trio calls, and not one of a loop that trio runs."""
    from asyncio import _get_running_loop
    from sys import modules

    trio = modules.get("trio")
    return trio is not None and _get_running_loop() is None and bool(trio.lowlevel.in_trio_task())


def async_sleep() -> Callable[[float], Awaitable[None]]:
    """The sleep of asyncio or trio, in seconds."""
    if is_trio_task():
        from trio import sleep

        return sleep
    from asyncio import sleep as sleep_on_loop

    return sleep_on_loop


def future_type(loop: AbstractEventLoop) -> Any:
    """The class of the futures of a loop."""
    from asyncio import Future

    return type(loop.create_future()) if hasattr(loop, "turn_forever") else Future


async def run_on_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that needs asyncio: directly, or on trio as a task of the loop that trio runs."""
    if not is_trio_task():
        return await coroutine
    from ratekeeper.trio_loop import current_loop

    return await current_loop().run(coroutine)


def is_cancellation_of_trio(error: BaseException) -> bool:
    from sys import modules

    trio = modules.get("trio")
    return trio is not None and isinstance(error, trio.Cancelled)


def shielded() -> AbstractContextManager[object]:
    """Let what is given back arrive although the task is cancelled.

    On asyncio a cancelled task may await again.  On trio it may not, unless it is shielded.
    """
    if not is_trio_task():
        return NO_SHIELD
    import trio

    return trio.CancelScope(shield=True)

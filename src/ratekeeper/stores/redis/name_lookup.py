"""The addresses of a server's name, for event loops.

A look-up runs in a thread of our own, and all attempts to reach a name share it: a name server that hangs must not
occupy the threads of the application, nor one thread for each attempt.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from functools import partial

from ratekeeper.stores.redis.workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.stores.redis.url import Address

resolving = Workers("ratekeeper-resolve")
lookups: dict[Address, list[Callable[[Any], None]]] = {}  # names that are looked up now, and the attempts that wait
lookups_lock = threading.Lock()


def look_up(address: Address) -> None:
    """Tell all attempts that wait for it what an address resolves to, or the error."""
    outcome: Any
    try:
        outcome = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except Exception as error:  # of any kind: an attempt waits
        outcome = error
    with lookups_lock:
        waiting = lookups.pop(address)
    for tell in waiting:
        tell(outcome)


async def addresses_of(address: Address) -> Any:
    """What ``getaddrinfo`` says about a host and port."""
    loop = asyncio.get_running_loop()
    answer: Future[Any] = loop.create_future()

    def settle(outcome: Any) -> None:
        if answer.done():
            return
        if isinstance(outcome, Exception):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)

    def tell(outcome: Any) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    with lookups_lock:
        is_new = address not in lookups
        lookups.setdefault(address, []).append(tell)
    if is_new:
        resolving.start(partial(look_up, address))
    return await answer

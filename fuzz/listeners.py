"""Connections of a listener without sockets: bytes in, bytes out, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any


class InstantLoop:
    """Stands in for the event loop of a listener: no time passes, and what is due soon runs when asked to."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return 0.0

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.due.append((call, arguments))

    def run(self) -> None:
        while self.due:
            call, arguments = self.due.pop(0)
            call(*arguments)


class Transport:
    """What a connection writes to."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_closed = False
        self.is_paused = False

    def write(self, part: bytes) -> None:
        assert not self.is_closed, "written to after it was closed"
        self.sent += part

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def write_eof(self) -> None:
        self.is_closed = True  # what the client sends from now on is not answered

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else None


def made(make: Callable[[], Any]) -> Any:
    """A listener on an InstantLoop; ``make`` runs on a real event loop, as listeners ask for one."""

    async def inside() -> Any:
        listener = make()
        listener.loop = InstantLoop()
        return listener

    return asyncio.run(inside())


def talk(listener: Any, parts: Iterable[bytes]) -> tuple[bytes, Any]:
    """All that a client gets that sends these parts and then nothing more; and its connection."""
    connection, transport = listener.connection_class(listener), Transport()
    connection.connection_made(transport)
    for part in parts:
        if transport.is_closed:
            break
        connection.data_received(part)
        listener.loop.run()
        assert not transport.is_paused or transport.is_closed, "reading was never resumed"
    if not transport.is_closed:
        connection.eof_received()
        listener.loop.run()
    assert transport.is_closed, "a client that has sent all is not hung up on"
    connection.connection_lost(None)
    assert listener.held == 0, "bytes of a request are counted after its connection"
    assert not listener.incomplete
    assert not listener.connections
    return bytes(transport.sent), connection

"""A network between a client and a server: what passes arrives a while later, in a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from contextlib import suppress


class Relay:
    """Forwards to ``port``, each way after ``delay`` seconds."""

    def __init__(self, port: int, delay: float) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.process = multiprocessing.get_context("fork").Process(
            target=run, args=(listener, port, delay), daemon=True
        )
        self.process.start()
        listener.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.process.kill()
        self.process.join()


class Side(asyncio.Protocol):
    """One end of a connection: what it hears, the other end says later."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.other: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, part: bytes) -> None:
        asyncio.get_running_loop().call_later(self.delay, self.say, part)

    def say(self, part: bytes) -> None:
        if self.other.done():
            self.other.result().write(part)
        else:
            self.other.add_done_callback(lambda other: other.result().write(part))


class Near(Side):
    """The client's end, which finds the server's."""

    def __init__(self, port: int, delay: float) -> None:
        super().__init__(delay)
        self.port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.task = asyncio.get_running_loop().create_task(self.connect())

    async def connect(self) -> None:
        far_transport, far = await asyncio.get_running_loop().create_connection(
            lambda: Side(self.delay), "127.0.0.1", self.port
        )
        far.other.set_result(self.transport)
        self.other.set_result(far_transport)


def run(listener: socket.socket, port: int, delay: float) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Near(port, delay), sock=listener)
        await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(serve())

"""What the HTTP and the Redis listener share: connections that answer in order, and bounds on what a client can use up.

Responses that are ready are written together.  A response that waits for the store delays the responses behind it on
the same connection, never those of other connections.  The listener stops reading from a client that does not read its
responses or that pipelines too many requests, and closes the connection if that goes on for too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.service.options import Bounds

log = logging.getLogger("ratekeeper")
LINGER = 2.0  # seconds that a rejected client has to read why


class Listener:
    """All connections to one address."""

    name = ""
    connection_class: Callable[[Any], ClientConnection]

    def __init__(self, bounds: Bounds, turned_away: dict[str, int] | None = None) -> None:
        self.bounds = bounds
        self.turned_away = {} if turned_away is None else turned_away  # rejected for lack of room, by listener
        self.turned_away.setdefault(self.name, 0)
        self.loop = asyncio.get_running_loop()
        self.connections: set[ClientConnection] = set()
        self.waiting = 0  # responses that wait for the store
        self.has_new_tasks = False  # tasks of this turn of the loop have not begun: nothing may be sent before them
        self.is_draining = False
        self.servers: list[asyncio.AbstractServer] = []
        self.timer: asyncio.TimerHandle | None = None

    async def open(self, sock: Any) -> None:
        """Accept connections on a bound socket."""
        server = await self.loop.create_server(lambda: type(self).connection_class(self), sock=sock, backlog=4096)
        self.servers.append(server)
        if self.timer is None:
            self.sweep()

    def note_tasks_began(self) -> None:
        self.has_new_tasks = False

    def sweep(self) -> None:
        """Once a second: close the connections of clients that are too slow."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.enforce_timeouts(now)
        self.timer = self.loop.call_later(1.0, self.sweep)

    async def close(self, patience: float) -> None:
        """Accept no more connections, answer the requests under way, then close all connections."""
        self.is_draining = True
        for server in self.servers:
            server.close()
        for connection in list(self.connections):
            connection.drain()
        until = self.loop.time() + patience
        while self.connections and self.loop.time() < until:  # noqa: ASYNC110 - no event tells that a connection ended
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.transport.abort()
        if self.timer is not None:
            self.timer.cancel()


class PendingResponse:
    """A response that waits, usually for the store.

    ``encode`` turns the result of ``awaitable`` into the response, and ``on_error`` an error; the second never raises.
    """

    __slots__ = ("awaitable", "connection", "encode", "on_error", "response")
    connection: ClientConnection  # set when it takes its place there

    def __init__(self, awaitable: Any, encode: Callable[[Any], bytes], on_error: Callable[[Exception], bytes]) -> None:
        self.awaitable = awaitable
        self.encode = encode
        self.on_error = on_error
        self.response: bytes | None = None

    def begin(self) -> Any:
        """What to await."""
        return self.awaitable

    def finish(self, future: asyncio.Future[Any]) -> None:
        """Send the response now, if no other waits on this connection, else together with those before it."""
        connection = self.connection
        connection.listener.waiting -= 1
        try:
            response = b"" if future.cancelled() else self.encode(future.result())
        except Exception as error:
            response = self.on_error(error)
        queue, transport = connection.queue, connection.transport
        if len(queue) == 1 and not (connection.is_ending or connection.is_read_paused or transport.is_closing()):
            queue.clear()
            connection.active_at = connection.listener.loop.time()
            transport.write(response)
            return
        self.response = response
        if not connection.is_flush_due:  # once a turn: most responses of one batch become ready together
            connection.is_flush_due = True
            connection.listener.loop.call_soon(connection.send_queued)


class PendingDecision(PendingResponse):
    """A response that waits for one check of a table."""

    __slots__ = ("cost", "key", "table")

    def __init__(
        self, table: Any, key: Any, cost: Any, encode: Callable[[Any], bytes], on_error: Callable[[Exception], bytes]
    ) -> None:
        self.table = table
        self.key = key
        self.cost = cost
        self.encode = encode
        self.on_error = on_error
        self.response: bytes | None = None

    def begin(self) -> Any:
        return self.table.check(self.key, self.cost)


class ClientConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer: str | None = None
        self.ready: list[bytes] = []  # responses to be written together
        self.queue: deque[Any] = deque()  # the first response that waits, and all behind it: pending ones or bytes
        self.is_flush_due = False
        self.is_ending = False  # no further request is read
        self.is_receiving = False  # part of a request has arrived
        self.is_write_paused = False
        self.is_read_paused = False
        self.is_lingering = False
        self.active_at: float = listener.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self.listener
        self.transport = transport  # type: ignore[assignment]
        if len(listener.connections) >= listener.bounds.connections or listener.is_draining:
            listener.turned_away[listener.name] += 1
            self.is_ending = True
            self.transport.write(self.busy_response())
            self.transport.close()
            return
        address = transport.get_extra_info("peername")
        self.peer = address[0] if isinstance(address, tuple) and address else None
        self.transport.set_write_buffer_limits(high=listener.bounds.unread)
        listener.connections.add(self)

    def busy_response(self) -> bytes:
        """The response to a client that the listener has no room for."""
        return b""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_ending = True
        self.listener.connections.discard(self)
        for item in self.queue:
            if item.__class__ is not bytes:
                item.awaitable.cancel()
        self.queue.clear()

    def respond(self, response: bytes) -> None:
        """Send a response, after those that still wait."""
        if self.queue:
            self.queue.append(response)
        else:
            self.ready.append(response)

    def respond_later(self, pending: PendingResponse) -> None:
        """Send a response when it is ready, in its place among the others."""
        listener = self.listener
        listener.waiting += 1
        pending.connection = self
        future: asyncio.Future[Any] | None = None
        if pending.__class__ is PendingDecision and not listener.has_new_tasks:
            future = pending.table.send(pending.key, pending.cost)
        if future is None:
            awaitable = pending.begin()
            if isinstance(awaitable, asyncio.Future):
                future = awaitable
            else:
                # Tasks that are created in one turn of the loop all start in the next: they ask in one batch.
                future = listener.loop.create_task(awaitable)
                if not listener.has_new_tasks:
                    listener.has_new_tasks = True
                    listener.loop.call_soon(listener.note_tasks_began)
        pending.awaitable = future
        self.queue.append(pending)
        future.add_done_callback(pending.finish)

    def send_queued(self) -> None:
        """Send the responses at the head of the queue that are ready."""
        self.is_flush_due = False
        queue, ready = self.queue, self.ready
        while queue:
            item = queue[0]
            if item.__class__ is not bytes:
                item = item.response
                if item is None:
                    break
            ready.append(item)
            queue.popleft()
        self.active_at = self.listener.loop.time()
        if not self.transport.is_closing():
            self.flush()
        if self.is_read_paused and len(queue) <= self.listener.bounds.pipelined // 2:
            self.resume_reading()

    def flush(self) -> None:
        if self.ready:
            self.transport.write(b"".join(self.ready) if len(self.ready) > 1 else self.ready[0])
            self.ready.clear()
        if self.is_ending and not self.queue and not self.is_streaming:
            self.hang_up()
        elif len(self.queue) > self.listener.bounds.pipelined:
            self.pause_reading()

    def hang_up(self) -> None:
        """Close the connection; if the client is still sending, close only our side and read on for LINGER seconds.

        Closing a socket with unread bytes resets the connection, and the client may lose the response that says why.
        """
        if not self.is_receiving:
            self.transport.close()
        elif not self.is_lingering and not self.transport.is_closing():
            self.is_lingering = True
            self.active_at = self.listener.loop.time()
            self.resume_reading()
            self.transport.write_eof()

    @property
    def is_streaming(self) -> bool:
        """Whether something other than a response keeps this connection open."""
        return False

    def pause_writing(self) -> None:
        self.is_write_paused = True
        self.active_at = self.listener.loop.time()
        self.pause_reading()

    def resume_writing(self) -> None:
        self.is_write_paused = False
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self.is_read_paused and not self.transport.is_closing():
            self.is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused and not self.is_write_paused and not self.transport.is_closing():
            self.is_read_paused = False
            self.transport.resume_reading()

    def enforce_timeouts(self, now: float) -> None:
        """Close the connection if the client sends nothing, or reads nothing, for too long."""
        idle_for, bounds = now - self.active_at, self.listener.bounds
        if self.is_lingering:
            if idle_for > LINGER:
                self.transport.abort()
        elif self.is_write_paused:
            if idle_for > bounds.read_for:
                self.transport.abort()
        elif self.is_streaming or self.queue:
            return
        elif self.is_receiving:
            if idle_for > bounds.send_for:
                self.on_slow_request()
        elif idle_for > bounds.idle_for:
            self.on_idle()

    def on_slow_request(self) -> None:
        """A request did not arrive in time."""
        self.transport.close()

    def on_idle(self) -> None:
        self.transport.close()

    def drain(self) -> None:
        """Answer the requests under way, then close."""
        if not self.is_receiving:
            self.is_ending = True
            self.flush()

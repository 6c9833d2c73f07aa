"""What the HTTP and the Redis listener share: connections that answer in order, and bounds on what a client can use up.

Responses that are ready are written together.  A response that waits for the store delays the responses behind it on
the same connection, never those of other connections.  A connection stops reading from a client that does not read its
responses or that pipelines too many requests, and is closed if that goes on for too long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ratekeeper.service.listener import LINGER, ON_THE_WAY, SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 65_536  # bytes of a response


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

    drains_for = ON_THE_WAY  # seconds after which the end of the service ends a connection that is in use

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
        self.has_ended = False  # the client sends nothing more, and may still read
        self.unparsed = b""  # of the last read, from ``parsed_to`` on
        self.parsed_to = 0
        self.is_in_backlog = False
        self.held = 0  # bytes of an incomplete request, as the listener counts them
        self.active_at: float = listener.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        listener = self.listener
        self.transport = transport  # type: ignore[assignment]
        is_full = len(listener.connections) >= listener.bounds.connections
        if is_full and not listener.make_room():
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
        self.unparsed = b""
        if self.held:
            self.listener.hold(self, 0)
        self.listener.connections.discard(self)
        for item in self.queue:
            if item.__class__ is not bytes:
                item.awaitable.cancel()
        self.queue.clear()

    # What arrives.

    def data_received(self, part: bytes) -> None:
        if self.is_ending:
            return
        if len(part) <= SMALL and not self.unparsed:
            self.receive(part)
            return
        is_queued, listener = bool(self.unparsed), self.listener
        if not is_queued and listener.is_first_of_turn():
            began = perf_counter()
            if len(part) <= listener.slice:
                self.receive(part)
            else:
                self.keep_unparsed(part)
                self.receive_slice()
            listener.adapt_slices(began)
        else:
            self.keep_unparsed(self.unparsed[self.parsed_to :] + part if is_queued else part)
            listener.queue_slice(self)

    def keep_unparsed(self, part: bytes) -> None:
        self.unparsed, self.parsed_to = part, 0
        self.pause_reading()

    def receive(self, part: bytes) -> None:
        """Parse bytes, and answer the requests in them."""
        raise NotImplementedError

    def receive_slice(self) -> None:
        """Parse the next slice of what has arrived, unless the client must read its responses first."""
        if self.transport.is_closing():
            self.unparsed = b""
            return
        if not self.unparsed or self.is_write_paused or len(self.queue) > self.listener.bounds.pipelined:
            return  # ``resume_reading`` goes on
        start = self.parsed_to
        self.parsed_to = start + self.listener.slice
        part = self.unparsed[start : self.parsed_to]
        has_more = self.parsed_to < len(self.unparsed)
        if not has_more:
            self.unparsed = b""
        self.receive(part)
        if self.is_ending:
            self.unparsed = b""
        elif has_more:
            self.listener.queue_slice(self)
        elif self.has_ended or self.listener.is_draining:
            self.end_of_requests()
        elif len(self.queue) <= self.listener.bounds.pipelined:
            self.resume_reading()

    def eof_received(self) -> bool:
        """The client sends nothing more; it still gets the responses to what it has sent."""
        self.has_ended = True
        if not self.unparsed:
            self.end_of_requests()
        is_answered = not (self.queue or self.unparsed)
        return not is_answered and self.transport.get_extra_info("sslcontext") is None

    def end_of_requests(self) -> None:
        """Close the connection once everything is answered; what is left of an incomplete request has no answer."""
        self.is_receiving = False
        self.is_ending = True
        self.flush()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way for this client."""
        return not (self.queue or self.unparsed or self.is_write_paused or self.is_streaming)

    def forget_request(self) -> None:
        """Release what is kept of an incomplete request: it is not answered any more."""

    def refuse_for_room(self) -> None:
        """Hang up on a client whose request is incomplete, as the memory for incomplete requests is used up."""
        self.transport.close()

    # What is sent.

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
        """Send the responses at the head of the queue that are ready, until the client must read some first."""
        self.is_flush_due = False
        queue, ready = self.queue, self.ready
        while queue and not self.is_write_paused:
            item = queue[0]
            if item.__class__ is not bytes:
                item = item.response
                if item is None:
                    break
            ready.append(item)
            queue.popleft()
            if len(item) > LARGE and not self.transport.is_closing():
                self.transport.writelines(ready)  # not joined with others: that would copy it
                ready.clear()
        self.active_at = self.listener.loop.time()
        if not self.transport.is_closing():
            self.flush()
        if self.is_read_paused and len(queue) <= self.listener.bounds.pipelined // 2:
            self.resume_reading()

    def flush(self) -> None:
        ready = self.ready
        if ready:
            self.transport.write(b"".join(ready) if len(ready) > 1 else ready[0])
            ready.clear()
        if self.is_ending:
            if not self.queue and not self.is_streaming:
                self.hang_up()
        elif self.queue and len(self.queue) > self.listener.bounds.pipelined:
            self.pause_reading()

    def hang_up(self) -> None:
        """Close the connection; if the client is still sending, close only our side and read on for LINGER seconds.

        Closing a socket with unread bytes resets the connection, and the client may lose the response that says why.
        """
        self.unparsed = b""
        self.forget_request()
        if self.held:
            self.listener.hold(self, 0)
        if not self.is_receiving or self.has_ended:
            self.transport.close()
        elif not self.is_lingering and not self.transport.is_closing():
            self.is_lingering = True
            self.active_at = self.listener.loop.time()
            self.resume_reading()
            try:
                self.transport.write_eof()
            except NotImplementedError:  # TLS has no half-closed state here: end both ways once all is sent
                self.transport.close()

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
        if self.queue:
            self.send_queued()
        self.resume_reading()

    def pause_reading(self) -> None:
        if not self.is_read_paused and not self.transport.is_closing():
            self.is_read_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_read_paused and not self.is_write_paused and not self.transport.is_closing():
            if self.unparsed:
                self.listener.queue_slice(self)
            else:
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
        elif self.is_streaming or self.queue or self.unparsed:
            return
        elif self.is_receiving:
            if idle_for > bounds.send_for:
                self.on_slow_request()
        elif idle_for > self.listener.idle_for:
            self.on_idle()

    def on_slow_request(self) -> None:
        """A request did not arrive in time."""
        self.transport.close()

    def on_idle(self) -> None:
        self.transport.close()

    def drain(self) -> None:
        """Answer the requests under way, then close."""
        if not self.is_receiving and not self.unparsed:
            self.is_ending = True
            self.flush()

"""What the HTTP and the Redis listener share: connections that answer in order, and bounds on what a client can use up.

Responses that are ready are written together.  A response that waits for the store delays the responses behind it on
the same connection, never those of other connections.  The listener stops reading from a client that does not read its
responses or that pipelines too many requests, and closes the connection if that goes on for too long.

Clients share the event loop fairly: in one turn of the loop small reads are parsed at once, one of the others, and for
the rest of them there is a millisecond, so a client with one small request never waits for the pipelines of others.
When there is no room for another
connection, the one that has been idle for the longest time is closed; when incomplete requests take too much memory,
the one that began first is refused.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
from collections import deque
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ratekeeper.service.faults import Faults

if TYPE_CHECKING:
    from collections.abc import Callable
    from ssl import SSLContext

    from ratekeeper.service.options import Bounds

ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
LINGER = 2.0  # seconds that a rejected client has to read why
SLICE = 4096  # bytes of one client that are parsed before others have their turn, at most
SMALL = 1024  # bytes of a read that is always parsed at once: most single requests
SLOW, QUICK = 0.0005, 0.0001  # seconds of a slice after which slices become smaller, or larger again
LARGE = 65_536  # bytes of a response
WORK_FOR = 0.001  # seconds of slices before the event loop looks for other clients
ON_THE_WAY = 0.25  # seconds that a request may take from its client to us
IDLE_AT_LEAST = 1.0  # seconds before a connection may be closed to make room for another


def refuse_packets(sock: socket.socket) -> None:
    """Let the system drop what reaches a listening socket: clients that connect try again, and are refused then.

    Elsewhere than on Linux the queue of the socket is only made as short as can be.
    """
    if sys.platform != "linux":
        sock.listen(0)
        return
    import ctypes

    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # one instruction of BPF: return 0 bytes
    sock.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(nothing)))


class Listener:
    """All connections to one address."""

    name = ""
    connection_class: Callable[[Any], ClientConnection]

    def __init__(self, bounds: Bounds, turned_away: dict[str, int] | None = None, faults: Faults | None = None) -> None:
        self.bounds = bounds
        self.idle_for = bounds.idle_for
        self.turned_away = {} if turned_away is None else turned_away  # rejected for lack of room, by listener
        self.turned_away.setdefault(self.name, 0)
        self.faults = Faults({}) if faults is None else faults
        self.loop = asyncio.get_running_loop()
        self.connections: set[ClientConnection] = set()
        self.waiting = 0  # responses that wait for the store
        self.has_new_tasks = False  # tasks of this turn of the loop have not begun: nothing may be sent before them
        self.is_draining = False
        self.backlog: deque[ClientConnection] = deque()  # clients of whose last read a part is not parsed yet
        self.is_working = False  # a turn of the backlog is scheduled
        self.has_parsed = False  # a larger read, in this turn of the loop
        self.slice = SLICE  # bytes that are parsed of one client, before others have their turn
        self.incomplete: dict[ClientConnection, None] = {}  # clients with part of a request, in the order they began
        self.held = 0  # bytes of those requests
        self.longest_idle: list[ClientConnection] = []  # as of the last sweep, the longest last
        self.servers: list[asyncio.Server] = []
        self.sock: Any = None  # kept to open a server with other certificates on it, and to end it in order
        self.timer: asyncio.TimerHandle | None = None

    async def open(self, sock: Any, context: SSLContext | None = None) -> None:
        """Accept connections on a bound socket; with a context, over TLS."""
        more: dict[str, Any] = {}
        self.sock, sock = sock, sock.dup()
        if context is not None:
            patience = self.bounds.send_for or 1.0
            more = {"ssl": context, "ssl_handshake_timeout": patience, "ssl_shutdown_timeout": LINGER}
        make = lambda: type(self).connection_class(self)  # noqa: E731
        server = await self.loop.create_server(make, sock=sock, backlog=4096, **more)
        self.servers.append(server)
        if self.timer is None:
            self.sweep()

    async def renew(self, context: SSLContext) -> None:
        """Take new connections with other certificates; open connections keep theirs, and none is lost."""
        if not self.is_draining:
            old, self.servers = self.servers, []
            await self.open(self.sock, context)
            await self.end_servers(old)

    async def end_servers(self, servers: list[asyncio.Server]) -> None:
        """Close servers; the connections that they have accepted stay."""
        if isinstance(self.loop, asyncio.SelectorEventLoop):  # it accepts in one turn and attaches in a later one
            for listening in [sock for server in servers for sock in server.sockets]:
                self.loop.remove_reader(listening.fileno())
            for _ in range(3):
                await asyncio.sleep(0)
        for server in servers:
            server.close()

    async def stop_listening(self) -> None:
        """Take the connections that the system has accepted for us; it refuses the next ones."""
        if self.sock is None:
            return
        with suppress(OSError):
            refuse_packets(self.sock)  # from now on none is added to those that wait
            waiting, until = select.poll(), self.loop.time() + ON_THE_WAY
            waiting.register(self.sock, select.POLLIN)
            while waiting.poll(0) and self.loop.time() < until:  # noqa: ASYNC110 - the loop accepts them meanwhile
                await asyncio.sleep(0)
        await self.end_servers(self.servers)
        self.sock.close()

    def note_tasks_began(self) -> None:
        self.has_new_tasks = False

    def is_first_of_turn(self) -> bool:
        """Whether no larger read was parsed in this turn of the loop, and none waits."""
        if self.has_parsed or self.backlog:
            return False
        self.has_parsed = True
        self.loop.call_soon(self.end_turn)
        return True

    def adapt_slices(self, began: float) -> float:
        """Make slices smaller while requests take long, so that one slice never takes much longer than SLOW; now."""
        now = perf_counter()
        took = now - began
        if took > SLOW:
            self.slice = max(SMALL // 2, self.slice // 2)
        elif took < QUICK and self.slice < SLICE:
            self.slice *= 2
        return now

    def end_turn(self) -> None:
        self.has_parsed = False

    def queue_slice(self, connection: ClientConnection) -> None:
        """Parse the rest of what a client has sent when the others have had their turn."""
        if connection.is_in_backlog:
            return
        connection.is_in_backlog = True
        self.backlog.append(connection)
        if not self.is_working:
            self.is_working = True
            self.loop.call_soon(self.work)

    def work(self) -> None:
        """Parse slices of the backlog, a client at a time, then let the event loop look for other clients."""
        backlog, now = self.backlog, perf_counter()
        until = now + WORK_FOR
        while backlog and now < until:
            connection = backlog.popleft()
            connection.is_in_backlog = False
            connection.receive_slice()
            now = self.adapt_slices(now)
        self.is_working = bool(backlog)
        if backlog:
            self.loop.call_soon(self.work)

    def make_room(self) -> bool:
        """Close the connection that has been idle for the longest time; False if all have been active just now."""
        latest = self.loop.time() - IDLE_AT_LEAST
        while self.longest_idle:
            connection = self.longest_idle.pop()
            if connection in self.connections and connection.is_idle and connection.active_at <= latest:
                self.connections.discard(connection)
                connection.is_ending = True
                connection.transport.close()
                return True
        return False

    def hold(self, connection: ClientConnection, size: int) -> None:
        """Note how many bytes of an incomplete request a connection keeps, and refuse the oldest if it is too much."""
        self.held += size - connection.held
        connection.held = size
        if size:
            self.incomplete.setdefault(connection)
        else:
            self.incomplete.pop(connection, None)
        while self.held > self.bounds.held:
            oldest = next(iter(self.incomplete))
            self.turned_away[self.name] += 1
            del self.incomplete[oldest]
            self.held -= oldest.held
            oldest.held = 0
            oldest.refuse_for_room()

    def sweep(self) -> None:
        """Once a second: close the connections of clients that are too slow."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.enforce_timeouts(now)
        self.longest_idle = []
        if len(self.connections) > self.bounds.connections // 2:
            idle = [connection for connection in self.connections if connection.is_idle]
            self.longest_idle = sorted(idle, key=lambda connection: -connection.active_at)
        self.timer = self.loop.call_later(1.0, self.sweep)

    async def close(self, patience: float) -> None:
        """Answer all requests that were sent, then close all connections, and lose none.

        From now on each answer ends its connection.  Clients come back until the listener is closed, which happens as
        soon as the connections of before have ended.
        """
        self.is_draining = True
        until = self.loop.time() + patience
        await self.drain(set(self.connections), until)
        await self.stop_listening()
        await self.drain(self.connections, until)
        for connection in list(self.connections):
            connection.transport.abort()
        if self.timer is not None:
            self.timer.cancel()

    async def drain(self, connections: set[ClientConnection], until: float) -> None:
        """Wait until these connections have ended, until that instant at most.

        On a connection that looks idle a request may be on its way: it is closed a little later.
        """
        began = self.loop.time()
        while (left := connections & self.connections) and (now := self.loop.time()) < until:
            for connection in left:
                is_quiet = connection.is_idle and now >= max(began, connection.active_at) + ON_THE_WAY
                if is_quiet or connection.is_streaming or now >= began + connection.drains_for:
                    connection.drain()
            await asyncio.sleep(0.01)  # no event tells that a connection ended


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

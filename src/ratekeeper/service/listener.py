"""All connections to one address, and bounds on what their clients can use up together.

Clients share the event loop fairly: in one turn of the loop small reads are parsed at once, one of the others, and for
the rest of them there is a millisecond, so a client with one small request never waits for the pipelines of others.
When there is no room for another connection, the one that has been idle for the longest time is closed; when incomplete
requests take too much memory, the one that began first is refused.
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

    from ratekeeper.service.connection import ClientConnection
    from ratekeeper.service.options import Bounds

ATTACH_FILTER = 26  # SO_ATTACH_FILTER of Linux
LINGER = 2.0  # seconds that a rejected client has to read why
SLICE = 4096  # bytes of one client that are parsed before others have their turn, at most
SMALL = 1024  # bytes of a read that is always parsed at once: most single requests
SLOW, QUICK = 0.0005, 0.0001  # seconds of a slice after which slices become smaller, or larger again
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

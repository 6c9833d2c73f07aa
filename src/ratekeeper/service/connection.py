"""What the HTTP and the Redis door share: connections that answer in order and bound what a client can make us keep.

An answer that is ready at once is written with the others of its turn; one that waits for a store holds back those
behind it.  A client that does not read its answers, or sends faster than it reads, is not read from; one that stays so
is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.service.options import Bounds

log = logging.getLogger("ratekeeper")
LINGER = 2.0  # seconds for a refused client to notice


class Listener:
    """All connections to one address."""

    name = ""
    guest: Callable[[Any], ClientConnection]

    def __init__(self, bounds: Bounds, turned_away: dict[str, int] | None = None) -> None:
        self.bounds = bounds
        self.turned_away = {} if turned_away is None else turned_away  # by door, whom we had no room for
        self.turned_away.setdefault(self.name, 0)
        self.loop = asyncio.get_running_loop()
        self.connections: set[ClientConnection] = set()
        self.waiting = 0  # answers that are being worked out
        self.is_draining = False
        self.servers: list[asyncio.AbstractServer] = []
        self.timer: asyncio.TimerHandle | None = None

    async def open(self, sock: Any, tls: Any = None) -> None:
        """Begin to answer on a bound socket."""
        made = await self.loop.create_server(lambda: type(self).guest(self), sock=sock, backlog=4096, ssl=tls)
        self.servers.append(made)
        if self.timer is None:
            self.sweep()

    def sweep(self) -> None:
        """Once a second: cut off who is too slow."""
        now = self.loop.time()
        for guest in list(self.connections):
            guest.look(now)
        self.timer = self.loop.call_later(1.0, self.sweep)

    async def close(self, patience: float) -> None:
        """Take no more connections, finish what is under way, and let everybody go."""
        self.is_draining = True
        for server in self.servers:
            server.close()
        for guest in list(self.connections):
            guest.finish()
        until = self.loop.time() + patience
        while self.connections and self.loop.time() < until:  # noqa: ASYNC110 - ends are nobody's event
            await asyncio.sleep(0.01)
        for guest in list(self.connections):
            guest.transport.abort()
        if self.timer is not None:
            self.timer.cancel()


class ClientConnection(asyncio.Protocol):
    """One client."""

    def __init__(self, door: Any) -> None:
        self.door = door
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.peer: str | None = None
        self.ready: list[bytes] = []  # answers to be written together
        self.queue: deque[asyncio.Future[bytes]] = deque()  # answers that are not ready, and those behind them
        self.is_last = False  # nothing more is read
        self.is_receiving = False  # part of a request has come
        self.is_paused = False
        self.is_held = False
        self.is_lingering = False
        self.since: float = door.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        door = self.door
        self.transport = transport  # type: ignore[assignment]
        if len(door.connections) >= door.bounds.connections or door.is_draining:
            door.turned_away[door.name] += 1
            self.is_last = True
            self.transport.write(self.busy())
            self.transport.close()
            return
        name = transport.get_extra_info("peername")
        self.peer = name[0] if isinstance(name, tuple) and name else None
        self.transport.set_write_buffer_limits(high=door.bounds.unread)
        door.connections.add(self)

    def busy(self) -> bytes:
        """What somebody is told for whom there is no room."""
        return b""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_last = True
        self.door.connections.discard(self)
        for future in self.queue:
            future.cancel()
        self.queue.clear()

    def put(self, found: bytes) -> None:
        """Send an answer, behind those that are still waited for."""
        if self.queue:
            done = self.door.loop.create_future()
            done.set_result(found)
            self.queue.append(done)
        else:
            self.ready.append(found)

    def wait(self, found: Awaitable[bytes], failed: Callable[[Exception], bytes]) -> None:
        """Send an answer when it is ready."""
        door = self.door
        door.waiting += 1

        async def finished() -> bytes:
            try:
                return await found
            except asyncio.CancelledError:
                raise
            except Exception as error:
                return failed(error)
            finally:
                door.waiting -= 1

        task = door.loop.create_task(finished())
        self.queue.append(task)
        task.add_done_callback(self.advance)

    def advance(self, task: object = None) -> None:
        """Send, in order, whatever is ready."""
        while self.queue and self.queue[0].done():
            first = self.queue.popleft()
            if not first.cancelled():
                self.ready.append(first.result())
        self.since = self.door.loop.time()
        if not self.transport.is_closing():
            self.flush()
        if self.is_held and len(self.queue) <= self.door.bounds.ahead // 2:
            self.release()

    def flush(self) -> None:
        if self.ready:
            self.transport.write(b"".join(self.ready) if len(self.ready) > 1 else self.ready[0])
            self.ready.clear()
        if self.is_last and not self.queue and not self.is_engaged:
            self.hang_up()
        elif len(self.queue) > self.door.bounds.ahead:
            self.hold()

    def hang_up(self) -> None:
        """Close; where the client still sends, say so first and listen on for a moment.

        To close on unread bytes resets the connection, and the client may lose the answer that tells it why.
        """
        if not self.is_receiving:
            self.transport.close()
        elif not self.is_lingering and not self.transport.is_closing():
            self.is_lingering = True
            self.since = self.door.loop.time()
            self.release()
            self.transport.write_eof()

    @property
    def is_engaged(self) -> bool:
        """Whether something other than an answer keeps this connection open."""
        return False

    def pause_writing(self) -> None:
        self.is_paused = True
        self.since = self.door.loop.time()
        self.hold()

    def resume_writing(self) -> None:
        self.is_paused = False
        self.release()

    def hold(self) -> None:
        if not self.is_held and not self.transport.is_closing():
            self.is_held = True
            self.transport.pause_reading()

    def release(self) -> None:
        if self.is_held and not self.is_paused and not self.transport.is_closing():
            self.is_held = False
            self.transport.resume_reading()

    def look(self, now: float) -> None:
        """Cut the client off if it has kept us waiting for too long."""
        waited, bounds = now - self.since, self.door.bounds
        if self.is_lingering:
            if waited > LINGER:
                self.transport.abort()
        elif self.is_paused:
            if waited > bounds.read_for:
                self.transport.abort()
        elif self.is_engaged or self.queue:
            return
        elif self.is_receiving:
            if waited > bounds.send_for:
                self.too_slow()
        elif waited > bounds.idle_for:
            self.idle()

    def too_slow(self) -> None:
        """A request did not arrive in time."""
        self.transport.close()

    def idle(self) -> None:
        self.transport.close()

    def finish(self) -> None:
        """Answer what is under way, then hang up."""
        if not self.is_receiving:
            self.is_last = True
            self.flush()

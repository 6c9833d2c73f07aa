"""How an event loop reaches one server: all requests of one turn of the loop are one command.

Requests of a turn are sent at its end; no timer delays them.  While the server is idle some are sent earlier: a request
that is likely to stay the only one of its turn, one that other tasks wait for, and half a batch.  One timer watches the
deadline of everything that is under way.
"""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio import Future
from collections import deque
from time import monotonic

from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import future_type, running_loop
from ratekeeper.stores.redis.batch import Batch, log
from ratekeeper.stores.redis.breaker import Breaker
from ratekeeper.stores.redis.handshake import Handshake, Question, too_slow
from ratekeeper.stores.redis.name_lookup import addresses_of
from ratekeeper.stores.redis.reader import ReplyReader, exactly
from ratekeeper.stores.redis.resp import MOST_REQUESTS, BrokenReply, ErrorReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sized
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.tls import TlsSession
    from ratekeeper.stores.redis.url import Address, RedisSettings

EARLY = MOST_REQUESTS // 2  # requests, sent at once to an idle server: it decides them while the loop makes the others


class AsyncRedisConnection(asyncio.Protocol):
    """A connection: passes each reply, in order, to ``receive``."""

    def __init__(self, receive: Callable[[Any], None], lost: Callable[[AsyncRedisConnection, str], None]) -> None:
        self.reader = ReplyReader()
        self.receive = receive
        self.lost = lost
        self.transport: asyncio.Transport | None = None
        self.file = -1  # of the socket, for ``glance``; -1: only the loop may read it
        self.tls: TlsSession | None = None
        self.write: Callable[[bytes], None]  # of the transport, or through TLS
        self.ready: Future[None] | None = None  # while the TLS handshake goes on

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.write = transport.write  # type: ignore[attr-defined]

    async def shake_hands(self, tls: TlsSession) -> None:
        """Encrypt from now on."""
        self.tls = tls
        self.ready = asyncio.get_running_loop().create_future()
        self.transport.write(tls.shake_hands())  # type: ignore[union-attr]
        try:
            await self.ready
        finally:
            self.ready = None
        self.write = self.encrypt_and_write

    def encrypt_and_write(self, payload: bytes) -> None:
        try:
            encrypted = self.tls.encrypt(payload)  # type: ignore[union-attr]
        except OSError as error:  # the server has ended the session
            self.lost(self, f"lost the connection ({error})")
        else:
            self.transport.write(encrypted)  # type: ignore[union-attr]

    def decrypted(self, part: bytes) -> bytes:
        """Decrypt what was read; during the handshake, go on with that and return nothing."""
        if self.ready is None:
            return self.tls.decrypt(part)  # type: ignore[union-attr]
        if not self.ready.done():
            try:
                self.transport.write(self.tls.shake_hands(part))  # type: ignore[union-attr]
                if self.tls.is_ready:  # type: ignore[union-attr]
                    self.ready.set_result(None)
            except OSError as error:
                self.ready.set_exception(error)
        return b""

    def data_received(self, part: bytes) -> None:
        try:
            if self.tls is not None:
                part = self.decrypted(part)
            for reply in self.reader.feed(part):
                self.receive(reply)
        except BrokenReply as error:
            self.give_up(str(error))
        except OSError as error:  # of TLS
            self.give_up(f"lost the connection ({error})")

    def give_up(self, why: str) -> None:
        """Close the connection, and say why."""
        lost = self.lost
        self.close()
        lost(self, why)

    def glance(self) -> None:
        """Read replies that have arrived, before the loop does: a busy loop reads sockets only once a turn."""
        if self.file < 0 or self.transport.is_closing():  # type: ignore[union-attr]
            return
        try:
            part = os.read(self.file, 65536)
        except OSError:  # nothing to read; the loop meets every other error too
            return
        if part:
            self.data_received(part)

    def connection_lost(self, error: Exception | None) -> None:
        if self.ready is not None and not self.ready.done():
            self.ready.set_exception(error or ConnectionResetError("the connection was closed"))
        self.lost(self, f"lost the connection ({error or 'closed by the server'})")

    def close(self) -> None:
        self.lost = lambda wire, why: None
        self.receive = lambda reply: None  # more replies may follow the one that made us close it
        if self.transport is not None:
            self.transport.abort()


class AsyncRedisServer:
    """One server for one event loop, located anew for each connection."""

    def __init__(
        self,
        settings: RedisSettings,
        script: Script,
        locate: Callable[[float], Awaitable[Address]],
        name: str,
        clock: Clock,
        gives_time: bool,
        take_error: Callable[[AsyncRedisServer, Batch, Exception], None],
    ) -> None:
        self.loop = running_loop()
        self.new_future: Callable[..., Future[Any]] = future_type(self.loop)
        self.settings = settings
        self.script = script
        self.locate = locate  # the address to connect to, found until that instant
        self.name = name
        self.clock = clock
        self.gives_time = gives_time
        self.take_error = take_error  # what is done about an error reply
        self.breaker = Breaker()
        self.address: Address = ("", 0)
        self.wire: AsyncRedisConnection | None = None
        self.attempt: asyncio.Task[None] | None = None
        self.pending: list[AnyRequest] = []
        self.since = 0.0
        self.was_alone = False  # the last command had one request: the next one is likely to be alone, too
        self.waiting: list[Batch] = []  # batches to send on the next connection
        self.in_flight: deque[Batch | None] = deque()  # sent, oldest first; None: the reply to ASKING, which is dropped
        self.timer: asyncio.TimerHandle | None = None
        self.is_closed = False
        self.charges: Callable[[], list[Any]] = list  # requests that charge what is owed to the server
        self.look_after: Callable[[Batch, Any], None] = lambda batch, reply: None
        self.is_owed: Sized = ()  # empty: nothing is owed
        self.trouble = ""  # why the server answers, but executes no check that writes; "": it does
        self.patience = settings.first_deadline  # seconds that a decision waits for a connection: at first, longer
        self.first_until = self.loop.time() + self.patience

    def ask(self, request: AnyRequest) -> asyncio.Future[Any]:
        """The future answer to ``request``; raises StoreUnavailable at once while the breaker is open."""
        if self.breaker.is_open and (why := self.away()):
            raise StoreUnavailable(self.name, why)
        future = self.new_future(loop=self.loop)
        request.future = future
        pending = self.pending
        pending.append(request)
        many = len(pending)
        if many == 1:
            self.since = self.loop.time()
            if self.timer is None:
                self.timer = self.loop.call_at(max(self.since + self.settings.deadline, self.first_until), self.expire)
            if self.was_alone and not self.in_flight:
                self.flush()
            else:
                self.loop.call_soon(self.flush)
        elif many == MOST_REQUESTS or (many == EARLY and not self.in_flight):
            self.flush()
        return future

    def hurry(self) -> None:
        """Send pending requests in the middle of a turn if the server is idle, as other tasks wait for the reply."""
        if not self.in_flight:
            self.flush()

    def glance(self) -> None:
        """Read replies that have arrived, in the middle of a turn."""
        if self.wire is not None:
            self.wire.glance()

    def away(self) -> str:
        """Why the server is not asked, while the breaker is open; else "".  Starts a probe if one is due."""
        breaker = self.breaker
        if not breaker.is_open:
            return ""
        if breaker.is_due(self.loop.time()):
            self.reach()
        return breaker.why

    def flush(self) -> None:
        if not self.pending:
            return
        if self.wire is None:
            self.reach()
            return
        # A request that was cancelled before it was sent is not charged.
        requests = [request for request in self.pending if not request.future.done()]
        self.pending = []
        self.was_alone = len(requests) == 1 and not self.in_flight
        if self.settings.is_cluster:
            self.send([Batch([request], self.since) for request in requests])
        else:
            self.send(
                [Batch(requests[at : at + MOST_REQUESTS], self.since) for at in range(0, len(requests), MOST_REQUESTS)]
            )

    def send(self, batches: list[Batch]) -> None:
        """Send batches, now or on the next connection."""
        if self.wire is None:
            self.waiting += batches
            self.reach()
            return
        parts = []
        for batch in batches:
            if batch.asking:
                self.in_flight.append(None)
            self.in_flight.append(batch)
            parts.append(batch.payload(self.script, self.clock, self.gives_time))
        self.wire.write(b"".join(parts))
        if batches and self.timer is None:
            self.timer = self.loop.call_at(batches[0].since + self.settings.deadline, self.expire)

    def receive(self, reply: Any) -> None:
        try:
            batch = self.in_flight.popleft()
        except IndexError:
            raise BrokenReply("answered what nobody asked") from None
        if batch is None:
            return
        if isinstance(reply, ErrorReply):
            self.take_error(self, batch, reply)
        elif not batch.land(reply, self.name):
            self.down("answered something else than was asked")
        elif self.trouble or self.is_owed:
            self.look_after(batch, reply)

    def expire(self) -> None:
        """Fail everything if the oldest request is past its deadline; else set the timer for that instant."""
        self.timer = None
        ages = [batch.since for batch in (*self.waiting, *self.in_flight) if batch is not None]
        if self.pending:
            ages.append(self.since)
        if not ages:
            return
        due = max(min(ages) + self.settings.deadline, self.first_until)
        if due > self.loop.time() + 0.0005:
            self.timer = self.loop.call_at(due, self.expire)
            return
        limit = f"{(self.settings.deadline if self.in_flight else self.patience) * 1000:g} ms"
        self.down(f"gave no answer in {limit}" if self.in_flight else f"could not be reached within {limit}")

    def lost(self, wire: AsyncRedisConnection, why: str) -> None:
        if wire is not self.wire:
            return
        if self.in_flight or self.pending:
            self.down(why)
        else:
            self.wire = None  # an idle connection was closed: nothing is lost

    def down(self, why: str) -> None:
        """Open the breaker and fail all requests under way.  Those that were sent may have been charged."""
        if self.breaker.trip(self.loop.time(), why):
            log.warning("%s: %s. Using %s until it recovers", self.name, why, self.settings.fallback)
        self.drop(why)

    def drop(self, why: str) -> None:
        wire, self.wire = self.wire, None
        if wire is not None:
            wire.close()
        batches = [batch for batch in self.in_flight if batch is not None]
        self.in_flight.clear()
        waiting = [*self.waiting, Batch(self.pending, 0.0)]
        self.waiting, self.pending = [], []
        for batch in batches:
            batch.fail(StoreUnavailable(self.name, why, charged=None))
        for batch in waiting:
            batch.fail(StoreUnavailable(self.name, why))

    def renew(self) -> None:
        """Close this connection, on which nothing is under way, so that the next batch makes a new one."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    def reach(self) -> None:
        """Start to connect, unless an attempt is under way."""
        if self.attempt is None and not self.is_closed:
            self.attempt = self.loop.create_task(self.connect())

    async def connect(self) -> None:
        wire = None
        try:
            async with asyncio.timeout(self.settings.connects_for):
                self.address = await self.locate(monotonic() + self.settings.connects_for)
                wire = await open_wire(self.address, self.settings, self.receive, self.lost)
                handshake = Handshake(self.settings, self.script)
                took = 0.0
                while handshake.words:
                    began = monotonic()
                    handshake.judge(await converse(wire, handshake.payload, len(handshake.words)))
                    took = monotonic() - began
                await self.prove(wire, handshake.trial, took)
        except Exception as error:  # of any kind: the requests that wait for this attempt must be settled
            if wire is not None:
                wire.close()
            self.attempt = None
            self.end_first_contact(0.0)
            why = f"could not be reached ({str(error) or 'no answer'})"
            self.down(error.why if isinstance(error, StoreUnavailable) else why)
        except BaseException:
            if wire is not None:
                wire.close()
            self.attempt = None
            raise
        else:
            self.attempt = None
            self.wire = wire
            self.end_first_contact(self.loop.time() + self.settings.deadline)
            if self.breaker.close(self.loop.time()):
                log.info("%s: answers again", self.name)
            self.settle()  # first, so that what follows on this connection is decided with it
            waiting, self.waiting = self.waiting, []
            self.send(waiting)
            self.flush()

    async def prove(self, wire: AsyncRedisConnection, trial: bytes, took: float) -> None:
        """Raise StoreUnavailable unless the server answers within the deadline: see RedisServer.prove."""
        quick, proofs = self.breaker.quick_enough(self.settings.deadline), self.breaker.proofs
        if proofs == 1 and took <= quick:
            return
        for _ in range(proofs):
            began = monotonic()
            await converse(wire, trial, 1)
            if monotonic() - began > quick:
                raise StoreUnavailable(self.name, too_slow(self.settings))

    def end_first_contact(self, until: float) -> None:
        """Note that a first attempt is over: its callers have until that instant, later ones their deadline."""
        if self.patience != self.settings.deadline:
            self.patience, self.first_until = self.settings.deadline, until

    def settle(self) -> None:
        """Charge what is owed to the server, without waiting for the answers."""
        charges = self.charges() if self.is_owed else ()
        for charge in charges:
            charge.future = IgnoredAnswer()
        since = self.loop.time()
        self.send([Batch(charges[at : at + MOST_REQUESTS], since) for at in range(0, len(charges), MOST_REQUESTS)])

    def note_trouble(self, why: str) -> None:
        """Log that checks that write are not executed, once; the server goes on to answer others."""
        changed, self.trouble = not self.trouble, why
        if changed and not self.is_closed:
            log.warning("%s: %s. Using %s for checks that it does not execute", self.name, why, self.settings.fallback)

    def note_write(self) -> None:
        """Log that the server executes checks again."""
        if self.trouble:
            self.trouble = ""
            log.info("%s: executes every check again", self.name)

    def close(self) -> None:
        self.is_closed = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.attempt is not None:
            self.attempt.cancel()
        self.drop("was closed")


async def open_socket(address: Address) -> socket.socket:
    """A socket connected to the first of the addresses that accepts."""
    loop = asyncio.get_running_loop()
    error: OSError | None = None
    for family, kind, protocol, _, place in await addresses_of(address):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(opened, place)
        except OSError as refused:
            opened.close()
            error = OSError(refused.errno, os.strerror(refused.errno)) if refused.errno else refused
        except BaseException:
            opened.close()
            raise
        else:
            return opened
    raise error or OSError("the name has no address")


class IgnoredAnswer:
    """The future of a request for whose answer nobody waits."""

    __slots__ = ("finished",)

    def __init__(self) -> None:
        self.finished = False

    def done(self) -> bool:
        return self.finished

    def set_result(self, result: object) -> None:
        self.finished = True

    def set_exception(self, error: BaseException) -> None:
        self.finished = True


async def open_wire(
    address: Address,
    settings: RedisSettings,
    receive: Callable[[Any], None],
    lost: Callable[[AsyncRedisConnection, str], None],
) -> AsyncRedisConnection:
    loop = asyncio.get_running_loop()
    wire = AsyncRedisConnection(receive, lost)
    if settings.scheme == "unix":
        await loop.create_unix_connection(lambda: wire, address[0])
    else:
        await loop.create_connection(lambda: wire, sock=await open_socket(address))
    tls = settings.session(address)
    if tls is not None:
        try:
            await wire.shake_hands(tls)
        except BaseException:
            wire.close()
            raise
    if os.name == "posix":
        wire.file = wire.transport.get_extra_info("socket").fileno()  # type: ignore[union-attr]
    return wire


async def converse(wire: AsyncRedisConnection, payload: bytes, replies: int) -> list[Any]:
    """Send ``payload`` and return its replies: for the handshake, before requests are sent."""
    received: list[Any] = []
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    receive, lost = wire.receive, wire.lost

    def gather(reply: Any) -> None:
        received.append(reply)
        if len(received) >= replies and not done.done():
            done.set_result(None)

    def end(wire: AsyncRedisConnection, why: str) -> None:
        if not done.done():
            done.set_exception(ConnectionResetError(why))

    wire.receive, wire.lost = gather, end
    wire.write(payload)
    try:
        await done
    finally:
        wire.receive, wire.lost = receive, lost
    return exactly(received, replies)


async def ask_once(address: Address, settings: RedisSettings, words: tuple[bytes, ...]) -> Any:
    """The reply to one command on a connection of its own, or OSError or StoreUnavailable."""
    question = Question(settings, words)
    wire = await open_wire(address, settings, lambda reply: None, lambda wire, why: None)
    try:
        return question.answer(await converse(wire, question.payload, question.replies))
    finally:
        wire.close()

"""A thread's way to one server: a socket, a deadline, and a breaker.

Connecting is always done by a thread of its own: a name that does not resolve, or a server that does not answer, costs
the caller its deadline once, and nothing while the breaker is open.
"""

from __future__ import annotations

import socket
import threading
from _thread import allocate_lock
from time import monotonic

from hiredis import HiredisError, Reader, ReplyError

from ratekeeper.errors import StoreUnavailable
from ratekeeper.native import core
from ratekeeper.stores.breaker import Breaker
from ratekeeper.stores.flight import Handshake, log, spoken

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.flight import Flight
    from ratekeeper.stores.script import Script
    from ratekeeper.stores.settings import Address, Settings

SHORTEST = 0.0005  # seconds to wait where the deadline has passed: a timeout of 0 would mean something else
IDLE = 1.0  # seconds after which a connection may have been closed by something in between
DONE = threading.Event()
DONE.set()


def open_socket(address: Address, settings: Settings, seconds: float) -> socket.socket:
    """A connected socket; none is left open if something stops that."""
    is_local = settings.scheme == "unix"
    made = socket.socket(socket.AF_UNIX) if is_local else socket.create_connection(address, seconds)
    try:
        if is_local:
            made.settimeout(seconds)
            made.connect(address[0])
        else:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if settings.tls is not None:
                made = settings.tls.wrap_socket(made, server_hostname=address[0])
    except BaseException:
        made.close()
        raise
    return made


class Connection:
    """A socket and its replies, in order."""

    def __init__(self, address: Address, settings: Settings, until: float) -> None:
        self.address = address
        left = max(SHORTEST, until - monotonic())
        self.socket = open_socket(address, settings, left)
        self.is_plain = settings.tls is None
        self.reader = Reader()
        self.used_at = monotonic()
        self.patience = left  # the socket's timeout

    def exchange(self, payload: bytes, replies: int, until: float) -> list[Any]:
        """Send ``payload`` and gather so many replies, until that instant."""
        found: list[Any] = []
        reader = self.reader
        while True:
            part = self.send_and_read(payload, until)
            payload = b""
            if not part:
                raise ConnectionResetError("the connection was closed")
            reader.feed(part)
            while (reply := reader.gets()) is not False:
                found.append(reply)
            if len(found) >= replies:
                return found

    def send_and_read(self, payload: bytes, until: float) -> bytes:
        """Send all of ``payload``, and wait for what comes first; empty if the other side closed."""
        now = self.used_at = monotonic()
        left = max(SHORTEST, until - now)
        if self.is_plain and core is not None:
            return core.exchange(self.socket.fileno(), payload, left)
        if not -0.001 < left - self.patience < 0.0001:  # setting it is a system call
            self.socket.settimeout(left)
            self.patience = left
        if payload:
            self.socket.sendall(payload)
        return self.socket.recv(65536)

    def is_stale(self) -> bool:
        """Whether the other side closed an idle connection: better known before sending than after."""
        if not self.is_plain:
            return False
        self.socket.settimeout(0)  # else Python itself would wait, whatever the flags say
        self.patience = 0.0
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        self.socket.close()


class Link:
    """One server, found by ``find`` at each new connection."""

    def __init__(
        self,
        settings: Settings,
        script: Script,
        find: Callable[[float], Address],
        name: str,
        clock: Clock,
        gives_time: bool,
    ) -> None:
        self.settings = settings
        self.script = script
        self.find = find
        self.name = name
        self.clock = clock
        self.gives_time = gives_time
        self.breaker = Breaker()
        self.connection: Connection | None = None
        self.lock = allocate_lock()  # around what follows
        self.attempt: threading.Event | None = None
        self.wire = allocate_lock()  # held by the one thread that speaks
        self.is_closed = False

    def exchange(self, flights: Sequence[Flight], until: float) -> tuple[list[Any], Address]:
        """Send all flights in one go; their replies, and who gave them."""
        payload = b"".join([flight.payload(self.script, self.clock, self.gives_time) for flight in flights])
        extra = sum([flight.asking for flight in flights])
        replies, asked = self.transfer(payload, len(flights) + extra, until)
        if extra:
            kept = iter(replies)
            replies = [(next(kept), next(kept))[1] if flight.asking else next(kept) for flight in flights]
        return replies, asked

    def transfer(self, payload: bytes, replies: int, until: float) -> tuple[list[Any], Address]:
        """Send ``payload`` on a good connection; so many replies, and who gave them."""
        if self.breaker.is_open:
            self.refuse()
        if not self.wire.acquire(False) and not self.wire.acquire(True, max(0.0, until - monotonic())):
            raise StoreUnavailable(self.name, "was busy until the deadline")
        try:
            connection = self.connection
            if connection is not None and monotonic() - connection.used_at > IDLE and connection.is_stale():
                self.drop(connection)
                connection = None
            if connection is None:
                connection = self.connected(until)
            try:
                return connection.exchange(payload, replies, until), connection.address
            except BaseException as error:
                self.drop(connection)
                if not isinstance(error, (OSError, HiredisError)):
                    raise
                why = (
                    f"gave no answer in {self.settings.deadline * 1000:g} ms"
                    if isinstance(error, TimeoutError)
                    else f"lost the connection ({error})"
                )
                self.trip(why)
                raise StoreUnavailable(self.name, why, charged=None) from error
        finally:
            self.wire.release()

    def connected(self, until: float) -> Connection:
        """A new connection, waited for until that instant."""
        attempt = self.reach()
        attempt.wait(max(0.0, until - monotonic()))
        connection = self.connection
        if connection is None:
            why = (
                self.breaker.why
                if self.breaker.is_open
                else f"could not be reached within {self.settings.deadline * 1000:g} ms"
            )
            self.trip(why)
            raise StoreUnavailable(self.name, why)
        return connection

    def away(self) -> str:
        """Why nobody is asked while the breaker is open; every now and then, have a look in the background."""
        breaker = self.breaker
        if not breaker.is_open:
            return ""
        if breaker.is_due(monotonic()):
            self.reach()
        return breaker.why

    def refuse(self) -> None:
        """Raise at once: the breaker is open."""
        raise StoreUnavailable(self.name, self.away() or self.breaker.why)

    def reach(self) -> threading.Event:
        """Start to connect, unless that is under way."""
        with self.lock:
            if self.attempt is None and self.connection is not None:
                return DONE  # just now
            if self.attempt is None:
                self.attempt = threading.Event()
                threading.Thread(
                    target=self.connect, args=(self.attempt,), name="ratekeeper-connect", daemon=True
                ).start()
            return self.attempt

    def connect(self, attempt: threading.Event) -> None:
        until = monotonic() + self.settings.connects_for
        connection = None
        try:
            connection = Connection(self.find(until), self.settings, until)
            handshake = Handshake(self.settings, self.script)
            while handshake.words:
                handshake.judge(connection.exchange(handshake.payload, len(handshake.words), until))
        except Exception as error:  # whatever it is, those who wait must hear of it
            if connection is not None:
                connection.close()
            why = error.why if isinstance(error, StoreUnavailable) else f"could not be reached ({error})"
            self.finish(attempt, None)
            self.trip(why)
        else:
            self.finish(attempt, connection)
        finally:
            attempt.set()

    def finish(self, attempt: threading.Event, connection: Connection | None) -> None:
        with self.lock:
            if self.attempt is not attempt or self.is_closed:  # forked or closed meanwhile
                if connection is not None:
                    connection.close()
                return
            self.attempt = None
            self.connection = connection
        if connection is not None and self.breaker.close():
            log.info("%s: answers again", self.name)

    def trip(self, why: str) -> None:
        if self.breaker.trip(monotonic(), why) and not self.is_closed:
            log.warning("%s: %s. Until it is back, on_store_error decides", self.name, why)

    def drop(self, connection: Connection | None = None) -> None:
        """Close the connection, so that the next call makes a new one; of a given one only that."""
        with self.lock:
            if connection is None:
                connection = self.connection
            if self.connection is connection:
                self.connection = None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
        self.drop()


def ask_once(address: Address, settings: Settings, until: float, *words: bytes) -> Any:
    """One question on a connection of its own: to sentinels, and for the map of a cluster."""
    connection = Connection(address, settings, until)
    try:
        payload, replies = b"", 0
        user, password = settings.username, settings.password
        if settings.service:
            user, password = settings.sentinel_username, settings.sentinel_password
        if password:
            payload, replies = spoken(b"AUTH", *([user.encode()] if user else []), password.encode()), 1
        reply = connection.exchange(payload + spoken(*words), replies + 1, until)[-1]
    finally:
        connection.close()
    if isinstance(reply, ReplyError):
        raise StoreUnavailable(settings.shown, f"refused {words[0].decode()}: {reply}")
    return reply

"""How threads reach one server: a socket, a deadline and a breaker.

All threads share one connection: the C core gathers their requests and sends them in batches, over TLS too, several of
which may be in flight.  Without the C core one thread uses the connection at a time (see combiner.py).

A thread of its own makes each connection.  So a name that does not resolve, or a server that does not answer, costs
the caller its deadline once, and nothing while the breaker is open.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
from _thread import allocate_lock
from time import monotonic

from ratekeeper.errors import StoreUnavailable
from ratekeeper.native import core
from ratekeeper.stores.redis.batch import log
from ratekeeper.stores.redis.breaker import Breaker
from ratekeeper.stores.redis.handshake import Handshake, Question, too_slow
from ratekeeper.stores.redis.reader import ReplyReader, exactly
from ratekeeper.stores.redis.request import evaluation
from ratekeeper.stores.redis.resp import BrokenReply, ErrorReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.native.core import Line
    from ratekeeper.stores.redis.batch import Batch
    from ratekeeper.stores.redis.combiner import Combiner
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.tls import TlsSession
    from ratekeeper.stores.redis.url import Address, RedisSettings

SHORTEST = 0.0005  # seconds to wait after the deadline: a timeout of 0 would make the socket non-blocking
STEP = 0.002  # seconds without an answer, after which the requests that came meanwhile are sent, too
IDLE = 1.0  # seconds without use after which a proxy or the server may have closed a connection
MOST_CONNECTIONS = 3  # of one call that was not sent: the first may have been given up by other threads
DONE = threading.Event()
DONE.set()


def open_socket(address: Address, settings: RedisSettings, seconds: float) -> socket.socket:
    """Connect a socket; if that fails, close it."""
    is_local = settings.scheme == "unix"
    opened = socket.socket(socket.AF_UNIX) if is_local else socket.create_connection(address, seconds)
    try:
        if is_local:
            opened.settimeout(seconds)
            opened.connect(address[0])
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        opened.close()
        raise
    return opened


class NotSent(ConnectionError):
    """The request was not sent: the deadline had passed, or another thread gave the connection up."""


def sent(reply: Any) -> Any:
    """The reply of the C queue, or NotSent."""
    if reply is None:
        raise NotSent("the connection was closed")
    return reply


class RedisConnection:
    """A socket and its replies, in order."""

    line: Line | None = None  # the C queue that threads share; None: one thread uses the connection at a time
    tls: TlsSession | None = None

    def __init__(self, address: Address, settings: RedisSettings, until: float, start: bytes = b"") -> None:
        self.address = address
        left = max(SHORTEST, until - monotonic())
        self.tls = settings.session(address)
        self.socket = open_socket(address, settings, left)
        self.patience = left  # the socket's timeout
        self.reader = ReplyReader()
        self.used_at = monotonic()
        if self.tls is not None:
            self.shake_hands(self.tls, until)
        if core is not None:
            functions = (None, None) if self.tls is None else (self.tls.encrypt, self.tls.decrypt)
            self.line = core.Line(os.dup(self.socket.fileno()), start, *functions, STEP)

    def shake_hands(self, tls: TlsSession, until: float) -> None:
        try:
            self.socket.sendall(tls.shake_hands())
            while not tls.is_ready:
                self.socket.sendall(tls.shake_hands(self.receive(until)))
        except BaseException:
            self.socket.close()
            raise

    def exchange(self, payload: bytes, replies: int, until: float) -> list[Any]:
        """Send ``payload`` and return its replies, or raise TimeoutError at the instant ``until``."""
        if self.line is None:
            return self.converse(payload, replies, until)
        raw = sent(self.line.exchange(payload, replies, until - monotonic()))
        return exactly(ReplyReader().feed(raw), replies)  # a new one for each call, as threads share the connection

    def ask(self, request: AnyRequest, until: float) -> Any:
        """The script's reply to ``request``, which may be batched with those of other threads."""
        reply = self.line.ask(  # type: ignore[union-attr]
            request.keys, request.keys_count, request.words, request.words_count, until - monotonic()
        )
        if reply.__class__ is bytes:
            return reply
        return ErrorReply(reply) if reply.__class__ is str else sent(reply)

    def converse(self, payload: bytes, replies: int, until: float) -> list[Any]:
        """``exchange`` without the C queue, for one thread at a time."""
        received: list[Any] = []
        reader = self.reader
        self.set_patience(until)
        if payload:
            self.socket.sendall(payload if self.tls is None else self.tls.encrypt(payload))
        while len(received) < replies:
            part = self.receive(until)
            received += reader.feed(part if self.tls is None else self.tls.decrypt(part))
        return exactly(received, replies)

    def receive(self, until: float) -> bytes:
        if monotonic() >= until:  # a server that never stops sending must not keep the caller
            raise TimeoutError("timed out")
        self.set_patience(until)
        part = self.socket.recv(65536)
        if not part:
            raise ConnectionResetError("the connection was closed")
        return part

    def set_patience(self, until: float) -> None:
        left = max(SHORTEST, until - monotonic())
        if not -0.001 < left - self.patience < 0.0001:  # setting it is a system call
            self.socket.settimeout(left)
            self.patience = left

    def is_stale(self) -> bool:
        """Whether the other side closed an idle connection.  A request sent on it could have been charged or not."""
        self.socket.settimeout(0)  # a Python socket with a timeout waits, whatever the flags of recv say
        self.patience = 0.0
        try:
            return self.socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
        self.socket.close()


class RedisServer:
    """One server, located anew for each connection."""

    combiner: Combiner  # gathers the requests of threads where they do not share a connection

    def __init__(
        self,
        settings: RedisSettings,
        script: Script,
        locate: Callable[[float], Address],
        name: str,
        clock: Clock,
        gives_time: bool,
    ) -> None:
        self.settings = settings
        self.script = script
        self.locate = locate  # the address to connect to, found until that instant
        self.name = name
        self.clock = clock
        self.gives_time = gives_time
        self.breaker = Breaker()
        self.connection: RedisConnection | None = None
        self.lock = allocate_lock()  # guards connection, attempt, is_closed and the trip of the breaker
        self.attempt: threading.Event | None = None
        self.is_shared = core is not None  # by threads: many of them use one connection at a time
        self.wire = allocate_lock()  # if not shared: held by the thread that uses the connection
        self.is_closed = False
        self.settle: Callable[[RedisConnection, float], None] | None = None  # charges what is owed, on a new connection
        self.trouble = ""  # why the server answers, but executes no check that writes; "": it does
        self.patience = settings.first_deadline  # seconds that a decision waits for a connection: at first, longer
        self.first_until = monotonic() + self.patience

    def exchange(self, batches: Sequence[Batch], until: float) -> tuple[list[Any], RedisConnection]:
        """Send all batches at once; their replies, and the connection that was used."""
        payload = b"".join([batch.payload(self.script, self.clock, self.gives_time) for batch in batches])
        extra = sum([batch.asking for batch in batches])
        replies, asked = self.transfer(payload, len(batches) + extra, until)
        if extra:
            each = iter(replies)  # the reply to ASKING comes before that to its batch
            replies = [(next(each), next(each))[1] if batch.asking else next(each) for batch in batches]
        return replies, asked

    def transfer(self, payload: bytes, replies: int, until: float) -> tuple[list[Any], RedisConnection]:
        """Send ``payload`` on an open connection; its replies, and the connection that was used."""
        if self.breaker.is_open:
            self.refuse()
        until = max(until, self.first_until)
        if not self.is_shared and not self.wire.acquire(True, max(0.0, until - monotonic())):
            raise StoreUnavailable(self.name, "was busy until the deadline")
        try:
            for _ in range(MOST_CONNECTIONS):
                connection = self.ready(until)
                until = max(until, self.first_until)
                try:
                    return connection.exchange(payload, replies, until), connection
                except BaseException as error:
                    self.fail(connection, error, until)
            raise self.given_up()
        finally:
            if not self.is_shared:
                self.wire.release()

    def ask(self, request: AnyRequest, until: float) -> tuple[Any, RedisConnection]:
        """The script's reply to ``request``, and the connection that was used."""
        until = max(until, self.first_until)
        for _ in range(MOST_CONNECTIONS):
            connection = self.ready(until)
            until = max(until, self.first_until)
            try:
                return connection.ask(request, until), connection
            except BaseException as error:
                self.fail(connection, error, until)
        raise self.given_up()

    def fail(self, connection: RedisConnection, error: BaseException, until: float) -> None:
        """Raise the error of a call on ``connection``; return if nothing was sent and there is time for another try."""
        if isinstance(error, NotSent):
            if monotonic() >= until:
                raise StoreUnavailable(self.name, "other threads waited for it until the deadline") from error
            self.drop(connection)
            if self.breaker.is_open:
                self.refuse()
            return
        if not isinstance(error, OSError):
            if not self.is_shared:  # else other threads use it, and the queue reads and drops the reply
                self.drop(connection)
            raise error
        if isinstance(error, TimeoutError):
            why = f"gave no answer in {self.settings.deadline * 1000:g} ms"
        elif isinstance(error, BrokenReply):
            why = str(error)
        elif error.errno == errno.EPROTO:  # of the C queue
            why = "spoke another protocol"
        else:
            why = f"lost the connection ({error})"
        self.leave(connection, why)
        raise StoreUnavailable(self.name, why, charged=None) from error

    def given_up(self) -> StoreUnavailable:
        """Open the breaker, as the server breaks each new connection; the error that says so."""
        why = "breaks each connection before a request is sent"
        self.trip(why)
        return StoreUnavailable(self.name, why)

    def ready(self, until: float) -> RedisConnection:
        """The open connection, or a new one if it was closed while it was idle."""
        connection, now = self.connection, monotonic()
        if connection is not None and now - connection.used_at > IDLE and connection.is_stale():
            self.drop(connection)
            connection = None
        if connection is None:
            connection = self.connected(until)
        connection.used_at = now
        return connection

    def connected(self, until: float) -> RedisConnection:
        """Wait for a new connection, until that instant at most."""
        attempt = self.reach()
        attempt.wait(max(0.0, until - monotonic()))
        connection = self.connection
        if connection is None:
            why = (
                self.breaker.why if self.breaker.is_open else f"could not be reached within {self.patience * 1000:g} ms"
            )
            if not self.breaker.is_open:
                self.trip(why)
            raise StoreUnavailable(self.name, why)
        return connection

    def away(self) -> str:
        """Why the server is not asked, while the breaker is open; else "".  Starts a probe if one is due."""
        breaker = self.breaker
        if not breaker.is_open:
            return ""
        if breaker.is_due(monotonic()):
            self.reach()
        return breaker.why

    def refuse(self) -> None:
        """Raise StoreUnavailable, as the breaker is open."""
        raise StoreUnavailable(self.name, self.away() or self.breaker.why)

    def reach(self) -> threading.Event:
        """Start to connect, unless an attempt is under way."""
        with self.lock:
            if self.attempt is None and self.connection is not None:
                return DONE  # another thread has just connected
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
            connection = RedisConnection(self.locate(until), self.settings, until, evaluation(self.script.sha))
            handshake = Handshake(self.settings, self.script)
            took = 0.0
            while handshake.words:
                began = monotonic()
                handshake.judge(connection.exchange(handshake.payload, len(handshake.words), until))
                took = monotonic() - began
            self.prove(connection, handshake.trial, took)
            if self.settle is not None:
                self.settle(connection, until)
        except Exception as error:  # of any kind: the threads that wait for this attempt must be woken
            if connection is not None:
                connection.close()
            why = error.why if isinstance(error, StoreUnavailable) else f"could not be reached ({error})"
            self.finish(attempt, None)
            self.trip(why)
        else:
            self.finish(attempt, connection)
        finally:
            attempt.set()

    def prove(self, connection: RedisConnection, trial: bytes, took: float) -> None:
        """Raise StoreUnavailable unless the server answers within the deadline, as often in a row as the breaker asks.

        ``took`` is how long the last step of the handshake took, which may have loaded the script.
        """
        quick, proofs = self.breaker.quick_enough(self.settings.deadline), self.breaker.proofs
        if proofs == 1 and took <= quick:
            return
        for _ in range(proofs):
            try:
                connection.exchange(trial, 1, monotonic() + quick)
            except TimeoutError:
                raise StoreUnavailable(self.name, too_slow(self.settings)) from None

    def finish(self, attempt: threading.Event, connection: RedisConnection | None) -> None:
        with self.lock:
            if self.attempt is not attempt or self.is_closed:  # the process was forked or the store closed meanwhile
                if connection is not None:
                    connection.close()
                return
            self.attempt = None
            self.connection = connection
            if self.patience != self.settings.deadline:  # the first contact is over
                self.patience = self.settings.deadline
                self.first_until = monotonic() + self.patience if connection is not None else 0.0
        if connection is not None and self.breaker.close(monotonic()):
            log.info("%s: answers again", self.name)

    def trip(self, why: str) -> None:
        with self.lock:  # of threads that fail together only one logs it
            changed = self.breaker.trip(monotonic(), why)
        if changed and not self.is_closed:
            log.warning("%s: %s. Using %s until it recovers", self.name, why, self.settings.fallback)

    def note_trouble(self, why: str) -> None:
        """Log that checks that write are not executed, once; the server goes on to answer others."""
        with self.lock:
            changed, self.trouble = not self.trouble, why
        if changed and not self.is_closed:
            log.warning("%s: %s. Using %s for checks that it does not execute", self.name, why, self.settings.fallback)

    def note_write(self) -> None:
        """Log that the server executes checks again."""
        with self.lock:
            changed, self.trouble = bool(self.trouble), ""
        if changed:
            log.info("%s: executes every check again", self.name)

    def leave(self, connection: RedisConnection, why: str) -> None:
        """Close a connection and open the breaker.  Only the first of the threads that share it opens the breaker."""
        if self.drop(connection):
            self.trip(why)

    def drop(self, connection: RedisConnection) -> bool:
        """Close a connection; whether it was the current one, so that the next call makes a new one."""
        with self.lock:
            is_current = self.connection is connection
            if is_current:
                self.connection = None
        connection.close()
        return is_current

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def ask_once(address: Address, settings: RedisSettings, until: float, words: tuple[bytes, ...]) -> Any:
    """The reply to one command on a connection of its own, or OSError or StoreUnavailable."""
    question = Question(settings, words)
    connection = RedisConnection(address, settings, until)
    try:
        return question.answer(connection.exchange(question.payload, question.replies, until))
    finally:
        connection.close()

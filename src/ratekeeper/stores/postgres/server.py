"""The server as one process reaches it: its breaker, its connection, and what an error means.  For threads and loops.

A new connection is made in a thread, which has longer than a caller waits.  While the breaker is open, nobody waits:
each connection that is tried is a probe.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from logging import getLogger
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.postgres.connection import AGAIN, DOWN, NOT_PREPARED, PostgresConnection, ServerError, connected
from ratekeeper.stores.postgres.request import MOST_REQUESTS, answers_of, parameters
from ratekeeper.stores.redis.breaker import Breaker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.clock import Clock
    from ratekeeper.stores.postgres.request import AnyRequest, ChargedRows
    from ratekeeper.stores.postgres.url import PostgresSettings

log = getLogger("ratekeeper")

MOST_TRIES = 4  # of one statement


class NotRun(Exception):
    """A statement that was rolled back, or never begun, and may be sent again."""


class NobodyWaits:
    """In the place of a future: nobody waits for the answer."""

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None: ...

    def set_exception(self, error: BaseException) -> None: ...


class ReachedServer:
    """What threads and event loops share about one server."""

    def __init__(self, settings: PostgresSettings, clock: Clock, gives_time: bool) -> None:
        self.settings = settings
        self.name = settings.shown
        self.clock = clock
        self.gives_time = gives_time
        self.breaker = Breaker()
        self.connection: PostgresConnection | None = None
        self.lock = allocate_lock()  # guards connection, attempt, is_closed and the trip of the breaker
        self.attempt: threading.Event | None = None
        self.is_closed = False
        self.run: str | None = None  # of the server that was connected to last
        self.charges: Callable[[], list[ChargedRows]] = list  # what is owed, to be charged on a new connection
        self.patience = settings.first_deadline  # seconds that a decision waits for a connection: at first, longer
        self.first_until = monotonic() + self.patience

    def away(self) -> str:
        """Why the server is not asked, while the breaker is open; else "".  Starts a probe if one is due."""
        breaker = self.breaker
        if not breaker.is_open:
            return ""
        if breaker.is_due(monotonic()):
            self.reach()
        return breaker.why

    def reach(self) -> threading.Event:
        """Start to connect, unless an attempt is under way."""
        with self.lock:
            attempt = self.attempt
            if attempt is None:
                attempt = threading.Event()
                if self.connection is not None:
                    attempt.set()  # another thread has just connected
                    return attempt
                self.attempt = attempt
                threading.Thread(target=self.connect, args=(attempt,), name="ratekeeper-connect", daemon=True).start()
            return attempt

    def connect(self, attempt: threading.Event) -> None:
        until = monotonic() + self.settings.connects_for
        connection = None
        try:
            connection = connected(self.settings, until)
            self.prove(connection)
            self.settle(connection, until)
        except Exception as error:  # of any kind: whoever waits for this attempt must be woken
            if connection is not None:
                connection.abandon()
            why = error.why if isinstance(error, StoreUnavailable) else f"could not be reached ({error})"
            self.finish(attempt, None)
            self.trip(why)
        else:
            self.finish(attempt, connection)
        finally:
            attempt.set()
            self.ended()

    def ended(self) -> None:
        """Called in the thread of an attempt, when it has ended."""

    def prove(self, connection: PostgresConnection) -> None:
        """Raise StoreUnavailable unless the server answers within the deadline, as often as the breaker asks."""
        quick = self.breaker.quick_enough(self.settings.deadline)
        for _ in range(self.breaker.proofs if self.breaker.is_open else 0):
            connection.pgconn.send_query_params(b"SELECT 1", None)
            try:
                connection.finish(monotonic() + quick)
            except TimeoutError:
                raise StoreUnavailable(self.name, f"gave no answer in {quick * 1000:g} ms") from None

    def settle(self, connection: PostgresConnection, until: float) -> None:
        """Charge what is owed on a new connection, before any decision is made on it."""
        while monotonic() < until:
            charges = self.charges()
            if not charges:
                return
            for at in range(0, len(charges), MOST_REQUESTS):
                self.charge(connection, charges[at : at + MOST_REQUESTS], until)

    def charge(self, connection: PostgresConnection, charges: Sequence[ChargedRows], until: float) -> None:
        for charge in charges:
            charge.future = NobodyWaits()
        try:
            connection.ask(self.words(charges), until)
        except BaseException as error:
            charged = error.charged if isinstance(error, ServerError) else None
            failed = StoreUnavailable(self.name, str(error) or "gave no answer", charged)
            for charge in charges:
                charge.fail(failed)
            raise

    def words(self, requests: Sequence[AnyRequest]) -> list[bytes | None]:
        given = self.clock.nanos() // 1000 if self.gives_time else None
        return parameters(requests, given, max(1, int(self.settings.deadline * 1000)))

    def finish(self, attempt: threading.Event, connection: PostgresConnection | None) -> None:
        with self.lock:
            if self.attempt is not attempt or self.is_closed:  # the process was forked or the store closed meanwhile
                if connection is not None:
                    connection.close()
                return
            self.attempt = None
            self.connection = connection
            if connection is not None:
                self.run = connection.run
            if self.patience != self.settings.deadline:  # the first contact is over
                self.patience = self.settings.deadline
                self.first_until = monotonic() + self.patience if connection is not None else 0.0
        if connection is not None and self.breaker.close(monotonic()):
            log.info("%s: answers again", self.name)

    def read(self, reply: bytes, requests: Sequence[AnyRequest], sent: int) -> list[Any]:
        """The answer to each request; raises StoreUnavailable if it is no reply to them."""
        try:
            now, answers = answers_of(reply, requests)
            return [request.read(rows, now, sent) for request, rows in zip(requests, answers, strict=True)]
        except (ValueError, IndexError, TypeError) as error:
            why = f"answered something else than was asked ({error})"
            raise StoreUnavailable(self.name, why, charged=None) from error

    def judge(self, connection: PostgresConnection, error: BaseException, is_last: bool) -> StoreUnavailable:
        """What the error of a statement means: NotRun is raised if it may be sent again."""
        if isinstance(error, ServerError):
            if error.state in NOT_PREPARED and connection.is_prepared and not error.is_fatal:
                connection.is_prepared = False
                raise NotRun
            if error.state in AGAIN and not error.is_fatal and not is_last:
                raise NotRun
            if error.is_fatal or error.state[:2] in DOWN:
                self.leave(connection, str(error))
            return StoreUnavailable(self.name, str(error), error.charged)
        if isinstance(error, TimeoutError):
            why = f"gave no answer in {self.settings.deadline * 1000:g} ms"
        else:
            why = f"lost the connection ({error})"
        self.leave(connection, why)
        return StoreUnavailable(self.name, why, charged=None)

    def trip(self, why: str) -> None:
        with self.lock:  # of threads that fail together only one logs it
            changed = self.breaker.trip(monotonic(), why)
        if changed and not self.is_closed:
            log.warning("%s: %s. Using %s until it recovers", self.name, why, self.settings.fallback)

    def leave(self, connection: PostgresConnection, why: str) -> None:
        """Close a connection, stop what runs on it, and open the breaker."""
        if self.drop(connection):
            self.trip(why)

    def drop(self, connection: PostgresConnection, *, is_idle: bool = False) -> bool:
        """Close a connection; whether it was the current one, so that the next call makes a new one."""
        with self.lock:
            is_current = self.connection is connection
            if is_current:
                self.connection = None
        if is_idle:
            connection.close()
        else:
            connection.abandon()
        return is_current

    def close(self) -> None:
        with self.lock:
            self.is_closed = True
            connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


def forget(server: ReachedServer) -> None:
    """Leave the parent's connection alone: close the socket here, without a word to the server.

    psycopg says no goodbye on a connection that another process made.
    """
    connection, server.connection = server.connection, None
    if connection is not None:
        os.close(connection.pgconn.socket)

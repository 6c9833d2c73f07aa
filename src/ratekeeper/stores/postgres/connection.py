"""One connection to a Postgres server, on libpq: every wait has an end, and an error says whether a statement ran."""

from __future__ import annotations

import select
from contextlib import suppress
from hashlib import blake2b
from socket import SOCK_STREAM, getaddrinfo
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PGconn, PollingStatus

from ratekeeper.errors import InvalidStore, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.pq.abc import PGresult

    from ratekeeper.stores.postgres.url import PostgresSettings

# The functions of decide.sql by the number of their parameters.
FUNCTIONS = {
    7: ("check_1", "bytea,text,bigint,bigint[],bigint,bigint,int"),
    10: ("decide_1", "text,int[],text,bigint[],bigint[],bigint[],bigint[],bytea[],bigint,int"),
}
CANCELS_FOR = 2.0  # seconds
MOST_NOTICES = 10  # that a server sends between two statements
AGAIN = ("40001", "40P01", "55P03")  # rolled back, as another statement was in the way: worth another try
NOT_PREPARED = ("26000", "42P05", "0A000")  # a pooler gave us another session: the statement did not run
# The server answers, but cannot decide: classes of SQLSTATE.
DOWN = ("25", "3F", "42", "53", "57", "58", "XX")


class ServerError(Exception):
    """An error that the server sent.  ``charged`` is False if the statement was certainly rolled back."""

    def __init__(self, state: str, message: str, is_fatal: bool) -> None:
        super().__init__(message)
        self.state = state
        self.charged = None if is_fatal else False
        self.is_fatal = is_fatal


class PostgresConnection:
    """One session.  One statement at a time."""

    def __init__(self, settings: PostgresSettings, until: float) -> None:
        """Connect; raises OSError, ServerError or TimeoutError."""
        self.settings = settings
        self.statements: dict[int, bytes] = {}
        self.names: dict[int, bytes] = {}
        for many, (function, _) in FUNCTIONS.items():
            words = ",".join([f"${number}" for number in range(1, many + 1)])
            statement = self.statements[many] = f"SELECT {settings.schema}.{function}({words})".encode()
            # One name for one text, in whatever session of a pooler.
            self.names[many] = b"ratekeeper_" + blake2b(statement, digest_size=8).hexdigest().encode()
        self.is_prepared = False
        self.run = ""  # names the run of the server
        self.results: list[PGresult] = []
        self.pgconn = PGconn.connect_start(resolved(settings.dsn).encode())
        try:
            self.connect(until)
            self.pgconn.nonblocking = 1
            self.idle = select.poll()
            self.idle.register(self.pgconn.socket, select.POLLIN)
            self.greet(until)
        except BaseException:
            self.close()
            raise

    def connect(self, until: float) -> None:
        pgconn = self.pgconn
        while True:
            if pgconn.status == ConnStatus.BAD:
                raise ConnectionError(self.reason())
            step = pgconn.connect_poll()
            if step == PollingStatus.OK:
                return
            if step == PollingStatus.FAILED:
                raise ConnectionError(self.reason())
            self.wait(select.POLLIN if step == PollingStatus.READING else select.POLLOUT, until)

    def greet(self, until: float) -> None:
        """See whether the server can decide, and prepare the statement."""
        schema = self.settings.schema
        question = "SELECT pg_is_in_recovery(), pg_postmaster_start_time(), " + " AND ".join(
            [f"to_regprocedure('{schema}.{name}({types})') IS NOT NULL" for name, types in FUNCTIONS.values()]
        )
        self.pgconn.send_query_params(question.encode(), None)
        (result,) = self.finish(until)
        in_recovery, self.run, is_there = [(result.get_value(0, column) or b"").decode() for column in range(3)]
        if in_recovery == "t":
            raise ServerError("25006", "is a replica, which takes no writes", False)
        if is_there != "t":
            raise ServerError("42883", f"has no schema {schema} of this version. Run: ratekeeper migrate URL", False)
        if self.settings.prepare:
            try:
                for many, statement in self.statements.items():
                    self.pgconn.send_prepare(self.names[many], statement)
                    self.finish(until)
                self.is_prepared = True
            except ServerError as error:
                if error.state not in NOT_PREPARED:
                    raise

    def send(self, parameters: Sequence[bytes | None]) -> None:
        """Start the statement.  Raises ConnectionError if the connection is lost."""
        self.results = []
        try:
            if self.is_prepared:
                self.pgconn.send_query_prepared(self.names[len(parameters)], parameters)
            else:
                self.pgconn.send_query_params(self.statements[len(parameters)], parameters)
            self.pgconn.flush()
        except Exception as error:
            raise ConnectionError(self.reason()) from error

    def receive(self) -> bytes | None:
        """The reply, if all of it has come: when the socket can be read.  Raises ConnectionError or ServerError."""
        results = self.collect()
        if results is None:
            return None
        value = results[0].get_value(0, 0) if results and results[0].ntuples == 1 else None
        if value is None:
            raise ServerError("XX000", "answered something else than was asked", True)
        return value

    def collect(self) -> list[PGresult] | None:
        """All results of a statement, up to the server's word that it is committed; None: more is to come."""
        pgconn = self.pgconn
        try:
            pgconn.flush()
            pgconn.consume_input()
            while not pgconn.is_busy():
                result = pgconn.get_result()
                if result is None:
                    break
                self.results.append(result)
            else:
                return None
        except Exception as error:
            raise ConnectionError(self.reason()) from error
        results, self.results = self.results, []
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
                if not state:  # libpq's own: the connection was lost
                    raise ConnectionError(self.reason())
                severity = result.error_field(DiagnosticField.SEVERITY_NONLOCALIZED) or b""
                message = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
                raise ServerError(state, f"answered {message} ({state})", severity in (b"FATAL", b"PANIC"))
        if pgconn.status != ConnStatus.OK:
            raise ConnectionError(self.reason())
        return results

    def ask(self, parameters: Sequence[bytes | None], until: float) -> bytes:
        """The reply to the statement; raises TimeoutError at that instant."""
        self.send(parameters)
        while True:
            reply = self.receive()
            if reply is not None:
                return reply
            self.wait(select.POLLIN, until)

    def finish(self, until: float) -> list[PGresult]:
        while True:
            results = self.collect()
            if results is not None:
                return results
            self.wait(select.POLLIN, until)

    def wait(self, events: int, until: float) -> None:
        poll = select.poll()
        poll.register(self.pgconn.socket, events)
        if not poll.poll(max(0.0, until - monotonic()) * 1000):
            raise TimeoutError

    def is_stale(self) -> bool:
        """Whether the server closed the connection while it was idle.  Nothing was sent, so nothing ran."""
        with suppress(Exception):  # the socket is gone
            for _ in range(MOST_NOTICES):
                if not self.idle.poll(0):
                    return self.pgconn.status != ConnStatus.OK
                self.pgconn.consume_input()  # a notice of the server, and then the end
        return True

    def reason(self) -> str:
        """What libpq says, in one line.  It never names a password."""
        words = self.pgconn.error_message.decode("utf-8", "replace").split()
        return " ".join(words) or "the connection was closed"

    def abandon(self) -> None:
        """Close, and ask the server to stop what it is doing: in a thread, as that may wait."""
        cancel = None
        with suppress(Exception):  # the connection is gone, or libpq is older than 17
            cancel = self.pgconn.cancel_conn()
        self.close()
        if cancel is not None:
            Thread(target=stop, args=(cancel,), name="ratekeeper-cancel", daemon=True).start()

    def close(self) -> None:
        self.pgconn.finish()


def stop(cancel: Any) -> None:
    """Cancel a statement, without a call that blocks: psycopg holds the interpreter's lock during such calls."""
    until = monotonic() + CANCELS_FOR
    with suppress(Exception):  # the server is away: nothing is left to stop
        cancel.start()
        while (step := cancel.poll()) in (PollingStatus.READING, PollingStatus.WRITING):
            poll = select.poll()
            poll.register(cancel.socket, select.POLLIN if step == PollingStatus.READING else select.POLLOUT)
            if not poll.poll(max(0.0, until - monotonic()) * 1000):
                break
    with suppress(Exception):
        cancel.finish()


def resolved(dsn: str) -> str:
    """The settings of libpq with addresses in the place of host names.

    libpq looks names up in a call that blocks, during which psycopg holds the interpreter's lock.
    """
    settings: dict[str, Any] = conninfo_to_dict(dsn)
    hosts = str(settings.get("host") or "").split(",")
    if "hostaddr" in settings or not any(hosts):
        return make_conninfo(**settings)
    ports = str(settings.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places: list[tuple[str, str, str]] = []
    failed = None
    for host, port in zip(hosts, ports, strict=True):
        if host.startswith(("/", "@")) or not host:
            places.append((host, "", port))
            continue
        try:
            found = getaddrinfo(host, int(port or 5432), type=SOCK_STREAM)
        except OSError as error:  # another of the hosts may be there
            failed = error
            continue
        places += [(host, str(address[0]), port) for *_, address in found]
    if not places and failed is not None:
        raise failed
    host, hostaddr, port = (",".join(words) for words in zip(*places, strict=True))
    return make_conninfo(**{**settings, "host": host, "hostaddr": hostaddr, "port": port})


def expect_readable(settings: PostgresSettings) -> None:
    """Raise InvalidStore if libpq cannot read the URL.  What libpq says may show the password."""
    try:
        conninfo_to_dict(settings.dsn)
    except Exception:
        raise InvalidStore(
            "store postgresql://: expected a URL that libpq can read, got another. "
            "Write special letters of names and passwords in percent-encoding."
        ) from None


def connected(settings: PostgresSettings, until: float) -> PostgresConnection:
    """A new connection, or StoreUnavailable."""
    try:
        return PostgresConnection(settings, until)
    except TimeoutError:
        why = "could not be reached in time"
    except ServerError as error:
        why = str(error)
    except OSError as error:
        why = f"could not be reached ({error})"
    raise StoreUnavailable(settings.shown, why)

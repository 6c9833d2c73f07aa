"""State in a SQLite file: exact limits for all processes of one host, kept through restarts, with no server.

Each batch of decisions is one transaction, which locks the file before it reads what it will change.  So nothing is
decided twice, and a process that is killed leaves either all of a plan or nothing.  The host's time of day decides.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from random import random
from time import monotonic, sleep, time

from ratekeeper.errors import InvalidStore, StoreUnavailable, shown
from ratekeeper.stores.compare_and_set.store import CompareAndSetStore
from ratekeeper.stores.compare_and_set.url import StoreUrl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.compare_and_set.flow import Change, Record

DEADLINE = 1.0  # seconds: a file has no network, and other processes hold it only for a moment
CREATED_WITHIN = 30.0  # seconds
LONGEST_PAUSE = 0.002  # seconds between two attempts to lock the file, jittered
SWEEP_EVERY = 64  # transactions
SWEPT = 128  # records that one sweep examines
MOST_NAMES = 500  # in one statement
SCHEMA = """
CREATE TABLE IF NOT EXISTS ratekeeper_records (
    name TEXT PRIMARY KEY, value BLOB NOT NULL, expires_at INTEGER NOT NULL
) WITHOUT ROWID
"""


class SQLiteStore(CompareAndSetStore):
    """State in a file of SQLite: ``SQLiteStore("sqlite:////var/lib/app/limits.db")``.

    The file must be on a disk of this host: SQLite's shared memory does not work on network file systems.
    """

    errors = (sqlite3.Error, OSError)

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        parsed = StoreUrl(url, options)
        if parsed.host or parsed.has_user or not parsed.path.strip("/"):
            raise InvalidStore(
                "store sqlite://: expected a path, as sqlite:///limits.db or sqlite:////var/lib/app/limits.db, "
                f"got {'a host' if parsed.host or parsed.has_user else 'none'}."
            )
        self.path = os.path.abspath(parsed.path[1:])
        parsed.options.setdefault("deadline", DEADLINE)
        super().__init__(f"sqlite:///{parsed.path[1:]}", clock=clock, **parsed.options)
        self.connection_lock = threading.RLock()  # one connection, used by one thread at a time
        self.connection: sqlite3.Connection | None = None
        self.inherited: list[sqlite3.Connection | None] = []
        self.transactions = 0
        self.swept_to = ""
        try:
            self.first_connect()
        except sqlite3.Error as error:
            raise InvalidStore(
                f"store {self.name}: expected a database that this process may read and write, got {shown(str(error))}."
            ) from None

    def first_connect(self) -> None:
        """Open the file.  While another process creates it, SQLite refuses at once, whatever time it was given."""
        until = monotonic() + CREATED_WITHIN
        while True:
            try:
                self.connect()
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error) or monotonic() >= until:
                    raise
            sleep(LONGEST_PAUSE * random())

    def connect(self) -> sqlite3.Connection:
        """The connection of this process, opened when it is first needed."""
        if self.connection is None:
            connection = sqlite3.connect(
                self.path, timeout=max(self.deadline, 5.0), isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for a writer
                connection.execute("PRAGMA synchronous = NORMAL")  # a crash of the host may lose the last moment
                connection.execute(SCHEMA)
                connection.execute("PRAGMA busy_timeout = 0")  # from here on, see exclusive
            except sqlite3.Error:
                connection.close()
                raise
            self.connection = connection
        return self.connection

    def get_all(self, names: Sequence[str]) -> tuple[list[Record], None]:
        """The records of these names; nobody writes them meanwhile if the file is locked."""
        values: dict[str, bytes] = {}
        with self.connection_lock:
            connection = self.connect()
            if len(names) == 1:
                row = connection.execute("SELECT value FROM ratekeeper_records WHERE name = ?", names).fetchone()
                return [(None if row is None else row[0], None)], None
            for at in range(0, len(names), MOST_NAMES):
                some = names[at : at + MOST_NAMES]
                marks = ",".join("?" * len(some))
                values.update(
                    connection.execute(f"SELECT name, value FROM ratekeeper_records WHERE name IN ({marks})", some)
                )
        return [(values.get(name), None) for name in names], None

    def compare_and_set_all(self, changes: Sequence[Change]) -> bool:
        """Write the changes: the file has been locked since the records were read."""
        now = int(time())
        self.connect().executemany(
            "INSERT INTO ratekeeper_records VALUES (?, ?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value, expires_at = excluded.expires_at",
            [(change.name, change.value, now + change.seconds) for change in changes],
        )
        return True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Lock the file, and commit at the end."""
        with self.connection_lock:
            connection = self.connect()
            self.begin(connection)
            try:
                yield
                self.transactions += 1
                if self.transactions % SWEEP_EVERY == 0:
                    self.sweep(connection)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def begin(self, connection: sqlite3.Connection) -> None:
        """Lock the file; raises StoreUnavailable if other processes held it until the deadline.

        SQLite's own waiting sleeps longer and longer, up to 100 ms, so the process that came first would come last.
        """
        until = monotonic() + self.deadline
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
                if monotonic() >= until:
                    raise StoreUnavailable(
                        self.name, f"was locked by other processes for {self.deadline * 1000:g} ms"
                    ) from None
            sleep(LONGEST_PAUSE * random())

    def sweep(self, connection: sqlite3.Connection) -> None:
        """Delete expired records among the next ones, in the order of their names."""
        rows = connection.execute(
            "SELECT name, expires_at FROM ratekeeper_records WHERE name > ? ORDER BY name LIMIT ?",
            (self.swept_to, SWEPT),
        ).fetchall()
        now = int(time())
        expired = [(name,) for name, expires_at in rows if expires_at < now]
        connection.executemany("DELETE FROM ratekeeper_records WHERE name = ?", expired)
        self.swept_to = rows[-1][0] if len(rows) == SWEPT else ""

    def disconnect(self) -> None:
        """Close the file."""
        with self.connection_lock:
            if self.connection is not None:
                self.connection.close()
                self.connection = None

    def after_fork(self) -> None:
        """Open the file again: a connection of the parent must be neither used nor closed."""
        self.inherited.append(self.connection)
        self.connection = None
        self.connection_lock = threading.RLock()


def is_locked(error: sqlite3.OperationalError) -> bool:
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

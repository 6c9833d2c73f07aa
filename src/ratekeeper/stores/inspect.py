"""Count and list the keys of a store, for its operators: never part of a decision.

Names of keys on Redis are digests, and shared memory has no names at all: neither says which client is counted.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from ratekeeper.errors import InvalidStore, StoreUnavailable, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.stores.redis.store import RedisStore
    from ratekeeper.stores.redis.url import Address

PATIENCE = 10.0  # seconds for each server


def try_store(url: str) -> str:
    """Why the store at ``url`` does not answer; empty if it does.  A URL that is no store raises InvalidStore.

    Nothing stays behind: shared memory that was not there before is removed again.
    """
    from ratekeeper.stores import open_store

    if url.startswith("shm:"):
        from ratekeeper.stores.shared import remove, segments

        name = url.removeprefix("shm://").partition("?")[0]
        is_new = not name.startswith("/") and name not in [segment.name for segment in segments()]
        open_store(url).close()
        if is_new:
            remove(name)
        return ""
    if url.startswith("postgres"):
        return try_postgres(url)
    if not url.startswith(("redis", "valkey")):
        open_store(url).close()
        return ""
    try:
        with InspectedServers(url, 2.0) as servers:
            servers.ask((b"PING",))
    except StoreUnavailable as error:
        return str(error).rstrip(".")
    return ""


def try_postgres(url: str) -> str:
    from ratekeeper.stores import open_store

    open_store(url).close()  # raises InvalidStore
    from ratekeeper.stores.postgres.connection import connected
    from ratekeeper.stores.postgres.url import PostgresSettings

    try:
        connected(PostgresSettings(url), monotonic() + 2.0).close()
    except StoreUnavailable as error:
        return str(error).rstrip(".")
    return ""


class InspectedServers:
    """The servers of a Redis store, asked directly and one by one; an error reply stays a reply."""

    def __init__(self, url: str, patience: float = PATIENCE) -> None:
        from ratekeeper.stores.redis.store import RedisStore

        self.store = RedisStore(url)
        self.patience = patience

    def __enter__(self) -> InspectedServers:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def ask(self, *commands: tuple[bytes, ...]) -> list[tuple[str, list[Any]]]:
        """The address of each server and its replies; StoreUnavailable if one cannot be asked or refuses us."""
        from ratekeeper.stores.redis.connection import RedisConnection
        from ratekeeper.stores.redis.handshake import authentication
        from ratekeeper.stores.redis.resp import ErrorReply, encode_command

        settings = self.store.settings
        first = [tuple(authentication(settings.username, settings.password))] if settings.password else []
        payload = b"".join([encode_command(*words) for words in [*first, *commands]])
        answers = []
        try:
            for place in masters(self.store, self.patience):
                until = monotonic() + self.patience
                connection = RedisConnection(place, settings, until)
                try:
                    replies = connection.exchange(payload, len(first) + len(commands), until)
                finally:
                    connection.close()
                is_error = isinstance(replies[0], ErrorReply)
                if is_error and (first or str(replies[0]).startswith("NOAUTH")):
                    raise StoreUnavailable(settings.shown, f"refused to be asked ({replies[0]})")
                host, port = place
                answers.append((f"[{host}]:{port}" if ":" in host else f"{host}:{port}", list(replies[len(first) :])))
        except OSError as error:
            raise StoreUnavailable(settings.shown, f"could not be asked ({error})") from error
        return answers


class KeyCount(NamedTuple):
    """How many keys there are; some of them with the seconds until they expire, or the tables they are in."""

    keys: int
    some: tuple[tuple[str, float], ...] = ()
    tables: tuple[tuple[str, str, int], ...] = ()  # name, limit, keys


def census(url: str, prefix: str = "rk", most: int = 100) -> KeyCount:
    """Count the keys of a store, and list at most ``most`` of them."""
    if url.startswith("memory:"):
        raise InvalidStore(
            "keys: expected redis://, postgresql:// or shm://, got memory://, which only its own process can look "
            "into. Ask its /metrics or the dashboard."
        )
    if url.startswith("postgres"):
        return rows_of(url, most)
    return tables_of(url) if url.startswith("shm:") else names_of(url, prefix, most)


def rows_of(url: str, most: int) -> KeyCount:
    """The rows of a Postgres store: one for each limit of a key."""
    from ratekeeper.stores import open_store

    open_store(url).close()  # raises InvalidStore
    from ratekeeper.stores.postgres.connection import connected
    from ratekeeper.stores.postgres.url import PostgresSettings

    settings = PostgresSettings(url)
    until = monotonic() + PATIENCE
    now = "extract(epoch FROM clock_timestamp())"
    live = f"FROM {settings.schema}.state WHERE expires_at > {now} * 1000000"
    connection = connected(settings, until)
    try:
        connection.pgconn.send_query_params(f"SELECT count(*) {live}".encode(), None)
        (count,) = connection.finish(until)
        some = f"SELECT encode(key, 'hex'), expires_at / 1e6 - {now} {live} LIMIT {int(most)}"
        connection.pgconn.send_query_params(some.encode(), None)
        (rows,) = connection.finish(until)
    except Exception as error:
        raise StoreUnavailable(settings.shown, f"could not be asked ({error})") from error
    finally:
        connection.close()
    shown_rows = [
        ((rows.get_value(at, 0) or b"").decode(), float(rows.get_value(at, 1) or 0)) for at in range(rows.ntuples)
    ]
    return KeyCount(int(count.get_value(0, 0) or 0), tuple(shown_rows))


def tables_of(url: str) -> KeyCount:
    from ratekeeper.limit import parse_limits
    from ratekeeper.stores import open_store
    from ratekeeper.stores.shared import segment_at, segments
    from ratekeeper.stores.shared_files import folder_of

    by_name = {segment.name: segment for segment in segments()}
    name = url.removeprefix("shm://").partition("?")[0]
    if not name.startswith("/") and name not in by_name:  # opening it would create it
        raise InvalidStore(f"keys: expected the name of a segment ({', '.join(by_name) or 'none'}), got {shown(name)}.")
    store: Any = open_store(url)
    tables = []
    try:
        for space, limits in segment_at(name, folder_of(name)).tables:
            before = store.size()
            store.table(space, parse_limits(limits.split(", ")))  # opens the table of that name and limit
            tables.append((space, limits, store.size() - before))
    finally:
        store.close()
    return KeyCount(sum(keys for _, _, keys in tables), tables=tuple(tables))


def names_of(url: str, prefix: str, most: int) -> KeyCount:
    from ratekeeper.stores.redis.connection import RedisConnection
    from ratekeeper.stores.redis.store import RedisStore

    store = RedisStore(url)
    names: list[tuple[str, float]] = []
    total = 0
    try:
        for place in masters(store):
            connection = RedisConnection(place, store.settings, monotonic() + PATIENCE)
            try:
                some, count = scan(connection, store, prefix, most - len(names))
            finally:
                connection.close()
            names += some
            total += count
    except OSError as error:
        raise StoreUnavailable(store.settings.shown, f"could not be asked ({error})") from error
    finally:
        store.close()
    return KeyCount(total, tuple(names))


def masters(store: RedisStore, patience: float = PATIENCE) -> list[Address]:
    """The addresses of the servers that have keys."""
    from ratekeeper.stores.redis.steps import drive

    until = monotonic() + patience
    topology = store.connections.topology
    if store.settings.service:
        return [drive(topology.find_master(until))]
    if store.settings.is_cluster:
        drive(topology.learn_slots(until))
        return list(dict.fromkeys(topology.slots.masters.values()))
    return store.settings.addresses


def scan(connection: Any, store: RedisStore, prefix: str, most: int) -> tuple[list[tuple[str, float]], int]:
    from ratekeeper.stores.redis.handshake import authentication
    from ratekeeper.stores.redis.resp import ErrorReply, encode_command

    settings = store.settings

    def ask(*commands: tuple[bytes, ...]) -> list[Any]:
        payload = b"".join([encode_command(*words) for words in commands])
        replies: list[Any] = connection.exchange(payload, len(commands), monotonic() + PATIENCE)
        for reply in replies:
            if isinstance(reply, ErrorReply):
                raise StoreUnavailable(settings.shown, f"refused to be looked into: {reply}")
        return replies

    if settings.password:
        ask(tuple(authentication(settings.username, settings.password)))
    if settings.db:
        ask((b"SELECT", b"%d" % settings.db))
    cursor, names, total = b"0", list[bytes](), 0
    while True:
        ((cursor, part),) = ask((b"SCAN", cursor, b"MATCH", f"{prefix}*".encode(), b"COUNT", b"1000"))
        total += len(part)
        names += part[: most - len(names)]
        if cursor == b"0":
            break
    lives = ask(*[(b"PTTL", name) for name in names]) if names else []
    return [(name.decode("latin-1"), life / 1000) for name, life in zip(names, lives, strict=True)], total

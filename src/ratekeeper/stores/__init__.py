"""Where state lives, by URL.

A store answers whole plans: ``check``, ``peek``, ``take``, ``refund``, ``reset``, ``states``, ``close``.  It also hands
out tables (``table(space, limit)``), whose ``check(key, cost)`` is the hot path, and plans of several limits that only
wait for keys (``prepare``).  ``protocol.py`` says what all stores have in common.
"""

from __future__ import annotations

from ratekeeper.errors import InvalidStore, did_you_mean, shown
from ratekeeper.native import core
from ratekeeper.stores.options import HIDDEN, MAX_KEYS, shown_part, shown_url

TYPE_CHECKING = False
if TYPE_CHECKING or core is None:
    from ratekeeper.stores.memory import MemoryStore as MemoryStore
else:  # the same promises, decided in C
    from ratekeeper.stores.native import NativeStore as MemoryStore
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.compare_and_set.aio_store import AsyncCompareAndSetStore, ThreadedStore
    from ratekeeper.stores.compare_and_set.store import CompareAndSetStore
    from ratekeeper.stores.memcached import MemcachedStore
    from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
    from ratekeeper.stores.postgres.store import PostgresStore
    from ratekeeper.stores.protocol import AsyncStore, Store
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.store import RedisStore
    from ratekeeper.stores.shared import SharedStore
    from ratekeeper.stores.sqlite import SQLiteStore

__all__ = [
    "AsyncCompareAndSetStore",
    "AsyncPostgresStore",
    "AsyncRedisStore",
    "CompareAndSetStore",
    "MemcachedStore",
    "MemoryStore",
    "PostgresStore",
    "RedisStore",
    "SQLiteStore",
    "SharedStore",
    "ThreadedStore",
]

POSTGRES = ("postgresql", "postgres")
REMOTE = ("redis", "rediss", "unix", "redis+sentinel", "redis+cluster", *POSTGRES)
# Stores on compare_and_set: the module, the class, and what else it needs.
BACKENDS = {
    "sqlite": ("ratekeeper.stores.sqlite", "SQLiteStore", "sqlite3, which this Python was built without"),
    "memcached": ("ratekeeper.stores.memcached", "MemcachedStore", "pip install 'ratekeeper[memcached]'"),
}
SCHEMES = ("memory", "shm", *REMOTE, *BACKENDS)


def __getattr__(name: str) -> object:
    """Load the other stores on first use: they need hiredis, or the C core."""
    if name == "CompareAndSetStore":
        from ratekeeper.stores.compare_and_set.store import CompareAndSetStore

        return CompareAndSetStore
    if name in ("AsyncCompareAndSetStore", "ThreadedStore"):
        from ratekeeper.stores.compare_and_set import aio_store

        return getattr(aio_store, name)
    for module, store, _ in BACKENDS.values():
        if name == store:
            from importlib import import_module

            return getattr(import_module(module), name)
    if name == "AsyncPostgresStore":
        from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore

        return AsyncPostgresStore
    if name == "PostgresStore":
        from ratekeeper.stores.postgres.store import PostgresStore

        return PostgresStore
    if name == "AsyncRedisStore":
        from ratekeeper.stores.redis.aio_store import AsyncRedisStore

        return AsyncRedisStore
    if name == "RedisStore":
        from ratekeeper.stores.redis.store import RedisStore

        return RedisStore
    if name == "SharedStore":
        from ratekeeper.stores.shared import SharedStore

        return SharedStore
    raise AttributeError(f"module 'ratekeeper.stores' has no attribute {name!r}")


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    max_keys: int | None = None,
    asynchronous: bool = False,
    **options: Any,
) -> Store:
    """The store of a URL such as ``memory://`` or ``redis://localhost:6379/0``; for a loop if ``asynchronous``.

    ``options`` are for stores elsewhere, which can fail (see RedisStore); one in this process needs none of them.
    """
    if not isinstance(url, str):
        raise InvalidStore(f"store: expected a URL such as 'redis://localhost:6379/0', got {type(url).__name__}.")
    scheme, separator, rest = url.partition("://")
    if clock is not None and not hasattr(clock, "nanos"):
        raise InvalidStore(f"clock: expected one such as ratekeeper.testing.FakeClock(), got {shown(clock)}.")
    if separator and scheme in REMOTE:
        return open_remote(url, clock, max_keys, asynchronous, options)
    if separator and scheme in BACKENDS:
        return open_backend(url, clock, max_keys, asynchronous, options)
    if not separator or scheme not in SCHEMES:
        raise InvalidStore(
            f"store: expected a URL (memory://, shm://NAME, redis://HOST:PORT/0 or another of redis), "
            f"got {shown_url(url, SCHEMES)}.{suggested(url)}"
        )
    if "@" in rest or "%40" in rest:
        raise InvalidStore(f"store {scheme}://: expected no user and no password, as it is on this host, got an '@'.")
    place, _, query = rest.partition("?")
    if scheme == "shm":
        return open_shared(url, place, query, clock, max_keys)
    if place.strip("/"):
        raise InvalidStore(f"store: expected nothing between 'memory://' and '?', got {shown_part(url, place)}.")
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name != "max_keys" or not (value.isascii() and value.isdecimal()):
            raise InvalidStore(f"store memory://: expected max_keys=NUMBER after '?', got {shown_part(url, pair)}.")
        max_keys = int(value) if max_keys is None else max_keys
    return MemoryStore(clock=clock, max_keys=MAX_KEYS if max_keys is None else max_keys)


def suggested(url: str) -> str:
    """`` Did you mean 'redis://localhost'?`` for ``redis:/localhost``, or the nearest scheme, or nothing."""
    scheme, _, rest = url.partition(":")
    if "/" in scheme:  # redis//localhost
        scheme, _, rest = url.partition("/")
    if scheme in SCHEMES and not rest.startswith("//"):
        is_place = shown_url(url, ()) is not HIDDEN
        return f" Did you mean {f'{scheme}://' + (rest.lstrip('/') if is_place else '...')!r}?"
    port = rest.partition("/")[0]
    if port.isdecimal() and "@" not in url:  # localhost:6379
        return f" Did you mean {'redis://' + url!r}?"
    return did_you_mean(f"{scheme}://", [f"{name}://" for name in SCHEMES]) if scheme else ""


def open_shared(url: str, place: str, query: str, clock: Clock | None, max_keys: int | None) -> Store:
    mode = 0o600
    numbers: dict[str, int] = {}
    for pair in filter(None, query.split("&")):
        name, _, value = pair.partition("=")
        if name == "mode" and len(value) == 3 and not value.strip("01234567"):
            mode = int(value, 8)
        elif name == "max_keys" and value.isascii() and value.isdecimal():
            max_keys = int(value) if max_keys is None else max_keys
        elif name in ("owner", "max_bytes", "table_bytes") and value.isascii() and value.isdecimal():
            numbers[name] = int(value)
        else:
            raise InvalidStore(
                f"store shm://: expected max_keys=NUMBER, max_bytes=NUMBER, table_bytes=NUMBER, mode=660 or "
                f"owner=NUMBER after '?', got {shown_part(url, pair)}."
            )
    try:
        from ratekeeper.stores.shared import SharedStore
    except ImportError as error:
        raise InvalidStore(f"store 'shm://': expected a system with shared memory files, got {error}.") from error
    return SharedStore(place, clock=clock, max_keys=max_keys, mode=mode, **numbers)


def open_remote(
    url: str, clock: Clock | None, max_keys: int | None, asynchronous: bool, options: dict[str, Any]
) -> Store:
    scheme = url.partition("://")[0]
    if max_keys is not None:
        raise InvalidStore(f"store {scheme}://: expected no max_keys, as keys there expire by themselves.")
    if scheme in POSTGRES:
        return open_postgres(url, clock, asynchronous, options)
    try:
        if asynchronous:
            from ratekeeper.stores.redis.aio_store import AsyncRedisStore

            store: AsyncStore = AsyncRedisStore(url, clock=clock, **options)
            return store  # type: ignore[return-value]  # for event loops: its answers are awaited
        from ratekeeper.stores.redis.store import RedisStore

        return RedisStore(url, clock=clock, **options)
    except ImportError as error:
        advice = "Run: pip install 'ratekeeper[redis]'"
        raise InvalidStore(f"store {scheme}://: expected hiredis to be installed, got {error}. {advice}") from error


def open_backend(
    url: str, clock: Clock | None, max_keys: int | None, asynchronous: bool, options: dict[str, Any]
) -> Store:
    from importlib import import_module

    scheme = url.partition("://")[0]
    module, name, needed = BACKENDS[scheme]
    if max_keys is not None:
        raise InvalidStore(f"store {scheme}://: expected no max_keys, as keys there expire by themselves.")
    try:
        store: CompareAndSetStore = getattr(import_module(module), name)(url, clock=clock, **options)
    except ImportError as error:
        raise InvalidStore(f"store {scheme}://: expected its client to be installed, got {error}. {needed}") from error
    if not asynchronous:
        return store
    from ratekeeper.stores.compare_and_set.aio_store import ThreadedStore

    threaded: AsyncStore = ThreadedStore(store)
    return threaded  # type: ignore[return-value]  # for event loops: its answers are awaited


def open_postgres(url: str, clock: Clock | None, asynchronous: bool, options: dict[str, Any]) -> Store:
    try:
        if asynchronous:
            from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore

            store: AsyncStore = AsyncPostgresStore(url, clock=clock, **options)
            return store  # type: ignore[return-value]  # for event loops: its answers are awaited
        from ratekeeper.stores.postgres.store import PostgresStore

        return PostgresStore(url, clock=clock, **options)
    except ImportError as error:
        advice = "Run: pip install 'ratekeeper[postgres]'"
        raise InvalidStore(f"store postgresql://: expected psycopg to be installed, got {error}. {advice}") from error

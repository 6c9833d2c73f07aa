"""Storages by URI, in the words of ``limits``: each has one of our stores."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import quote, urlsplit

from ratekeeper.check import Check
from ratekeeper.clock import MonotonicClock
from ratekeeper.compat.limits.errors import ConfigurationError, StorageError
from ratekeeper.compat.limits.items import GRANULARITIES
from ratekeeper.errors import InvalidInput, InvalidStore, StoreUnavailable
from ratekeeper.limit import Limit
from ratekeeper.stores import open_store

__all__ = [
    "MemcachedStorage",
    "MemoryStorage",
    "RedisClusterStorage",
    "RedisSentinelStorage",
    "RedisStorage",
    "SQLiteStorage",
    "SharedMemoryStorage",
    "Storage",
    "storage_from_string",
]

SPACE = "limits"
STORE_OPTIONS = ("deadline", "prefix", "secret")  # of stores that are not in this process
ALGORITHMS = ("first_use_window", "sliding_log", "sliding_window")  # of the strategies
PROBE = Limit.parse("1/second")


class TimeOfDay(MonotonicClock):
    """The time of day, as ``limits`` uses it, so that tests which freeze ``time.time`` freeze these limits too."""

    __slots__ = ()

    @staticmethod
    def nanos() -> int:
        """Nanoseconds since 1970."""
        return round(time.time() * 1_000_000) * 1000

    wall_nanos = nanos


class Storage:
    """Where limits are counted: ``storage_from_string`` makes it."""

    schemes: tuple[str, ...] = ()
    is_remote = True

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        """``uri`` as in ``limits``; errors are raised as StorageError if ``wrap_exceptions`` says so.

        ``options`` are the deadline, prefix and secret of our stores.
        """
        if uri is None:
            raise ConfigurationError(f"{type(self).__name__}: expected a URI such as 'redis://localhost:6379'.")
        self.uri = uri
        self.wrap_exceptions = wrap_exceptions
        prefix = options.pop("key_prefix", None)
        if prefix is not None:
            options.setdefault("prefix", prefix)
        unknown = sorted(set(options) - set(STORE_OPTIONS if self.is_remote else ()))
        if unknown:
            raise ConfigurationError(
                f"{type(self).__name__}: expected {', '.join(STORE_OPTIONS) if self.is_remote else 'no'} options, "
                f"got {unknown[0]!r}."
            )
        try:
            self.store: Any = open_store(self.store_url(uri), clock=None if self.is_remote else CLOCK, **options)
        except InvalidStore as error:
            raise ConfigurationError(str(error)) from None

    def store_url(self, uri: str) -> str:
        """The URI as our URL."""
        return uri

    @property
    def storage(self) -> str:
        """What flask-limiter's commands show: no hosts and no passwords."""
        return f"{urlsplit(self.uri).scheme}://"

    @property
    def base_exceptions(self) -> type[Exception]:
        """What is raised if the storage gives no answer."""
        return StoreUnavailable

    def ask(self, operation: str, key: str, limit: Limit, cost: int = 1) -> Any:
        """The decision of our store about one key."""
        try:
            answer = getattr(self.store, operation)((Check(SPACE, key, limit, cost),))
        except StoreUnavailable as error:
            if self.wrap_exceptions:
                raise StorageError(error) from error
            raise
        return None if answer is None else answer[0]

    def check(self) -> bool:
        """Whether the storage answers."""
        try:
            self.store.peek((Check(SPACE, "check", PROBE, 1),))
        except StoreUnavailable:
            return False
        return True

    def reset(self) -> int | None:
        """Forget all keys: only in memory."""
        raise NotImplementedError(f"{type(self).__name__}: expected a storage in memory to forget all keys of.")

    def clear(self, key: str) -> None:
        """Forget a key that ``RateLimitItem.key_for`` made, under every strategy."""
        *_, amount, multiples, unit = ["", "", *key.split("/")]
        if unit not in GRANULARITIES or not amount.isdecimal() or not multiples.isdecimal():
            raise ConfigurationError(f"clear: expected a key that RateLimitItem.key_for made, got {key!r}.")
        item = GRANULARITIES[unit](int(amount), int(multiples))
        for algorithm in ALGORITHMS if item.amount else ():
            self.ask("reset", key, to_limit(item.amount, item.get_expiry(), algorithm))


class MemoryStorage(Storage):
    """In this process."""

    schemes = ("memory",)
    is_remote = False

    def __init__(self, uri: str | None = None, wrap_exceptions: bool = False, **options: Any) -> None:
        """``uri`` may be left out."""
        super().__init__(uri or "memory://", wrap_exceptions, **options)

    def reset(self) -> int | None:
        """Forget all keys; how many there were."""
        size: int = self.store.size()
        self.store.clear()
        return size


class SharedMemoryStorage(Storage):
    """In the shared memory of the host: ``shm://NAME``.  ``limits`` has no such storage."""

    schemes = ("shm",)
    is_remote = False


class RedisStorage(Storage):
    """On Redis or Valkey."""

    schemes = ("redis", "rediss", "redis+unix", "valkey", "valkeys", "valkey+unix")

    def store_url(self, uri: str) -> str:
        """The URI as our URL: Valkey is asked as Redis is."""
        scheme, _, rest = uri.partition("://")
        ours = {"valkey": "redis", "valkeys": "rediss", "redis+unix": "unix", "valkey+unix": "unix"}.get(scheme, scheme)
        return f"{ours}://{rest}"


class RedisSentinelStorage(Storage):
    """On Redis behind Sentinel."""

    schemes = ("redis+sentinel", "valkey+sentinel")

    def __init__(
        self,
        uri: str,
        service_name: str | None = None,
        wrap_exceptions: bool = False,
        sentinel_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """``service_name`` may be in the URI; ``sentinel_kwargs`` has the username and password of the sentinels."""
        self.service_name = service_name
        credentials = dict(sentinel_kwargs or {})
        given = {f"sentinel_{name}": credentials.pop(name) for name in ("username", "password") if name in credentials}
        if credentials:
            raise ConfigurationError(
                f"RedisSentinelStorage: expected username and password in sentinel_kwargs, got {min(credentials)!r}."
            )
        query = "&".join([f"{name}={quote(str(value), safe='')}" for name, value in given.items()])
        super().__init__(uri + (f"?{query}" if query else ""), wrap_exceptions, **options)

    def store_url(self, uri: str) -> str:
        """The URI as our URL, with the name of the service after the hosts."""
        parts = urlsplit(uri)
        path = parts.path if self.service_name is None else f"/{self.service_name}"
        return f"redis+sentinel://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")


class RedisClusterStorage(Storage):
    """On a cluster of Redis."""

    schemes = ("redis+cluster", "valkey+cluster")

    def store_url(self, uri: str) -> str:
        """The URI as our URL."""
        return "redis+cluster://" + uri.partition("://")[2]


class MemcachedStorage(Storage):
    """On Memcached."""

    schemes = ("memcached",)


class SQLiteStorage(Storage):
    """In a file of SQLite.  ``limits`` has no such storage."""

    schemes = ("sqlite",)


CLOCK = TimeOfDay()
STORAGES: dict[str, type[Storage]] = {
    scheme: storage
    for storage in (
        MemoryStorage,
        SharedMemoryStorage,
        RedisStorage,
        RedisSentinelStorage,
        RedisClusterStorage,
        MemcachedStorage,
        SQLiteStorage,
    )
    for scheme in storage.schemes
}


def storage_from_string(storage_string: str, **options: Any) -> Storage:
    """The storage of a URI such as ``"redis://localhost:6379"``, with ``options`` of its class."""
    scheme = urlsplit(storage_string).scheme
    storage = STORAGES.get(scheme)
    if storage is None:
        raise ConfigurationError(f"unknown storage scheme : {storage_string}")
    return storage(storage_string, **options)


def to_limit(amount: int, seconds: int, algorithm: str) -> Limit:
    """The limit of an item; ConfigurationError if we cannot keep it."""
    try:
        return Limit(amount, f"{seconds} seconds", algorithm=algorithm)  # type: ignore[arg-type]
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from None

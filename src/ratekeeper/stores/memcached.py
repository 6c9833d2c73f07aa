"""State on Memcached: exact limits for a fleet that has Memcached and no Redis.

``gets`` and ``cas`` decide, one record at a time.  The time of day of each host decides, as the server tells none.  A
server that restarts, or evicts keys because its memory is full, forgets who is at their limit.
"""

from __future__ import annotations

from time import time

from pymemcache.client.base import PooledClient
from pymemcache.exceptions import MemcacheError

from ratekeeper.errors import InvalidStore
from ratekeeper.stores.compare_and_set.store import CompareAndSetStore
from ratekeeper.stores.compare_and_set.url import StoreUrl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.stores.compare_and_set.flow import Record

PORT = 11211
LONGEST_RELATIVE = 30 * 86_400  # seconds: Memcached takes a longer time for an instant since 1970


class MemcachedStore(CompareAndSetStore):
    """State on one server of Memcached: ``MemcachedStore("memcached://localhost:11211")``."""

    errors = (OSError, MemcacheError)
    longest_record = 1_000_000  # bytes: the server's default is 1 MiB with the name and some more

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        parsed = StoreUrl(url, options)
        if not parsed.host or parsed.has_user or parsed.path.strip("/"):
            raise InvalidStore(
                "store memcached://: expected a host and a port, as memcached://localhost:11211, and no user, "
                "password or path, got something else."
            )
        self.address = parsed.host, parsed.port or PORT
        super().__init__(f"memcached://{parsed.host}:{self.address[1]}", clock=clock, **parsed.options)
        self.after_fork()

    def after_fork(self) -> None:
        """Open connections of its own."""
        self.client = PooledClient(self.address, timeout=self.deadline, connect_timeout=self.deadline, no_delay=True)

    def get(self, name: str) -> Record:
        """The value of a record and its unique number."""
        value, version = self.client.gets(name)
        return value, version

    def get_all(self, names: Sequence[str]) -> tuple[list[Record], None]:
        """The records of these names, in one round trip."""
        if len(names) == 1:
            return [self.get(names[0])], None
        records = self.client.gets_many(list(names))
        return [records.get(name, (None, None)) for name in names], None

    def compare_and_set(self, name: str, version: bytes | None, value: bytes, seconds: int) -> bool:
        """Write ``value`` if the record still has that number; add it if there was none."""
        expires = seconds if seconds <= LONGEST_RELATIVE else int(time()) + seconds
        if version is None:
            return self.client.add(name, value, expire=expires, noreply=False) is True
        return self.client.cas(name, value, version, expire=expires, noreply=False) is True

    def disconnect(self) -> None:
        """Close the connections."""
        self.client.close()

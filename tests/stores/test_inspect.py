"""Counting and listing the keys of a store, from outside."""

import pytest

from ratekeeper import InvalidStore, Limiter, native
from ratekeeper.stores.inspect import census


def test_keys_of_a_server_are_counted_and_some_are_named(redis_server):
    with Limiter("5/hour", store=redis_server.url + "?prefix=inspected&deadline=10") as limiter:
        for number in range(7):
            limiter.check(f"client {number}")
    found = census(redis_server.url, "inspected", most=3)
    assert (found.keys, len(found.some)) == (7, 3)
    assert all(name.startswith("inspected") and 0 < seconds <= 3601 for name, seconds in found.some)
    assert not any("client" in name for name, _ in found.some)


@pytest.mark.skipif(native.core is None, reason=native.REASON)
def test_tables_of_a_segment_are_counted(name):
    with Limiter("5/hour", store=f"shm://{name}", name="login") as limiter:
        for number in range(7):
            limiter.check(f"client {number}")
        found = census(f"shm://{name}")
    assert (found.keys, found.tables) == (7, (("login", "5/hour", 7),))


def test_memory_of_another_process_cannot_be_seen():
    with pytest.raises(InvalidStore, match="expected redis://, postgresql:// or shm://, got memory://"):
        census("memory://")

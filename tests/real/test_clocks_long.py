"""A million random steps of each store on clocks that go back and forth over edges, without one mismatch."""

import os
import uuid

import pytest

from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import remove
from ratekeeper.testing import FakeClock
from tests.twins.test_clocks import LIMITS, SINGLE, walk, walk_with_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]
STEPS = 20_000 if os.environ.get("RATEKEEPER_REAL_SHORT") else 1_000_000
EACH = 500  # steps on one key


def walk_far(clock, store):
    """Nineteen in twenty beside the pure rules, each with a look after it; the others beside the exact model."""
    seeds = range(2_000, 2_001 + STEPS * 19 // 20 // (EACH * len(LIMITS)))
    walked = sum(walk(clock, store, seed, EACH) for seed in seeds)
    for seed in range(2_000, 2_001 + STEPS // 20 // (EACH * len(SINGLE))):
        for limit in SINGLE:
            walked += walk_with_model(clock, store, limit, seed, EACH)
    assert walked >= STEPS


@pytest.mark.parametrize("kind", ["pure", "native", "shm"])
def test_memory_walks_far(kind):
    clock, name = FakeClock(start=1_000_000.0), f"clocks-{uuid.uuid4().hex}"
    urls = {"native": "memory://", "shm": f"shm://{name}?max_keys=1000"}
    store = MemoryStore(clock=clock) if kind == "pure" else open_store(urls[kind], clock=clock)
    try:
        walk_far(clock, store)
    finally:
        store.close()
        if kind == "shm":
            remove(name)


def test_a_server_walks_far(any_server):
    clock = FakeClock(start=1_000_000.0)
    store = RedisStore(any_server.url, clock=clock, deny_cache=False, prefix="far", deadline=10)
    walk_far(clock, store)
    store.close()

"""A million random steps of each store beside the exact model, without one difference.

RATEKEEPER_STEPS chooses another number of steps.  Every test prints how many steps of each kind it walked.
"""

import asyncio
import os
import uuid
from collections import Counter

import pytest

from ratekeeper.stores import open_store
from ratekeeper.stores.memory import MemoryStore
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.shared import remove
from ratekeeper.testing import FakeClock
from tests.twins.store_walk import LIMITS, walk, walk_keys

pytestmark = [pytest.mark.real, pytest.mark.timeout(7200)]
STEPS = int(os.environ.get("RATEKEEPER_STEPS", 10_000 if os.environ.get("RATEKEEPER_REAL_SHORT") else 1_000_000))
EACH = 500  # steps on one key
KEYS = 40  # that travel to a server together


def test_stores_of_this_machine_walk_far(capsys):
    """Memory, pure and native, and shared memory walk the same steps."""
    clock, name, kinds = FakeClock(start=0.0), f"walk-{uuid.uuid4().hex}", Counter()
    stores = {
        "pure": MemoryStore(clock=clock),
        "native": open_store("memory://", clock=clock),
        "shm": open_store(f"shm://{name}?max_keys=100000", clock=clock),
    }
    try:
        for seed in range(-(-STEPS // (EACH * len(LIMITS)))):
            for limit in LIMITS:
                kinds += walk(clock, stores, limit, seed, EACH)
    finally:
        for store in stores.values():
            store.close()
        remove(name)
    tell(capsys, "memory and shm", kinds)


@pytest.mark.parametrize("cached", [False, True])
def test_a_server_walks_far(any_server, cached, capsys):
    """Half of the steps with the refusal cache, half without it."""

    async def main():
        clock, kinds = FakeClock(start=0.0), Counter()
        options = {"deny_cache": cached, "prefix": f"walk{cached}", "deadline": 60}
        store = AsyncRedisStore(any_server.url, clock=clock, **options)
        for seed, limit in enumerate(LIMITS):
            rounds = -(-STEPS // (2 * KEYS * len(LIMITS)))
            kinds += await walk_keys(clock, {any_server.url: store}, limit, seed, rounds, KEYS)
        await store.close()
        return kinds

    tell(capsys, f"{any_server.url}, cached refusals {cached}", asyncio.run(main()))


def tell(capsys, what, kinds):
    with capsys.disabled():
        print(f"\n{what}: {sum(kinds.values()) - kinds['clock back'] - kinds['look']:,} steps, {dict(kinds)}")

"""A holder that is killed: its lease ends by itself, and not before."""

import subprocess
import sys
import time

import pytest

from ratekeeper import Limiter
from ratekeeper.stores.redis.store import RedisStore
from tests.real.load import Lag

pytestmark = pytest.mark.real

HOLDER = """
import sys, time
from ratekeeper import Limiter
limiter = Limiter("1 concurrent for 2 seconds", store=sys.argv[1], name=sys.argv[2])
asked_at = time.monotonic()
with limiter.reserve("k"):
    print(asked_at, time.monotonic(), flush=True)  # the same clock for all processes
    time.sleep(60)
"""


def test_a_lease_outlives_kill_9_by_its_time_and_no_more(redis_server):
    store = RedisStore(redis_server.url, deadline=10)
    limiter = Limiter("1 concurrent for 2 seconds", store=store, name="killed")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, redis_server.url + "?deadline=10", "killed"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    with Lag() as lag:
        asked_at, held_at = map(float, holder.stdout.readline().split())
        holder.kill()
        holder.wait()
        holder.stdout.close()
        assert not limiter.reserve("k") or time.monotonic() > asked_at + 2
        with limiter.reserve("k", timeout=10):
            free_at = time.monotonic()
    assert asked_at + 2 < free_at < held_at + 4 + lag.worst
    store.close()

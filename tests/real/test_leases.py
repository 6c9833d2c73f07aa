"""A holder that is killed: its lease ends by itself, and not before."""

import subprocess
import sys
import time

import pytest

from ratekeeper import Limiter
from ratekeeper.stores.redis import RedisStore

pytestmark = pytest.mark.real

HOLDER = """
import sys, time
from ratekeeper import Limiter
with Limiter("1 concurrent for 2 seconds", store=sys.argv[1], name=sys.argv[2]).reserve("k"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_lease_outlives_kill_9_by_its_time_and_no_more(redis_server):
    store = RedisStore(redis_server.url, deadline=10)
    limiter = Limiter("1 concurrent for 2 seconds", store=store, name="killed")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, redis_server.url + "?deadline=10", "killed"], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    began = time.monotonic()
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert not limiter.reserve("k")
    with limiter.reserve("k", timeout=10):
        waited = time.monotonic() - began
    assert 1.5 < waited < 4.0
    store.close()

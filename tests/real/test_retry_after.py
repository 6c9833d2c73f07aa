"""Callers that wait exactly as a cached refusal tells them are admitted, however long the ways of the network are."""

import os
import time

import pytest

from ratekeeper import Limiter
from tests.real.faulty_proxy import FaultyProxy
from tests.servers import Server

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
ROUNDS = 25 if SHORT else 300


@pytest.mark.parametrize("late", [0.0, 0.01])
def test_who_waits_as_told_is_admitted(late):
    """9 % of such callers were refused again on the loopback, 49 % with up to 10 ms on each way."""
    server = Server()
    proxy = FaultyProxy(server.port)
    proxy.requests_late = proxy.replies_late = late
    proxy.jitters = True
    limiter = Limiter("10/second burst 1", store=f"{proxy.url}?deadline=5")
    told = again = 0
    try:
        for _ in range(ROUNDS):
            while limiter.check("k"):
                pass
            cached = limiter.check("k")  # without a round trip
            if cached:
                continue
            until = time.monotonic_ns() + round(cached.retry_after * 1e9)
            time.sleep(max(0.0, cached.retry_after - 0.002))
            while time.monotonic_ns() < until:
                pass
            told += 1
            again += not limiter.check("k")
        limiter.close()
    finally:
        proxy.close()
        server.close()
    assert told > ROUNDS // 3
    assert again == 0, f"{again} of {told}"

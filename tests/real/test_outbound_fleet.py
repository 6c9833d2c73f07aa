"""Twenty processes, one budget: no provider of any kind refuses a call, and nearly all of its capacity is used."""

import os
import signal
import time
import uuid

import pytest

from ratekeeper.stores.shared import remove
from tests.real.outbound_fleet import run
from tests.servers import Server

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
COUNT, PERIOD, SECONDS, MARGIN = (160, 8.0, 26.0, 0.4) if SHORT else (300, 60.0, 300.0, None)
NOBODY = {"sliding log": 0, "fixed window": 0, "token bucket": 0}


@pytest.fixture
def server():
    server = Server()
    yield server
    server.process.send_signal(signal.SIGCONT)
    server.close()


def test_on_shared_memory():
    name = f"fleet-{uuid.uuid4().hex}"
    try:
        refused, used, _ = run(f"shm://{name}?max_keys=100", COUNT, PERIOD, SECONDS, MARGIN)
    finally:
        remove(name)
    assert refused == NOBODY
    assert 0.93 <= used <= 1.0


def test_on_redis(server):
    refused, used, _ = run(server.url, COUNT, PERIOD, SECONDS, MARGIN)
    assert refused == NOBODY
    assert 0.93 <= used <= 1.0


def test_a_server_that_stops_and_one_that_is_killed_overspend_nothing(server):
    def disturb():
        time.sleep(PERIOD / 2)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(3)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(2)
        server.kill()
        time.sleep(0.5)
        server.start()

    refused, _, calls = run(server.url, COUNT, PERIOD, SECONDS, MARGIN, disturb)
    assert refused == NOBODY
    assert calls >= COUNT  # it went on after the restart, one period later

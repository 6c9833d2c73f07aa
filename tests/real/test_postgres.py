"""Postgres that is killed, restarted, silent or slow, under load: never more than the stated bound is admitted."""

import os
import threading
import time

import pytest

from ratekeeper import Limiter
from ratekeeper.stores.postgres.migrate import migrate
from tests.real.faulty_proxy import FaultyProxy
from tests.servers import PostgresServer

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
LIMIT = 200  # per day: none recovers while a test runs


@pytest.fixture
def server():
    server = PostgresServer(synchronous_commit="on")
    migrate(server.url, logged=True)  # counts survive the kill, so that every admission can be compared with them
    yield server
    server.close()


def load(url, seconds, meanwhile, threads=4, **options):
    """Checks from several threads and two stores, while ``meanwhile`` disturbs the server; all decisions."""
    limiters = [Limiter(f"{LIMIT}/day", store=url, name="real", **options) for _ in range(2)]
    decisions, until, slowest = [], time.monotonic() + seconds, [0.0]

    def run(limiter):
        while time.monotonic() < until:
            began = time.monotonic()
            decisions.append(limiter.check("k"))
            slowest[0] = max(slowest[0], time.monotonic() - began)
            time.sleep(0.005)

    workers = [threading.Thread(target=run, args=(limiters[number % 2],)) for number in range(threads)]
    for worker in workers:
        worker.start()
    meanwhile()
    for worker in workers:
        worker.join()
    left = None
    for _ in range(200):  # until the server is asked again, and was charged for what the fallbacks admitted
        peeked = [limiter.peek("k") for limiter in limiters]
        if not any(decision.reason for decision in peeked) and not any(each.store.fallback.owing for each in limiters):
            left = limiters[0].peek("k").remaining
            break
        time.sleep(0.05)
    for limiter in limiters:
        limiter.close()
    return decisions, left, slowest[0]


def test_a_server_that_is_killed_and_restarted_admits_no_more_than_the_bound(server):
    def disturb():
        for _ in range(1 if SHORT else 4):
            time.sleep(0.7)
            server.kill()
            time.sleep(0.7)
            server.start()

    decisions, left, _ = load(server.url, 4 if SHORT else 10, disturb, deadline=0.25)
    by_server = sum(bool(decision) for decision in decisions if not decision.reason)
    by_fallback = sum(bool(decision) for decision in decisions if decision.reason)
    assert any(decision.reason for decision in decisions)
    assert left is not None, "the store did not come back"
    # The server itself never admits more than its limit.  Each of the two stores admits half of it at most while the
    # server is away.
    assert by_server <= LIMIT
    assert by_fallback <= LIMIT
    assert left <= max(0, LIMIT - by_server)


def test_lost_replies_are_never_counted_twice(server):
    proxy = FaultyProxy(server.port)
    url = server.url.replace(str(server.port), str(proxy.port)) + "?sslmode=disable&gssencmode=disable"

    def disturb():
        for _ in range(2 if SHORT else 10):
            time.sleep(0.3)
            proxy.lose += 1

    decisions, left, _ = load(url, 2 if SHORT else 8, disturb, deadline=0.25, on_store_error="deny")
    admitted = sum(bool(decision) for decision in decisions)
    assert proxy.lost >= 1
    assert left is not None
    # A lost reply may have been counted, once for each of the checks that shared its statement: at most 4 threads wait.
    assert 0 <= (LIMIT - admitted) - left <= 4 * proxy.lost
    proxy.close()


def test_a_slow_server_costs_one_deadline_and_then_nothing(server):
    proxy = FaultyProxy(server.port)
    url = server.url.replace(str(server.port), str(proxy.port)) + "?sslmode=disable&gssencmode=disable"
    limiter = Limiter(f"{LIMIT}/day", store=url, name="slow", deadline=0.2)
    assert not limiter.check("k").reason
    proxy.replies_late = 2.0
    began = time.monotonic()
    assert "gave no answer in 200 ms" in limiter.check("k").reason
    assert 0.2 <= time.monotonic() - began < 1.5
    began = time.monotonic()
    for _ in range(50):
        assert limiter.check("k").reason
    assert time.monotonic() - began < 1.0  # nobody waits while the breaker is open
    proxy.replies_late = 0.0
    until = time.monotonic() + 20
    while limiter.check("other").reason:
        assert time.monotonic() < until
        time.sleep(0.05)
    limiter.close()
    proxy.close()

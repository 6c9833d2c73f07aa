"""A Postgres server that comes and goes: the breaker, the fallback, and what is charged later."""

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratekeeper import Limiter
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.postgres.store import PostgresStore
from tests.stores.postgres.faults import LIMIT, close_waiting, locked, plan


def test_a_lost_connection_opens_the_breaker_and_a_probe_closes_it(postgres_server, caplog):
    store = PostgresStore(postgres_server.url, deadline=20)
    limiter = Limiter(LIMIT, store=store, name="lost")
    limiter.reset("k")
    limiter.check("k")
    with locked(postgres_server, "k", store, "lost"), ThreadPoolExecutor(1) as thread:
        asked = thread.submit(limiter.check, "k")
        while not close_waiting(postgres_server):  # the statement waits for the row
            assert not asked.done()
        decision = asked.result()  # nobody knows whether it was charged
    assert decision.reason.startswith("local: ")
    assert "lost the connection" in caplog.text or "terminating connection" in caplog.text
    assert "postgres@" not in caplog.text
    server = store.server
    server.breaker.probe_at = 0.0
    assert server.away()  # starts a probe
    with server.lock:
        attempt = server.attempt
    if attempt is not None:
        assert attempt.wait(30)
    assert not server.away()
    assert limiter.check("k").reason == ""
    limiter.close()


def test_a_server_that_is_away_is_answered_by_the_fallback_and_charged_later(postgres_server):
    store = PostgresStore(postgres_server.url, deadline=20)
    limiter = Limiter(LIMIT, store=store, name="owed")
    limiter.reset("k")
    store.server.drop(store.server.connection)
    store.server.trip("a test says so")
    store.server.breaker.probe_at = float("inf")
    decision = limiter.check("k")
    assert decision.reason == "local: a test says so"
    assert decision.limit == 2  # half of the limit in this process
    store.server.breaker.probe_at = 0.0
    store.server.away()
    with store.server.lock:
        attempt = store.server.attempt
    assert attempt is None or attempt.wait(30)
    assert limiter.peek("k").remaining == 4  # what the fallback admitted was charged before the next decision
    limiter.close()


@pytest.mark.parametrize(("mode", "allowed"), [("allow", True), ("deny", False)])
def test_other_modes_are_those_of_every_store(mode, allowed):
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres:hunter2@127.0.0.1:{bound.getsockname()[1]}/none"
        limiter = Limiter(LIMIT, store=url, on_store_error=mode)
        decision = limiter.check("k")
        assert decision.allowed is allowed
        assert decision.reason.startswith(f"{mode}: could not be reached")
        assert "hunter2" not in decision.reason
        limiter.close()


def test_a_server_that_accepts_and_says_nothing_costs_the_first_deadline_once():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        store = PostgresStore(
            f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none", deadline=0.05, first_deadline=0.2, fallback=False
        )
        with pytest.raises(StoreUnavailable, match="could not be reached within 200 ms"):
            store.check(plan("k"))
        with pytest.raises(StoreUnavailable):
            store.check(plan("k"))
        assert store.away()
        store.close()

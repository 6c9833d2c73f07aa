"""One connection to Postgres: deadlines, closed connections, forks; nothing is charged twice."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratekeeper.check import Check
from ratekeeper.errors import StoreUnavailable
from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.store import PostgresStore
from tests.stores.postgres.faults import close_sessions, locked, plan


def test_a_row_that_another_session_holds_costs_one_deadline_and_nothing_is_charged(postgres_server):
    patient = PostgresStore(postgres_server.url, deadline=20, fallback=False)
    patient.reset(plan("held"))
    assert patient.check(plan("held", 2))[0].remaining == 3
    store = PostgresStore(postgres_server.url, deadline=0.3, first_deadline=20, fallback=False)
    store.peek(plan("held"))
    with locked(postgres_server, "held", patient):
        with pytest.raises(StoreUnavailable) as caught:
            store.check(plan("held"))
        assert "lock timeout" in caught.value.why or "gave no answer in 300 ms" in caught.value.why
    assert patient.peek(plan("held"))[0].remaining == 3
    store.close()
    patient.close()


def test_a_connection_that_was_closed_while_idle_is_replaced_without_a_failure(postgres_server):
    store = PostgresStore(postgres_server.url, deadline=20, fallback=False)
    store.reset(plan("idle"))
    store.check(plan("idle"))
    assert close_sessions(postgres_server) >= 1
    assert store.check(plan("idle"))[0].remaining == 3
    store.close()


def test_a_forked_child_has_a_connection_of_its_own(postgres_server):
    store = PostgresStore(postgres_server.url, deadline=20, fallback=False)
    store.reset(plan("fork"))
    assert store.check(plan("fork"))[0].remaining == 4
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if store.check(plan("fork"))[0].remaining == 3 else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.check(plan("fork"))[0].remaining == 2  # the parent's connection still works
    store.close()


def test_many_threads_on_few_keys_never_wait_in_a_circle(postgres_server):
    """Plans of several keys in every order: rows are locked in one order, so nobody deadlocks."""
    limits = [Limit.parse("100000/hour"), Limit.parse("100000/hour fixed_window")]
    stores = [PostgresStore(postgres_server.url, deadline=60, fallback=False) for _ in range(4)]
    ready = threading.Barrier(len(stores))

    def run(number):
        ready.wait()
        for step in range(25):
            keys = [f"c{(number * 7 + step * 3 + place) % 5}" for place in range(4)]
            if (number + step) % 2:
                keys.reverse()
            checks = tuple([Check("circle", key, limits[place % 2], 1) for place, key in enumerate(keys)])
            assert all(stores[number].check(checks))

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(run, range(len(stores))))
    for store in stores:
        store.close()

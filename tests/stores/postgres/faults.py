"""What the tests of failures share."""

import psycopg

from ratekeeper.check import Check
from ratekeeper.limit import Limit

LIMIT = Limit.parse("5/hour")


def plan(key, cost=1):
    return (Check("faults", key, LIMIT, cost),)


def close_sessions(server):
    """End every connection of a store, as a restart does."""
    others = "application_name = 'ratekeeper' AND pid <> pg_backend_pid()"
    return server.run(f"SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE {others}")[0][0]


def close_waiting(server):
    """End the connections whose statement waits for a lock; how many."""
    others = "application_name = 'ratekeeper' AND wait_event_type = 'Lock'"
    return server.run(f"SELECT count(pg_terminate_backend(pid, 5000)) FROM pg_stat_activity WHERE {others}")[0][0]


def locked(server, key, store, space="faults"):
    """A connection that holds the row of ``key``, as a statement that hangs would."""
    name = store.translator.layout(space, LIMIT).row_names(key)[0]
    holder = psycopg.connect(server.url)
    assert holder.execute(f"SELECT 1 FROM ratekeeper.state WHERE key = '\\x{name}' FOR UPDATE").fetchall()
    return holder

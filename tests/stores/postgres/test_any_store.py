"""What both Postgres stores share: bounded lease requests, and charges of what the fallback admitted."""

from ratekeeper.check import LeaseCheck
from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.any_store import MOST_LEASES_AT_ONCE
from ratekeeper.stores.postgres.store import PostgresStore


def test_many_leases_are_renewed_in_statements_of_a_bounded_size(postgres_server):
    store = PostgresStore(postgres_server.url, deadline=20, fallback=False, secret="many leases")
    limit = Limit.parse("1000 concurrent")
    plan = tuple([LeaseCheck("s", f"k{number % 3}", limit, 1, None, number + 1, 10**7) for number in range(250)])
    requests = store.lease_requests("renew", plan)
    assert [len(request.plan) for request in requests] == [MOST_LEASES_AT_ONCE] * 2 + [50]
    assert store.renew(plan) == (True,) * 250
    assert len(store.end_leases(tuple([check.having(0, 0) for check in plan]))) == 250
    (state,) = store.states(plan[:1])[1]
    assert state[0] == ()
    store.close()


def test_a_store_releases_what_it_knows_of_a_limit():
    store = PostgresStore("postgresql://127.0.0.1:1/none")
    limit = Limit.parse("5/hour")
    layout = store.translator.layout("s", limit)
    assert store.release("s", limit)
    assert store.translator.layout("s", limit) is not layout
    store.close()

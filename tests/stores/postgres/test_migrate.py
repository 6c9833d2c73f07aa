"""The schema of a Postgres store: made, made again, and used with the least rights."""

import pytest

from ratekeeper import Limiter
from ratekeeper.check import LeaseCheck
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.migrate import migrate, script_for, statements
from ratekeeper.stores.postgres.store import PostgresStore


def persistence(server, schema):
    return server.run(f"SELECT relpersistence FROM pg_class WHERE oid = '{schema}.state'::regclass")[0][0]


def test_a_migration_may_run_again_and_keeps_what_is_counted(postgres_server):
    url = f"{postgres_server.url}?schema=again&deadline=20"
    migrate(url)
    limiter = Limiter("2/hour", store=url)
    assert limiter.check("k")
    migrate(url)
    assert limiter.check("k")
    assert not limiter.check("k")
    limiter.close()
    assert persistence(postgres_server, "again") == "u"


def test_a_logged_table_is_chosen(postgres_server):
    migrate(f"{postgres_server.url}?schema=logged", logged=True)
    assert persistence(postgres_server, "logged") == "p"


def test_a_database_without_the_schema_says_what_to_run(postgres_server):
    store = PostgresStore(f"{postgres_server.url}?schema=nowhere", deadline=20, fallback=False)
    with pytest.raises(StoreUnavailable, match=r"has no schema nowhere of this version\. Run: ratekeeper migrate URL"):
        store.peek(LIMITED)
    store.close()


LIMITED = (LeaseCheck("s", "k", Limit.parse("2 concurrent"), 1, None, 7, 1_000_000),)


def test_an_application_needs_no_more_than_the_rights_that_are_granted(postgres_server):
    postgres_server.run("CREATE ROLE web LOGIN")
    try:
        migrate(f"{postgres_server.url}?schema=rights", role="web")
        url = postgres_server.url.replace("postgres@", "web@") + "?schema=rights"
        store = PostgresStore(url, deadline=20, fallback=False)
        limit = Limit.parse("5/hour")
        limiter = Limiter(limit, store=store, name="rights")
        assert all(limiter.check(f"k{number}") for number in range(60))  # new keys, so expired rows are swept too
        with limiter.reserve("k", cost=2) as reservation:
            reservation.settle(3)
        limiter.refund("k")
        limiter.reset("k")
        assert limiter.peek("k").remaining == 5
        assert all(store.check(LIMITED))
        assert all(store.renew(LIMITED))
        store.end_leases(LIMITED)
        for statement in ("TRUNCATE rights.state", "DROP TABLE rights.state", "CREATE TABLE rights.other ()"):
            with pytest.raises(Exception, match=r"permission denied|must be owner"):
                postgres_server.run(statement, user="web")
        store.close()
    finally:
        postgres_server.run("DROP SCHEMA rights CASCADE; DROP ROLE web")


def test_a_role_without_rights_is_told(postgres_server):
    postgres_server.run("CREATE ROLE nobody_knows LOGIN")
    try:
        store = PostgresStore(postgres_server.url.replace("postgres@", "nobody_knows@"), deadline=20, fallback=False)
        with pytest.raises(StoreUnavailable, match="permission denied for schema ratekeeper"):
            store.peek(LIMITED)
        store.close()
    finally:
        postgres_server.run("DROP ROLE nobody_knows")


def test_the_script_names_the_schema_everywhere():
    script = statements("limits")
    assert "CREATE SCHEMA IF NOT EXISTS limits;" in script
    assert "ratekeeper." not in script
    assert "CREATE UNLOGGED TABLE IF NOT EXISTS limits.state" in script
    assert 'TO "we""b";' in script_for("postgresql://h/d", role='we"b')


def test_a_migration_of_another_store_is_refused():
    with pytest.raises(InvalidStore, match=r"migrate: expected postgresql://USER@HOST/DATABASE, got 'redis://h'\."):
        script_for("redis://h")

"""Tables and prepared plans on Postgres: cached refusals, unlimited rows, repeated keys."""

import asyncio

import pytest

from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
from ratekeeper.stores.postgres.store import PostgresStore

LIMIT, UNLIMITED = Limit.parse("2/hour"), Limit.parse("unlimited")


@pytest.fixture
def store(postgres_server, request):
    store = PostgresStore(postgres_server.url, deadline=20, fallback=False, secret=request.node.name[:60])
    yield store
    store.close()


def test_a_refusal_is_answered_here_until_it_may_be_over(store):
    table = store.table("s", LIMIT)
    assert table.check_now("k") is None
    assert [bool(table.check("k")) for _ in range(3)] == [True, True, False]
    store.server.ask = None  # the server is not asked again
    assert not table.check("k")
    assert not table.check_now("k", 2)


def test_unlimited_checks_need_no_server():
    store = PostgresStore("postgresql://127.0.0.1:1/none", fallback=False)
    assert store.table("s", UNLIMITED).check_now("k")
    allowed, decisions = store.prepare((("s", UNLIMITED, 1, None),)).check(("k",))
    assert allowed
    assert decisions[0].allowed
    store.close()


def test_a_plan_counts_a_repeated_key_twice_and_passes_unlimited_rows(store):
    plan = store.prepare((("s", LIMIT, 1, None), ("s", LIMIT, 1, None), ("s", UNLIMITED, 1, None)))
    assert plan.check(("k", "k", "k"))[0]
    allowed, decisions = plan.check(("k", "k", "k"))
    assert not allowed
    assert [decision.allowed for decision in decisions] == [False, False, True]


def test_a_plan_wants_a_key_for_each_row(store):
    with pytest.raises(TypeError, match="expected a tuple of 1 keys"):
        store.prepare((("s", LIMIT, 1, None),)).check(())


def test_an_event_loop_is_answered_at_once_where_that_can_be(postgres_server):
    async def main():
        store = AsyncPostgresStore(postgres_server.url, deadline=20, fallback=False, secret="at once")
        plan = store.prepare((("s", LIMIT, 2, None),))
        assert (await plan.check(("k",)))[0]
        assert not (await plan.check(("k",)))[0]
        assert plan.check(("k",))[0] is False  # no awaitable: the refusal is cached
        await store.close()

    asyncio.run(main())

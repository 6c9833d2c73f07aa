"""Postgres for event loops: tasks share statements, and survive lost connections."""

import asyncio

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
from tests.stores.postgres.faults import close_sessions, plan


def test_tasks_share_statements_and_a_cancelled_one_disturbs_nobody(postgres_server):
    async def main():
        store = AsyncPostgresStore(postgres_server.url, deadline=20, fallback=False)
        await store.reset(plan("cancel"))
        tasks = [asyncio.ensure_future(store.check(plan("cancel"))) for _ in range(8)]
        for _ in range(3):
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[5].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        admitted = sum(bool(answer[0]) for answer in answers if isinstance(answer, tuple))
        # A check that was sent before it was cancelled is charged; one that was queued is not.
        left = (await store.peek(plan("cancel")))[0].remaining
        assert left == 0
        assert 3 <= admitted <= 5
        await store.close()

    asyncio.run(main())


def test_an_event_loop_survives_a_lost_connection(postgres_server):
    async def main():
        store = AsyncPostgresStore(postgres_server.url, deadline=20, fallback=False)
        await store.reset(plan("loop"))
        await asyncio.to_thread(close_sessions, postgres_server)
        answers = []
        while len(answers) < 3:
            try:
                answers.append((await store.check(plan("loop")))[0].remaining)
            except StoreUnavailable:
                store.server().breaker.probe_at = 0.0
                await asyncio.sleep(0)
        assert answers == [4, 3, 2]
        await store.close()

    asyncio.run(main())

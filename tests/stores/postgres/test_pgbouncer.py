"""The store behind pgbouncer in transaction mode: no session state, no statement counted twice."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psycopg
import pytest

from ratekeeper.check import Check
from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
from ratekeeper.stores.postgres.store import PostgresStore
from tests.servers import END_WITH_PARENT, free_port

LIMIT = Limit.parse("40/hour")
PATH = "/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/bin"


@pytest.fixture(scope="module")
def pooled(postgres_server):
    binary = shutil.which("pgbouncer", path=PATH)
    if binary is None:
        pytest.skip("no pgbouncer here: install the package pgbouncer, or run scripts/ensure-postgres")
    folder, port = tempfile.mkdtemp(prefix="ratekeeper-pgbouncer-"), free_port()
    settings = Path(folder, "pgbouncer.ini")
    settings.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={postgres_server.port} user=postgres pool_size=3\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        "pool_mode = transaction\nmax_client_conn = 100\nserver_round_robin = 1\n"  # another session each time
    )
    user = []
    if os.geteuid() == 0:  # it does not run as root either
        shutil.chown(folder, "postgres", "postgres")
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with_parent = [*END_WITH_PARENT[:-1], *user[1:], "--"] if END_WITH_PARENT else user
    process = subprocess.Popen([*with_parent, binary, str(settings)], stderr=subprocess.PIPE, cwd="/")
    lines = []
    for line in process.stderr:
        lines.append(line)
        if b"process up" in line:
            break
    else:
        pytest.fail(f"pgbouncer ended: {lines}")
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    process.kill()
    process.wait()
    process.stderr.close()
    shutil.rmtree(folder, ignore_errors=True)


def plan(key):
    return (Check("pooled", key, LIMIT, 1),)


def test_clients_that_share_sessions_count_exactly(pooled, postgres_server):
    stores = [PostgresStore(pooled, deadline=20, fallback=False, deny_cache=False) for _ in range(4)]
    stores[0].reset(plan("k"))
    answers = [bool(stores[number % 4].check(plan("k"))[0]) for number in range(60)]
    assert answers == [True] * 40 + [False] * 20
    direct = PostgresStore(postgres_server.url, deadline=20, fallback=False)
    assert direct.peek(plan("k"))[0].remaining == 0
    for store in (*stores, direct):
        store.close()


def test_a_session_that_does_not_know_the_prepared_statement_costs_nothing(pooled):
    store = PostgresStore(pooled, deadline=20, fallback=False)
    store.reset(plan("prepared"))
    store.server.connection.is_prepared = True  # as if the pool's session had prepared it for this client
    with psycopg.connect(pooled, autocommit=True, prepare_threshold=None) as other:
        for _ in range(6):
            other.execute("DEALLOCATE ALL")
    assert [store.check(plan("prepared"))[0].remaining for _ in range(3)] == [39, 38, 37]
    assert not store.server.connection.is_prepared
    store.close()


def test_tasks_count_exactly_through_a_pool(pooled):
    async def main():
        store = AsyncPostgresStore(pooled, deadline=20, fallback=False)
        await store.reset(plan("tasks"))
        answers = await asyncio.gather(*[store.check(plan("tasks")) for _ in range(100)])
        assert sum(bool(decision) for (decision,) in answers) == 40
        await store.close()

    asyncio.run(main())

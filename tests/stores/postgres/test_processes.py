"""Several processes on one Postgres server: exactly the limit is admitted, and expired rows go."""

import pytest

from ratekeeper.check import Check
from ratekeeper.limit import Limit
from ratekeeper.stores.postgres.store import PostgresStore
from tests.stores.processes import Interpreter

SCRIPT = """
from concurrent.futures import ThreadPoolExecutor
from ratekeeper import Limiter
limiter = Limiter({limit!r}, store={url!r}, deadline=60, name="fleet")
with ThreadPoolExecutor(4) as threads:
    decisions = list(threads.map(lambda _: limiter.check("k"), range(40)))
assert not any(decision.reason for decision in decisions), decisions
print(sum(map(bool, decisions)))
limiter.close()
"""


@pytest.mark.full  # it starts four interpreters each time
@pytest.mark.parametrize(
    "limit",
    ["100/hour", "100/hour sliding_window", "100/hour sliding_log", ["100/hour", "110 per 2 hours fixed_window"]],
    ids=str,
)
def test_four_processes_admit_exactly_the_limit(postgres_server, limit):
    interpreters = [Interpreter() for _ in range(4)]
    try:
        script = SCRIPT.format(limit=limit, url=f"{postgres_server.url}?first_deadline=60&secret={len(str(limit))}")
        for interpreter in interpreters:
            interpreter.begin(script)
        assert sum(int(interpreter.end()) for interpreter in interpreters) == 100
    finally:
        for interpreter in interpreters:
            interpreter.close()


def test_expired_rows_are_deleted_by_new_keys(postgres_server):
    postgres_server.run("TRUNCATE ratekeeper.state")
    rows = "SELECT decode(md5(g::text), 'hex'), '{1,2}', 1 FROM generate_series(1, 2000) g"
    postgres_server.run(f"INSERT INTO ratekeeper.state {rows}")
    store = PostgresStore(postgres_server.url, deadline=60, first_deadline=60, fallback=False)
    limit = Limit.parse("5/hour")
    for at in range(0, 2000, 50):  # 50 new keys in one statement are one chance to sweep: single ones are more
        store.check(tuple([Check("swept", f"k{at + number}", limit, 1) for number in range(2)]))
        for number in range(2, 22):
            store.check((Check("swept", f"k{at + number}", limit, 1),))
    left = postgres_server.run("SELECT count(*) FROM ratekeeper.state WHERE expires_at = 1")[0][0]
    assert left < 500
    assert postgres_server.run("SELECT count(*) FROM ratekeeper.state WHERE expires_at > 1") == [(880,)]
    store.close()

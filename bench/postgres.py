"""Claim: what one Postgres server decides, beside a bare ``UPDATE … RETURNING`` of one row on the same socket.

One thread: at least 0.7 of the bare update.  64 tasks of one event loop, which share statements: at least 5 times it.
Beside them: compare-and-swap around the Python rule (a SELECT and an UPDATE), the Postgres bucket of pyrate-limiter,
and our own store on Redis.  Interleaved rounds, the best of each counts; keys are many and never refused.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg

from bench.harness import conditions, table
from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.stores.postgres.migrate import migrate
from tests.servers import PostgresServer, Server

ROUNDS = 8
SECONDS = 0.4
TASKS = 64
KEYS = [f"user:{number}" for number in range(1000)]
LIMIT = "1000000/second"
BARE = "UPDATE bare SET used = used + 1 WHERE key = %s RETURNING used"


def bare_update(dsn: str) -> Callable[[str], object]:
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute("CREATE UNLOGGED TABLE bare (key text PRIMARY KEY, used bigint) WITH (fillfactor = 50)")
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO bare VALUES (%s, 0)", [(key,) for key in KEYS])
    return lambda key: connection.execute(BARE, (key,)).fetchone()


def compare_and_swap(dsn: str) -> Callable[[str], object]:
    """The other way to keep the rule: two round trips, without any contention."""
    connection = psycopg.connect(dsn, autocommit=True)

    def swap(key: str) -> None:
        (used,) = connection.execute("SELECT used FROM bare WHERE key = %s", (key,)).fetchone()  # type: ignore[misc]
        connection.execute("UPDATE bare SET used = %s WHERE key = %s AND used = %s", (used + 1, key, used))

    return swap


def pyrate(dsn: str) -> Callable[[str], object]:
    """One bucket: it has a table for each key."""
    from psycopg_pool import ConnectionPool
    from pyrate_limiter import PostgresBucket, Rate, RateItem

    pool: Any = ConnectionPool(dsn, min_size=1, max_size=2, open=True)
    bucket: Any = PostgresBucket(pool, "bench", [Rate(1_000_000, 1000)])
    return lambda key: bucket.put(RateItem(key, int(time.time() * 1000)))


def per_second(call: Callable[[str], object]) -> float:
    began, many = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        for key in KEYS[many % 1000 : many % 1000 + 20]:
            call(key)
        many += 20
    return many / (time.perf_counter() - began)


async def tasks_per_second(limiter: AsyncLimiter, tasks: int) -> float:
    until, done = time.perf_counter() + SECONDS, [0]

    async def work(number: int) -> None:
        while time.perf_counter() < until:
            decision = await limiter.check(KEYS[(number + done[0] * 7) % 1000])
            assert not decision.reason, decision.reason
            done[0] += 1

    began = time.perf_counter()
    await asyncio.gather(*[work(number * 13) for number in range(tasks)])
    return done[0] / (time.perf_counter() - began)


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ratekeeper-bench-") as folder:
        import os

        os.chmod(folder, 0o777)  # the server may run as another user
        server, redis = (
            PostgresServer(unix_socket_directories=folder, shared_buffers="128MB", autovacuum="on"),
            Server(),
        )
        try:
            run(f"postgresql://postgres@/postgres?host={folder}&port={server.port}", redis)
        finally:
            server.close()
            redis.close()


def run(dsn: str, redis: Server) -> None:
    migrate(dsn)
    url = f"{dsn}&deadline=5s"
    limiter = Limiter(LIMIT, store=url, name="one")
    several = Limiter([LIMIT, "900000000/hour", "9000000000/day"], store=url, name="several")
    on_redis = Limiter(LIMIT, store=f"{redis.url}?deadline=5s", name="one")
    calls: dict[str, Callable[[str], object]] = {
        "bare UPDATE … RETURNING": bare_update(dsn),
        "ratekeeper, one limit": limiter.check,
        "ratekeeper, three limits": several.check,
        "compare-and-swap in Python": compare_and_swap(dsn),
        "pyrate-limiter, PostgresBucket": pyrate(dsn),
        "ratekeeper on Redis": on_redis.check,
    }
    for call in calls.values():
        for key in KEYS:
            call(key)
    best = dict.fromkeys(calls, 0.0)
    best_tasks: dict[str, float] = {}
    loop = asyncio.new_event_loop()
    stores = {"ratekeeper": url, "ratekeeper on Redis": f"{redis.url}?deadline=5s"}
    asynchronous = {name: AsyncLimiter(LIMIT, store=store, name="tasks") for name, store in stores.items()}
    for each in asynchronous.values():
        loop.run_until_complete(tasks_per_second(each, TASKS))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = max(best[name], per_second(call))
        for name, each in asynchronous.items():
            for tasks in (1, TASKS):
                label = f"{name}, {tasks} task{'s' if tasks > 1 else ''}"
                rate = loop.run_until_complete(tasks_per_second(each, tasks))
                best_tasks[label] = max(best_tasks.get(label, 0.0), rate)
    for each in asynchronous.values():
        loop.run_until_complete(each.close())
    loop.close()
    floor = best["bare UPDATE … RETURNING"]
    conditions()
    rows = [(name, f"{rate:,.0f}", f"{rate / floor:.2f}") for name, rate in [*best.items(), *best_tasks.items()]]
    table("Postgres, one connection on a local socket", ("", "decisions/s", "of the bare update"), rows)
    for each in (limiter, several, on_redis):
        each.close()


if __name__ == "__main__":
    main()

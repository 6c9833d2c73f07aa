"""Claim: a check costs at most four bare transactions of SQLite, or two bare compare-and-sets of Memcached.

The floor of SQLite is one immediate transaction that reads a row by its key and writes it.  The floor of Memcached is a
``gets`` and a ``cas`` of the same client.  Both run in turns with ours in one process.  A file has
no other process to wait for, so SQLite is measured in the processor time of this one, which a busy machine changes
little.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.harness import conditions, table
from ratekeeper import AsyncLimiter, Limiter
from ratekeeper.stores.memcached import MemcachedStore

CALLS = 300
ROUNDS = 15
TASKS = 64
LIMIT = "1000000000/hour"


def sqlite_floor(path: Path) -> Callable[[str], object]:
    """One immediate transaction for each call, with the settings of our store."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE floor (name TEXT PRIMARY KEY, value BLOB, version INT) WITHOUT ROWID")

    def swap(name: str) -> None:
        connection.execute("BEGIN IMMEDIATE")
        row = connection.execute("SELECT value, version FROM floor WHERE name = ?", (name,)).fetchone()
        connection.execute(
            "INSERT OR REPLACE INTO floor VALUES (?, ?, ?)", (name, b"12345678", row[1] + 1 if row else 1)
        )
        connection.execute("COMMIT")

    return swap


def memcached_floor(store: MemcachedStore) -> Callable[[str], object]:
    client = store.client

    def swap(name: str) -> None:
        value, version = client.gets(name)
        if value is None:
            client.add(name, b"12345678", noreply=False)
        else:
            client.cas(name, b"12345678", version, noreply=False)

    return swap


@contextmanager
def memcached() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-u", "root"]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
        yield f"memcached://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def timed(call: Callable[[str], object], keys: list[str], clock: Callable[[], float]) -> float:
    began = clock()
    for key in keys:
        call(key)
    return (clock() - began) / len(keys)


async def timed_tasks(limiter: AsyncLimiter, keys: list[str], clock: Callable[[], float]) -> float:
    began = clock()
    for at in range(0, len(keys), TASKS):
        await asyncio.gather(*[limiter.check(key) for key in keys[at : at + TASKS]])
    return (clock() - began) / len(keys)


def measure(
    name: str, floor: Callable[[str], object], url: str, clock: Callable[[], float], rows: list[list[object]]
) -> None:
    limiter = Limiter(LIMIT, store=url, deadline=30)
    refused = Limiter("1/hour", store=url, deadline=30)
    loop = asyncio.new_event_loop()
    tasks = AsyncLimiter(LIMIT, store=url, deadline=30, name="tasks")
    many, one = [f"user:{number}" for number in range(CALLS)], ["user:42"] * CALLS
    contestants: dict[str, Callable[[], float]] = {
        f"{name}: bare compare-and-set": lambda: timed(floor, many, clock),
        f"{name}: a check, {CALLS} keys": lambda: timed(limiter.check, many, clock),
        f"{name}: a check, one key": lambda: timed(limiter.check, one, clock),
        f"{name}: a refusal": lambda: timed(refused.check, one, clock),
        f"{name}: {TASKS} tasks, {CALLS} keys": lambda: loop.run_until_complete(timed_tasks(tasks, many, clock)),
        f"{name}: {TASKS} tasks, one key": lambda: loop.run_until_complete(timed_tasks(tasks, one, clock)),
    }
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(ROUNDS):
        for contestant, run in contestants.items():
            best[contestant] = min(best[contestant], run())
    base = best[f"{name}: bare compare-and-set"]
    rows += [[each, f"{1 / took:,.0f}", f"{took * 1e6:.0f} µs", f"{base / took:.2f}"] for each, took in best.items()]
    loop.run_until_complete(tasks.close())
    loop.close()
    limiter.close()
    refused.close()


def main() -> None:
    conditions()
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        floor = sqlite_floor(Path(folder, "floor.db"))
        measure("SQLite", floor, f"sqlite:///{folder}/limits.db", time.process_time, rows)
    if shutil.which("memcached"):
        with memcached() as url:
            store = MemcachedStore(url, deadline=30)
            measure("Memcached", memcached_floor(store), url, time.perf_counter, rows)
            store.close()
    table("Stores on compare-and-set", ["what", "a second", "each", "times the bare one"], rows)


if __name__ == "__main__":
    main()

"""Claim: what is known is not asked, and what is dead is not waited for.

Keys that are refused: at least 10 times the decisions of the same without the memory of refusals, at most 1 % of the
round trips, and the same number admitted.  A prefetched hot key: at least 5 times.  A server stopped under 64 tasks:
the worst decision within the deadline and 10 ms, then at most 50 µs each, and the store is back within a second.
"""

import asyncio
import os
import signal
import time
from typing import Any

from bench.harness import conditions, table
from ratekeeper import AsyncLimiter
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from tests.servers import Server

SECONDS = 2.0
ROUNDS = 4
TASKS = 64
DEADLINE = 0.05


async def hammer(limiter: AsyncLimiter, keys: list[str], seconds: float = SECONDS) -> tuple[int, int]:
    """Decisions and admissions of 64 tasks."""
    decisions = admitted = 0
    until = time.perf_counter() + seconds

    async def task(number: int) -> None:
        nonlocal decisions, admitted
        turn = number
        while time.perf_counter() < until:
            for _ in range(20):  # what is known never gives the loop away: do it here
                turn += 1
                if (await limiter.check(keys[turn % len(keys)])).allowed:
                    admitted += 1
                decisions += 1
            await asyncio.sleep(0)

    await asyncio.gather(*[task(number) for number in range(TASKS)])
    return decisions, admitted


async def compared(server: Server, title: str, limit: str, keys: list[str], ways: dict[str, dict[str, Any]]) -> None:
    client = server.client()
    rows: list[list[object]] = []
    best: dict[str, float] = {}
    for turn in range(ROUNDS):
        for name, options in ways.items():
            prefetch = options.get("prefetch")
            cache = options.get("deny_cache", True)
            prefix = f"{title[:4]}{name[:6]}{turn}".replace(" ", "_").replace(",", "")
            store = AsyncRedisStore(server.url, deadline=10, deny_cache=cache, prefix=prefix)
            limiter = AsyncLimiter(limit, store=store, prefetch=prefetch)
            await limiter.check("warm")
            client.config_resetstat()
            began = time.process_time()
            decisions, admitted = await hammer(limiter, keys)
            each = (time.process_time() - began) / decisions
            commands = client.info("commandstats")["cmdstat_evalsha"]["calls"]
            await store.close()
            rate = decisions / SECONDS
            if rate > best.get(name, 0):
                best[name] = rate
                rows = [row for row in rows if row[0] != name]
                share = f"{100 * commands / decisions:.2f} %"
                rows.append([name, f"{rate:,.0f}", "", f"{each * 1e6:.2f}", share, f"{admitted:,}"])
    first = best[next(iter(ways))]
    for row in rows:
        row[2] = f"{best[str(row[0])] / first:.1f}"
    table(title, ["", "decisions/s", "ratio", "µs of CPU", "commands a decision", "admitted"], rows)


async def stalled(server: Server) -> None:
    limiter = AsyncLimiter("1000000/second", store=server.url, deadline=DEADLINE)
    took: list[tuple[float, float]] = []
    over = False

    async def task(number: int) -> None:
        while not over:
            began = time.perf_counter()
            await limiter.check(f"key {number}")
            took.append((began, time.perf_counter() - began))
            await asyncio.sleep(0.001)

    for _ in range(20):  # a busy machine misses 50 ms now and then
        if (await limiter.check("k")).reason == "":
            break
        await asyncio.sleep(0.1)
    tasks = [asyncio.ensure_future(task(number)) for number in range(TASKS)]
    await asyncio.sleep(0.5)
    before = max(each for _, each in took)
    stop_at = time.perf_counter()
    server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(0.5)
    during = [each for began, each in took if began >= stop_at - DEADLINE]
    over = True
    await asyncio.gather(*tasks)
    calls = 5_000
    began = time.process_time()
    for _ in range(calls):
        decision = await limiter.check("k")
    each = (time.process_time() - began) / calls
    assert decision.reason.startswith("local: "), decision.reason
    await asyncio.sleep(1.0)
    server.process.send_signal(signal.SIGCONT)
    back = time.perf_counter()
    for _ in range(100_000):
        if (await limiter.check("k")).reason == "":
            break
        await asyncio.sleep(0.001)
    rows = [
        ["worst decision before, ms", f"{before * 1e3:.1f}"],
        [f"worst decision as it stops, ms (deadline {DEADLINE * 1e3:.0f})", f"{max(during) * 1e3:.1f}"],
        ["a decision while it is stopped, µs of CPU", f"{each * 1e6:.1f}"],
        ["back after, ms", f"{(time.perf_counter() - back) * 1e3:.0f}"],
    ]
    table(f"A server stopped under {TASKS} tasks", ["", ""], rows)
    await limiter.close()


def main() -> None:
    conditions()
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    server = Server()
    users = [f"user:{number}" for number in range(100)]
    refusals: dict[str, dict[str, Any]] = {"asked each time": {"deny_cache": False}, "remembered": {}}
    asyncio.run(compared(server, "A hundred keys that are refused, 10/second each", "10/second", users, refusals))
    modes: dict[str, dict[str, Any]] = {"asked each time": {}, "prefetch auto": {"prefetch": "auto"}}
    asyncio.run(compared(server, "One hot key", "2000000/second", ["hot"], modes))
    asyncio.run(stalled(server))
    server.close()


if __name__ == "__main__":
    main()

"""Claim: what a client gets out of one server, beside a plain redis-py pool that runs ``EVALSHA 'return 1'``.

One event loop: at least 5 times its decisions a second with 64 tasks and 12 times with 256, and 5 times those of
``limits`` and ``throttled-py``; alone, a p50 no worse.  Arrivals that do not wait for one another: p99 below 5 ms at
4,000 and at 15,000 a second.  Threads: one costs at most 1.3 times a raw EVALSHA, and 16 get at least 4 times as much
done as one, where an answer takes longer than to wake a thread does.

Closed loops and threads run in interleaved rounds, and the best of each counts; keys are many and never refused.
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import redis
import redis.asyncio

from bench.harness import conditions, record, table
from bench.relay import Relay
from ratekeeper import AsyncLimiter, Limiter
from tests.servers import Server

ROUNDS = 8
SECONDS = 0.3
AWAY = 0.001  # seconds there and back, where a network is between
KEYS = [f"user:{number}" for number in range(1000)]
LIMIT = "1000000/second"
Call = Callable[[str], Awaitable[object]]


def pool_of(server: Server) -> Call:
    client = redis.asyncio.Redis(port=server.port, max_connections=2000)
    sha = redis.Redis(port=server.port).script_load("return 1")
    return lambda key: client.evalsha(sha, 1, key)


def limits_of(server: Server) -> Call:
    import limits
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import FixedWindowRateLimiter

    strategy = FixedWindowRateLimiter(
        RedisStorage(f"async+{server.url}", implementation="redispy", max_connections=2000)
    )
    item = limits.RateLimitItemPerSecond(1_000_000)
    return lambda key: strategy.hit(item, key)


def throttled_of(server: Server) -> Call:
    from throttled.asyncio import RedisStore, Throttled, per_duration

    quota = per_duration(timedelta(seconds=1), 1_000_000)
    return Throttled(
        using="gcra", quota=quota, store=RedisStore(server.url, {"CONNECTION_POOL_KWARGS": {"max_connections": 2000}})
    ).limit


def ours_of(server: Server) -> Call:
    return AsyncLimiter(LIMIT, store=server.url, deadline=10).check


ASYNC: dict[str, Callable[[Server], Call]] = {
    "redis-py pool, EVALSHA 'return 1'": pool_of,
    "ratekeeper": ours_of,
    "limits": limits_of,
    "throttled-py": throttled_of,
}


async def closed_loop(call: Call, tasks: int) -> tuple[float, float, float]:
    """Calls a second, the median of what one took, and the CPU time of this process for each."""
    took: list[float] = []
    cpu = time.process_time()
    until = time.perf_counter() + SECONDS

    async def task(number: int) -> None:
        now = time.perf_counter()
        while now < until:
            await call(KEYS[(number * 31 + len(took)) % len(KEYS)])
            after = time.perf_counter()
            took.append(after - now)
            now = after

    began = time.perf_counter()
    await asyncio.gather(*[task(number) for number in range(tasks)])
    passed = time.perf_counter() - began
    return len(took) / passed, sorted(took)[len(took) // 2], (time.process_time() - cpu) / len(took)


async def open_loop(call: Call, rate: int, seconds: float) -> list[float]:
    """What each call took, sorted, if they arrive at random and wait for nobody."""
    chance = random.Random(rate)
    took: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(due: float, key: str) -> None:
        with suppress(redis.exceptions.ConnectionError):  # a pool that has collapsed has no more connections
            await call(key)
        took.append(time.perf_counter() - due)

    began = due = time.perf_counter()
    while due < began + seconds:
        due += chance.expovariate(rate)
        if due > time.perf_counter():
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.ensure_future(one(due, chance.choice(KEYS)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    return sorted(took)


async def asynchronous(server: Server) -> None:
    calls = {}
    for name, make in ASYNC.items():
        try:
            calls[name] = make(server)
        except ImportError as error:
            print(f"{name}: not here ({error})")
    never = float("inf")
    best = {(name, tasks): (0.0, never, never) for tasks in (1, 64, 256) for name in calls}
    rates: dict[tuple[str, int], list[float]] = {key: [] for key in best}
    cpus: dict[tuple[str, int], list[float]] = {key: [] for key in best}
    for call in calls.values():
        await asyncio.gather(*[call(key) for key in KEYS[:256]])  # every connection there will be
    for _ in range(ROUNDS):
        for name, tasks in best:
            rate, median, cpu = await closed_loop(calls[name], tasks)
            rates[name, tasks].append(rate)
            cpus[name, tasks].append(cpu * 1e6)
            before = best[name, tasks]
            best[name, tasks] = max(before[0], rate), min(before[1], median), min(before[2], cpu)
    for tasks in (64, 256):
        title = f"One event loop, {tasks} tasks"
        record(title, "a second", {name: rates[name, tasks] for name in calls}, most=True)
        record(f"{title}: CPU time", "µs", {name: cpus[name, tasks] for name in calls})
    floor = next(iter(calls))
    rows = []
    for name in calls:
        cells = [name, f"{best[name, 1][1] * 1e6:.0f}", f"{best[name, 1][1] / best[floor, 1][1]:.2f}"]
        for tasks in (64, 256):
            rate, _, cpu = best[name, tasks]
            cells += [f"{rate:,.0f}", f"{rate / best[floor, tasks][0]:.1f}", f"{cpu * 1e6:.1f}"]
        rows.append(cells)
    head = ["", "1 task: p50 µs", "x pool", "64 tasks: /s", "x pool", "µs CPU", "256 tasks: /s", "x pool", "µs CPU"]
    table("One event loop", head, rows)
    rows = []
    for rate in (1_000, 4_000, 15_000):
        for name in (floor, "ratekeeper"):
            if name == floor and rate > 4_000:
                continue
            times = [await open_loop(calls[name], rate, 1.0) for _ in range(1 if name == floor else 3)]
            took = min(times, key=lambda each: each[int(len(each) * 0.99)])
            figures = [f"{took[int(len(took) * part)] * 1e3:.2f}" for part in (0.5, 0.99)]
            rows.append([f"{rate:,} a second, {name}", *figures])
    table("Arrivals that wait for nobody, ms", ["", "p50", "p99"], rows)


def threads_of(call: Callable[[str], object], many: int) -> tuple[float, int]:
    """Calls a second of that many threads, and how many there were."""
    counts = [0] * many
    until = time.perf_counter() + SECONDS

    def run(number: int) -> None:
        done = 0
        while time.perf_counter() < until:
            call(KEYS[(number * 31 + done) % len(KEYS)])
            done += 1
        counts[number] = done

    threads = [threading.Thread(target=run, args=(number,)) for number in range(many)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began), sum(counts)


def handed_on(many: int) -> tuple[float, float]:
    """How often a second threads wake the next of so many, and nothing else, and the CPU time of each.

    The least that a call costs which has to wait for another thread: no server, no decision.
    """
    gates = [threading.Lock() for _ in range(many)]
    for gate in gates:
        gate.acquire()
    turns = [0] * many
    over = False

    def run(number: int) -> None:
        own, following = gates[number], gates[(number + 1) % many]
        while not over:
            own.acquire()
            turns[number] += 1
            following.release()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(many)]
    for thread in threads:
        thread.start()
    began, cpu = time.perf_counter(), time.process_time()
    gates[0].release()
    time.sleep(SECONDS)
    done = sum(turns)
    passed, cpu = time.perf_counter() - began, time.process_time() - cpu
    over = True
    for thread in threads:
        thread.join()
    return done / passed, cpu / done


def synchronous(server: Server) -> None:
    client = redis.Redis(port=server.port)
    sha = client.script_load("return 1")
    relay = Relay(server.port, AWAY / 2)
    limiter = Limiter(LIMIT, store=server.url, deadline=10)
    far = Limiter(LIMIT, store=relay.url, deadline=10)
    calls: dict[str, Callable[[str], Any]] = {
        "redis-py, EVALSHA 'return 1'": lambda key: client.evalsha(sha, 1, key),
        "ratekeeper": limiter.check,
        f"ratekeeper, a server {AWAY * 1e3:.0f} ms away": far.check,
    }
    best = {(name, many): (0.0, float("inf")) for name in calls for many in (1, 16)}
    woken = (0.0, float("inf"))
    for _ in range(ROUNDS + 2):
        rate, each = handed_on(16)
        woken = max(woken[0], rate), min(woken[1], each)
        for name, many in best:
            cpu = time.process_time()
            rate, done = threads_of(calls[name], many)
            each = (time.process_time() - cpu) / done
            best[name, many] = max(best[name, many][0], rate), min(best[name, many][1], each)
    floor = best[next(iter(calls)), 1][0]
    rows = []
    for name in calls:
        (one, one_cpu), (sixteen, cpu) = best[name, 1], best[name, 16]
        cells = [f"{1e6 / one:.0f}", f"{floor / one:.2f}", f"{one_cpu * 1e6:.0f}"]
        rows.append([name, *cells, f"{sixteen:,.0f}", f"{sixteen / one:.1f}", f"{cpu * 1e6:.0f}"])
    rows.append(["threads that only wake the next one", "", "", "", f"{woken[0]:,.0f}", "", f"{woken[1] * 1e6:.0f}"])
    head = ["", "1 thread: µs", "x redis-py", "µs CPU", "16 threads: /s", "x one thread", "µs CPU"]
    table("Threads", head, rows)
    limiter.close()
    far.close()
    relay.close()


def main() -> None:
    conditions()
    print(f"redis-py {redis.__version__}; load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    server = Server()
    asyncio.run(asynchronous(server))
    synchronous(server)
    server.close()


if __name__ == "__main__":
    main()

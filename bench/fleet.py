"""The set-up that fleets run: rules on a live Redis, beside one limit on it, in the same run.

1. 64 tasks: ``Policy.acheck`` with three rules beside ``AsyncLimiter.check`` with one limit.
2. 16 threads: WSGI middleware with three rules beside ``Limiter.check`` with one limit.

Rates come from interleaved rounds, the best of each; the processor time of this process for each decision stands
beside them.  Redis runs on the same machine, on a UNIX socket.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench.harness import conditions, table
from bench.walks import PLENTY, redis_server, rules
from ratekeeper import AsyncLimiter, Limiter, Policy, Request
from ratekeeper.adapters.wsgi import RateLimitMiddleware

TASKS = 64
THREADS = 16
ROUNDS = 7
SECONDS = 0.7
KEYS = 1000

ENVIRON = {
    "REQUEST_METHOD": "GET",
    "SCRIPT_NAME": "",
    "PATH_INFO": "/items/7",
    "QUERY_STRING": "",
    "HTTP_HOST": "example.org",
    "HTTP_USER_AGENT": "bench",
}
Rate = tuple[float, float]  # decisions a second, and microseconds of our processor time for each


async def tasks(operation: Callable[[int], Awaitable[Any]]) -> Rate:
    """All tasks ask, one question after the other, until the time is up."""
    count = 0
    until = time.perf_counter() + SECONDS

    async def ask(number: int) -> None:
        nonlocal count
        while time.perf_counter() < until:
            number = (number + TASKS) % KEYS
            assert await operation(number)
            count += 1

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*[ask(number) for number in range(TASKS)])
    return count / (time.perf_counter() - began), (time.process_time() - cpu) / count * 1e6


def threads(operation: Callable[[int], Any]) -> Rate:
    """The same with threads."""
    counts = [0] * THREADS
    until = time.perf_counter() + SECONDS

    def ask(place: int) -> None:
        number = place
        while time.perf_counter() < until:
            number = (number + THREADS) % KEYS
            assert operation(number)
            counts[place] += 1

    began, cpu = time.perf_counter(), time.process_time()
    workers = [threading.Thread(target=ask, args=(place,)) for place in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - began), (time.process_time() - cpu) / sum(counts) * 1e6


def report(title: str, best: dict[str, Rate], floor: str) -> None:
    rows = [(name, f"{rate:,.0f}", f"{rate / best[floor][0]:.2f}", f"{cpu:.1f}") for name, (rate, cpu) in best.items()]
    table(title, ["", "a second", "ratio", "µs of CPU"], rows)


async def event_loops(url: str) -> None:
    limiter = AsyncLimiter(f"{PLENTY}/minute", store=url)
    policy = Policy.parse(rules(), store=url)
    keys = [f"203.0.{number // 256}.{number % 256}" for number in range(KEYS)]
    headers = [("user-agent", "bench")]
    requests = [Request("GET", "/items/7", key, headers) for key in keys]
    contestants: dict[str, Callable[[int], Awaitable[Any]]] = {
        "AsyncLimiter.check": lambda number: limiter.check(keys[number]),
        "Policy.acheck, three rules": lambda number: policy.acheck(requests[number]),
        "the same, and making the Request": lambda number: policy.acheck(
            Request("GET", "/items/7", keys[number], headers)
        ),
    }
    best: dict[str, Rate] = {}
    for _ in range(ROUNDS):
        for name, operation in contestants.items():
            best[name] = max(best.get(name, (0.0, 0.0)), await tasks(operation))
    report(f"{TASKS} tasks on a live Redis", best, "AsyncLimiter.check")
    await limiter.close()
    await policy.aclose()


def thread_pools(url: str) -> None:
    limiter = Limiter(f"{PLENTY}/minute", store=url)
    policy = Policy.parse(rules(), store=url)
    keys = [f"203.0.{number // 256}.{number % 256}" for number in range(KEYS)]

    def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("content-type", "text/plain")])
        return [b"ok"]

    app = RateLimitMiddleware(application, policy=policy)

    def request(number: int) -> bool:
        status: list[str] = []
        app({**ENVIRON, "REMOTE_ADDR": keys[number]}, lambda line, headers: status.append(line))
        return status == ["200 OK"]

    contestants: dict[str, Callable[[int], Any]] = {
        "Limiter.check": lambda number: limiter.check(keys[number]),
        "WSGI middleware, three rules": request,
    }
    best: dict[str, Rate] = {}
    for _ in range(ROUNDS):
        for name, operation in contestants.items():
            best[name] = max(best.get(name, (0.0, 0.0)), threads(operation))
    report(f"{THREADS} threads on a live Redis", best, "Limiter.check")
    limiter.close()
    policy.close()


def main() -> None:
    conditions()
    with redis_server() as url:
        asyncio.run(event_loops(url))
        thread_pools(url)


if __name__ == "__main__":
    main()

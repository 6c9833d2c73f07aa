"""Claims: twenty processes with one key keep a provider's limit for five minutes; the peers, in the same run, do not.

A provider enforces 300 requests a minute in one of three ways: a strict sliding minute, a fixed minute that begins
elsewhere, a token bucket.  It speaks the chat completions of OpenAI, with ``x-ratelimit-*`` and ``Retry-After``.  Each
fleet has a provider of its own, and all 21 fleets run at the same time:

- ratekeeper on Redis, on shared memory, and on a Redis that is paused for 3 s and then killed;
- tenacity, pyrate-limiter and aiolimiter, each as its documentation recommends for twenty processes;
- the retries of the SDK alone.

``make bench ARGS="outbound_fleet"`` takes six minutes; ``--short`` has a limit of 100 in 20 s, for a minute.
"""

from __future__ import annotations

import asyncio
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from bench.harness import conditions, table

WORKERS = 20
FORK = multiprocessing.get_context("fork")
KINDS = ("sliding minute", "fixed minute", "token bucket")


class Counter:
    """The provider's limit, of one kind, independent of our code.  ``take`` returns the seconds to wait, or 0."""

    def __init__(self, kind: str, count: int, period: float) -> None:
        self.kind, self.count, self.period = kind, count, period
        self.log: deque[float] = deque()
        self.window, self.used = -1, 0
        self.tokens, self.filled_at = float(count), time.monotonic()

    def take(self, now: float) -> float:
        if self.kind == "sliding minute":
            while self.log and self.log[0] <= now - self.period:
                self.log.popleft()
            if len(self.log) >= self.count:
                return self.log[0] + self.period - now
            self.log.append(now)
        elif self.kind == "fixed minute":
            shifted = now + 0.37 * self.period
            if shifted // self.period != self.window:
                self.window, self.used = int(shifted // self.period), 0
            if self.used >= self.count:
                return self.period - shifted % self.period
            self.used += 1
        else:
            self.tokens = min(self.count, self.tokens + (now - self.filled_at) * self.count / self.period)
            self.filled_at = now
            if self.tokens < 1:
                return (1 - self.tokens) * self.period / self.count
            self.tokens -= 1
        return 0.0

    def left(self) -> tuple[int, float]:
        """How much is left, and the seconds until all of it is."""
        now = self.filled_at if self.kind == "token bucket" else time.monotonic()
        if self.kind == "sliding minute":
            return self.count - len(self.log), self.log[-1] + self.period - now if self.log else 0.0
        if self.kind == "fixed minute":
            return self.count - self.used, self.period - (now + 0.37 * self.period) % self.period
        return int(self.tokens), (self.count - self.tokens) * self.period / self.count


ANSWER = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "small",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }
).encode()
REFUSAL = b'{"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}}'


def provide(kind: str, count: int, period: float, pipe: Any) -> None:
    """An HTTP server that enforces the limit, and records when it admitted and refused requests."""

    async def main() -> None:
        counter = Counter(kind, count, period)
        records: list[tuple[float, bool]] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                    await reader.readexactly(size)
                    now = time.monotonic()
                    wait = counter.take(now)
                    records.append((now, not wait))
                    left, reset = counter.left()
                    lines = [
                        "HTTP/1.1 429 Too Many Requests" if wait else "HTTP/1.1 200 OK",
                        "content-type: application/json",
                        f"content-length: {len(REFUSAL if wait else ANSWER)}",
                        f"x-ratelimit-limit-requests: {count}",
                        f"x-ratelimit-remaining-requests: {left}",
                        f"x-ratelimit-reset-requests: {reset:.3f}s",
                        *([f"retry-after: {math.ceil(wait)}"] if wait else []),
                    ]
                    writer.write("\r\n".join([*lines, "", ""]).encode() + (REFUSAL if wait else ANSWER))
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1000)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)
        pipe.send(records)

    asyncio.run(main())


def ask(client: Any) -> Any:
    return client.chat.completions.create(
        model="small", max_tokens=5, messages=[{"role": "user", "content": "why?"}], timeout=600
    )


def sdk(port: int, **options: Any) -> Any:
    import openai

    return openai.OpenAI(api_key="...", base_url=f"http://127.0.0.1:{port}/v1", **options)


def paced(port: int, store: str, count: int, period: float) -> Callable[[], None]:
    import openai

    from ratekeeper.outbound import Budget
    from ratekeeper.outbound.httpx2 import PacedTransport

    budget = Budget(requests=f"{count} per {period:g} seconds", store=store, name=f"fleet {port}")
    budget.left()
    transport = PacedTransport(budget=budget, max_wait=None, store=store, name=f"fleet {port}")
    client = sdk(port, http_client=openai.DefaultHttpxClient(transport=transport), max_retries=0)
    return lambda: ask(client)


def with_tenacity(port: int, store: str, count: int, period: float) -> Callable[[], None]:
    """As the guide of OpenAI has it."""
    import tenacity

    client = sdk(port, max_retries=0)
    wait, stop = tenacity.wait_random_exponential(min=1, max=60), tenacity.stop_after_attempt(6)
    return tenacity.retry(wait=wait, stop=stop)(lambda: ask(client))


def with_pyrate(port: int, store: str, count: int, period: float) -> Callable[[], None]:
    """Its bucket on Redis, for several processes."""
    import pyrate_limiter
    import redis

    rates = [pyrate_limiter.Rate(count, int(period * 1000))]
    bucket: Any = pyrate_limiter.RedisBucket.init(rates, redis.Redis.from_url(store), f"fleet {port}")
    limiter = pyrate_limiter.Limiter(bucket)
    client = sdk(port, max_retries=0)

    def call() -> None:
        limiter.try_acquire("key")
        ask(client)

    return call


def with_aiolimiter(port: int, store: str, count: int, period: float) -> Callable[[], None]:
    """It counts in one event loop, so each process has a twentieth."""
    import aiolimiter

    client = sdk(port, max_retries=0)
    loop = asyncio.new_event_loop()
    limiter = aiolimiter.AsyncLimiter(count / WORKERS, period)

    def call() -> None:
        loop.run_until_complete(limiter.acquire())
        ask(client)

    return call


def with_the_sdk(port: int, store: str, count: int, period: float) -> Callable[[], None]:
    """Its retries as they are: two."""
    client = sdk(port)
    return lambda: ask(client)


def work(make: Any, port: int, store: str, count: int, period: float, ready: Any, failed: Any, until: Any) -> None:
    """One worker: calls without a pause.  What still waits at the end is not counted."""
    call = make(port, store, count, period)
    ready.wait(300)
    ends_at = time.monotonic() + until
    threading.Timer(until, os._exit, [0]).start()
    while time.monotonic() < ends_at:
        try:
            call()
        except Exception:
            with failed.get_lock():
                failed.value += 1
    os._exit(0)


class Fleet:
    """Twenty workers and their provider."""

    def __init__(self, make: Any, store: str, kind: str, count: int, period: float, seconds: float) -> None:
        self.count, self.period, self.seconds = count, period, seconds
        self.pipe, theirs = FORK.Pipe()
        self.provider = FORK.Process(target=provide, args=(kind, count, period, theirs))
        self.provider.start()
        port = self.pipe.recv()
        self.ready = FORK.Barrier(WORKERS + 1)
        self.failed = FORK.Value("i", 0)
        arguments = (make, port, store, count, period, self.ready, self.failed, seconds)
        self.workers = [FORK.Process(target=work, args=arguments) for _ in range(WORKERS)]
        for worker in self.workers:
            worker.start()

    def result(self) -> tuple[int, int, int, float]:
        """Requests, those that were refused, calls that failed, and the share of the capacity after one period."""
        for worker in self.workers:
            worker.join(self.seconds + 60)
        self.pipe.send("stop")
        records = self.pipe.recv()
        self.provider.join()
        admitted = [at for at, allowed in records if allowed]
        start, whole = records[0][0] + self.period, int((self.seconds - self.period) / self.period)
        used = sum(start <= at < start + whole * self.period for at in admitted)
        return len(records), len(records) - len(admitted), self.failed.value, used / (whole * self.count)

    def end(self) -> None:
        for process in (*self.workers, self.provider):
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()


def disturb(server: Any, period: float) -> None:
    """Pause a Redis for 3 s, and kill it later."""
    time.sleep(1.5 * period)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    server.process.send_signal(signal.SIGCONT)
    time.sleep(period / 4)
    server.kill()
    time.sleep(0.5)
    server.start()


def main() -> None:
    # Loaded before the processes fork: 420 imports at once take a busy machine minutes.
    import aiolimiter
    import openai
    import pyrate_limiter
    import redis
    import tenacity

    from ratekeeper.outbound.httpx2 import PacedTransport
    from ratekeeper.stores.redis.script import compose
    from ratekeeper.stores.redis.store import RedisStore
    from ratekeeper.stores.shared import remove
    from tests.servers import Server

    loaded = (openai, aiolimiter, pyrate_limiter, tenacity, redis, PacedTransport, compose(), RedisStore)
    assert all(loaded)
    count, period, seconds = (100, 20.0, 60.0) if "--short" in sys.argv else (300, 60.0, 300.0)
    conditions()
    names = ("openai", "httpx2", "tenacity", "pyrate-limiter", "aiolimiter")
    print(", ".join([f"{name} {version(name)}" for name in names]))
    server, disturbed, name = Server(), Server(), f"bench-{uuid.uuid4().hex}"
    contestants: list[tuple[str, Any, str]] = [
        ("ratekeeper, Redis", paced, server.url),
        ("ratekeeper, shared memory", paced, f"shm://{name}?max_keys=1000"),
        ("ratekeeper, Redis paused and killed", paced, disturbed.url),
        ("tenacity", with_tenacity, ""),
        ("pyrate-limiter, Redis", with_pyrate, server.url),
        ("aiolimiter, a twentieth each", with_aiolimiter, ""),
        ("the SDK's retries", with_the_sdk, ""),
    ]
    try:
        began = os.getloadavg()[0]
        fleets = [
            (label, kind, Fleet(make, store, kind, count, period, seconds))
            for label, make, store in contestants
            for kind in KINDS
        ]
        try:
            for _, _, fleet in fleets:
                fleet.ready.wait(300)
            disturb(disturbed, period)
            results = {(label, kind): fleet.result() for label, kind, fleet in fleets}
        finally:
            for _, _, fleet in fleets:
                fleet.end()
        for kind in KINDS:
            rows = []
            for label, _, _ in contestants:
                requests, refused, failed, used = results[label, kind]
                rows.append([label, f"{requests:,}", f"{refused:,}", f"{failed:,}", f"{used:.1%}"])
            load = f"load {began:.0f} to {os.getloadavg()[0]:.0f}"
            title = f"{kind} of {count}, {WORKERS} processes, {seconds:g} s, {load}"
            table(title, ["", "requests", "refused", "failed calls", "capacity used"], rows)
    finally:
        disturbed.process.send_signal(signal.SIGCONT)
        for each in (server, disturbed):
            each.close()
        remove(name)


if __name__ == "__main__":
    main()

"""Claims: a fleet keeps a server's limit without refusals, refused clients come back spread out, waits are precise.

1. 200 tasks in 4 processes against a server of 50 per second (token bucket, burst 50 and 10): at most 1 % refused, at
   least 97 % of its capacity used, on Redis and in shared memory; compared with plain retries by tenacity.
2. 1,000 clients that were refused with ``Retry-After: 30``: none comes back early, all spread over the window.
3. 1,000 calls paced at 200 per second in one process: how late each is, compared with aiolimiter and pyrate-limiter.
4. The processor time that PacedTransport adds to a request that need not wait.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.harness import conditions, table

RATE = 50
WARM = 3.0  # seconds before the count begins
LENGTH = 10.0
PROCESSES = 4
TASKS = 50
RUNS = 3


class Bucket:
    """The server's limit, independent of our code, so that it cannot share a mistake with it."""

    def __init__(self, burst: int) -> None:
        self.burst = burst
        self.tokens = float(burst)
        self.at = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.at) * RATE)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


def serve(burst: int, pipe: Any) -> None:
    """An HTTP server that enforces the bucket and records when it admitted and refused requests."""

    async def main() -> None:
        bucket = Bucket(burst)
        records: list[tuple[float, bool]] = []

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    allowed = bucket.take()
                    records.append((time.monotonic(), allowed))
                    if allowed:
                        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                    else:
                        writer.write(b"HTTP/1.1 429 No\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0, backlog=1000)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.to_thread(pipe.recv)
        pipe.send(records)

    asyncio.run(main())


def paced(port: int, store: str, until: float) -> None:
    import httpx

    from ratekeeper.outbound.httpx import AsyncPacedTransport

    async def main() -> None:
        inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=TASKS))
        transport = AsyncPacedTransport(inner, limit=f"{RATE}/second", store=store, name=f"bench {port}", max_wait=None)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:
            await swarm(lambda: client.get(f"http://127.0.0.1:{port}/"), until)

    asyncio.run(main())


def plain(port: int, store: str, until: float) -> None:
    import httpx
    import tenacity

    class Refused(Exception):
        pass

    async def main() -> None:
        limits = httpx.Limits(max_connections=TASKS)
        async with httpx.AsyncClient(timeout=None, limits=limits) as client:

            @tenacity.retry(
                wait=tenacity.wait_random_exponential(multiplier=0.5, max=10),
                retry=tenacity.retry_if_exception_type(Refused),
            )
            async def call() -> None:
                if (await client.get(f"http://127.0.0.1:{port}/")).status_code == 429:
                    raise Refused

            await swarm(call, until)

    asyncio.run(main())


async def swarm(call: Callable[[], Awaitable[object]], until: float) -> None:
    """Run tasks that call without a pause; cancel those that still wait at the end."""

    async def loop() -> None:
        while True:
            await call()

    tasks = [asyncio.create_task(loop()) for _ in range(TASKS)]
    await asyncio.wait(tasks, timeout=max(0.0, until - time.monotonic()), return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task.done():
            task.result()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def fleet(work: Callable[[int, str, float], None], store: str, burst: int) -> tuple[float, float, int]:
    """The share of refused requests, the share of used capacity, and the number of requests, after the warm-up."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(burst, theirs))
    server.start()
    port = ours.recv()
    began = time.monotonic() + 2.0  # time for all processes to import their modules
    workers = [context.Process(target=work, args=(port, store, began + WARM + LENGTH + 0.5)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ours.send("stop")
    records = ours.recv()
    server.join()
    counted = [allowed for at, allowed in records if began + WARM <= at < began + WARM + LENGTH]
    admitted = sum(counted)
    return 1 - admitted / max(1, len(counted)), admitted / (RATE * LENGTH), len(counted)


def stores() -> list[tuple[str, str]]:
    from ratekeeper.stores import SCHEMES

    urls = []
    binary = Path(sys.prefix, "bin", "redis-server")
    name = str(binary) if binary.exists() else "redis-server"
    port = random.randint(20_000, 40_000)
    try:
        command = [name, "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(1.0)
        urls.append(("redis://", f"redis://127.0.0.1:{port}/0?deadline=1"))
    except FileNotFoundError:
        print("no redis-server here: run scripts/ensure-redis")
    if "shm" in SCHEMES:
        segments.append(f"bench-outbound-{port}")
        urls.append(("shm://", f"shm://{segments[-1]}"))
    return urls


running: list[subprocess.Popen[bytes]] = []
segments: list[str] = []


def against_a_server() -> None:
    """Show every run: one refusal with a wait of a second costs a tenth of the capacity of its run."""
    from ratekeeper.stores.shared import remove

    runs_of: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
    try:
        fleets = [(f"ratekeeper, {label}", paced, url, burst) for label, url in stores() for burst in (50, 10)]
        fleets.append(("tenacity, full jitter", plain, "", 50))
        for _ in range(RUNS):
            for label, work, url, burst in fleets:
                runs_of.setdefault((label, burst), []).append(fleet(work, url, burst))
    finally:
        for process in running:
            process.kill()
    for segment in segments:
        remove(segment)
    rows = [
        [label, burst, " ".join(f"{run[0]:.2%}" for run in runs), " ".join(f"{run[1]:.1%}" for run in runs)]
        for (label, burst), runs in runs_of.items()
    ]
    head = ["", "server's burst", "refused", "capacity used"]
    table(f"{PROCESSES} x {TASKS} tasks, a server of {RATE}/second, {LENGTH:g} s, {RUNS} runs", head, rows)


def after_a_reset() -> None:
    """A thousand clients with a memory:// store each, on a fake clock."""
    import httpx

    from ratekeeper.outbound import Retry
    from ratekeeper.outbound.httpx import AsyncPacedTransport
    from ratekeeper.testing import FakeClock

    async def main() -> list[float]:
        clock = FakeClock(start=1000.0)
        seen: set[str] = set()
        back: list[float] = []

        def server(request: httpx.Request) -> httpx.Response:
            if request.url.path in seen:
                back.append(clock.now - 1000.0)
                return httpx.Response(200)
            seen.add(request.url.path)
            return httpx.Response(429, headers={"Retry-After": "30"})

        async def one(number: int) -> None:
            retry = Retry(first=8.0)
            transport = AsyncPacedTransport(httpx.MockTransport(server), clock=clock, retry=retry, max_wait=60)
            async with httpx.AsyncClient(transport=transport) as client:
                await client.get(f"https://h/{number}")

        await asyncio.gather(*[one(number) for number in range(1000)])
        return back

    back = sorted(asyncio.run(main()))
    seconds = [sum(1 for at in back if 30 + part <= at < 31 + part) for part in range(8)]
    rows = [[len(back), sum(at < 30 for at in back), f"{back[0]:.3f}", f"{back[-1]:.3f}", json.dumps(seconds)]]
    head = ["clients", "early", "first at", "last at", "in each second from 30 to 38"]
    table("1,000 refused clients, Retry-After 30 s, window 8 s", head, rows)


CALLS = 1000
PER_SECOND = 200
REQUESTS = 5000


async def lateness(turn: Callable[[], Awaitable[object]], burst: int) -> list[float]:
    """Seconds by which each call is late: the burst is due at once, the others at even intervals."""
    times: list[float] = []

    async def one() -> None:
        await turn()
        times.append(time.perf_counter())

    await asyncio.gather(*[one() for _ in range(CALLS)])
    times.sort()
    return [at - (times[0] + max(0, number - burst + 1) / PER_SECOND) for number, at in enumerate(times)]


def limiters() -> dict[str, tuple[int, Callable[[], Callable[[], Awaitable[object]]]]]:
    """Limiters that space all calls, then limiters that admit a burst of 200 first."""
    import aiolimiter
    import pyrate_limiter

    from ratekeeper.outbound import Pace

    def of_pyrate(count: int, milliseconds: int) -> Callable[[], Awaitable[object]]:
        limiter = pyrate_limiter.Limiter(pyrate_limiter.Rate(count, milliseconds), buffer_ms=0)
        return lambda: limiter.try_acquire_async("k")

    return {
        "ratekeeper": (1, lambda: Pace(f"{PER_SECOND}/second").turn),
        "aiolimiter": (1, lambda: aiolimiter.AsyncLimiter(1, 1 / PER_SECOND).acquire),
        "pyrate-limiter": (1, lambda: of_pyrate(1, 1000 // PER_SECOND)),
        "ratekeeper, burst": (PER_SECOND, lambda: Pace(f"{PER_SECOND}/second gcra").turn),
        "aiolimiter, burst": (PER_SECOND, lambda: aiolimiter.AsyncLimiter(PER_SECOND, 1).acquire),
        "pyrate-limiter, burst": (PER_SECOND, lambda: of_pyrate(PER_SECOND, 1000)),
    }


def precision() -> None:
    runs_of: dict[str, list[list[float]]] = {}
    for _ in range(5):
        for name, (burst, make) in limiters().items():

            async def run(make: Any = make, burst: int = burst) -> list[float]:
                return await lateness(make(), burst)

            runs_of.setdefault(name, []).append(asyncio.run(run()))
    rows = []
    for name, runs in runs_of.items():
        best = sorted(min(runs, key=lambda late: sorted(late)[len(late) * 99 // 100]))
        figures = [best[len(best) // 2], best[len(best) * 99 // 100], best[-1]]
        early = max(sum(late < -0.001 for late in run) for run in runs)
        rows.append([name, *[f"{figure * 1e3:.2f}" for figure in figures], early])
    head = ["", "median ms late", "p99", "last", "early"]
    table(f"{CALLS:,} calls at {PER_SECOND}/second, best of 5 interleaved runs", head, rows)


def overhead() -> None:
    """Time a transport that answers in this process, alone and through PacedTransport."""
    import httpx

    from ratekeeper.outbound.httpx import PacedTransport

    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    request = httpx.Request("GET", "https://example.org/items")
    transports = {"inner transport": inner, "PacedTransport": PacedTransport(inner, limit="1000000000/minute")}
    micros: dict[str, list[float]] = {}
    for _ in range(5):
        for name, transport in transports.items():
            start = time.process_time()
            for _ in range(REQUESTS):
                transport.handle_request(request)
            micros.setdefault(name, []).append((time.process_time() - start) / REQUESTS * 1e6)
    rows = [[name, f"{min(runs):.1f}", " ".join(f"{run:.1f}" for run in runs)] for name, runs in micros.items()]
    table("Processor time of one request, best of 5 interleaved runs", ["", "µs", "all runs"], rows)


def main() -> None:
    conditions()
    overhead()
    after_a_reset()
    precision()
    against_a_server()


if __name__ == "__main__":
    main()

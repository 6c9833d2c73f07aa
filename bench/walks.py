"""How many Python calls of ours one operation takes, once everything is warm.

Unlike seconds, these do not depend on the machine.  A call is an entry into a function, a generator or a coroutine
whose source lies in the package; resuming a generator or a coroutine counts as well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import ratekeeper
from bench.harness import table
from bench.http import SCOPE, bare, receive
from ratekeeper import AsyncLimiter, Limiter, Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware

OURS = os.path.dirname(ratekeeper.__file__) + os.sep
WARM_UP = 50
OPERATIONS = 200
PLENTY = 1_000_000_000


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts our calls in the block."""
    count = [0]

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            count[0] += 1

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)


def walk(operation: Callable[[], object]) -> float:
    """Calls of one operation."""
    for _ in range(WARM_UP):
        operation()
    with counted() as count:
        for _ in range(OPERATIONS):
            operation()
    return count[0] / OPERATIONS


async def awalk(operation: Callable[[], Awaitable[object]]) -> float:
    """Calls of one awaited operation, those in callbacks of the loop included."""
    for _ in range(WARM_UP):
        await operation()
    with counted() as count:
        for _ in range(OPERATIONS):
            await operation()
    return count[0] / OPERATIONS


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a Redis server on a UNIX socket."""
    folder = tempfile.mkdtemp()
    path = f"{folder}/redis.sock"
    words = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        while not Path(path).exists():
            if server.poll() is not None:
                raise RuntimeError("redis-server ended")
        yield f"unix://{path}?deadline=5"
    finally:
        server.terminate()
        server.wait()
        shutil.rmtree(folder)


def rules(*changes: dict[str, Any]) -> dict[str, Any]:
    """Three rules that every request meets: by address, by user and for all."""
    sources = ["ip", "user", "all"]
    each = [{"name": by, "by": by, "limit": f"{PLENTY}/minute"} for by in sources]
    for rule, change in zip(each, changes, strict=False):
        rule |= change
    return {"identity": {"user": "header:User-Agent"}, "rules": each}


async def asgi(policy: Policy) -> float:
    app = RateLimitMiddleware(bare, policy=policy)

    async def send(message: object) -> None:
        pass

    calls = await awalk(lambda: app(dict(SCOPE), receive, send))
    await policy.aclose()
    return calls


async def service(store: str, protocol: str, payload: bytes, end: bytes) -> float:
    """Calls of one request to a whole worker, from the bytes that come in to the bytes that go out."""
    from ratekeeper.service.options import Options
    from ratekeeper.service.worker import Worker

    words: Any = {protocol: "127.0.0.1:0", "store": store, "rules": None}
    worker = Worker(Options(**words), 0, b"secret")
    await worker.open()
    reader, writer = await asyncio.open_connection(*worker.addresses[protocol])

    async def ask() -> None:
        writer.write(payload)
        await reader.readuntil(end)

    calls = await awalk(ask)
    writer.close()
    await worker.close()
    return calls


def paced() -> tuple[float, float]:
    """Calls of one request through PacedTransport that need not wait, and its questions to the store."""
    import httpx

    from ratekeeper import MemoryStore
    from ratekeeper.outbound.httpx import PacedTransport

    questions = [0]

    class Counting(MemoryStore):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            if name in ("check", "peek", "take", "refund", "reset", "states"):
                questions[0] += 1
            return super().__getattribute__(name)

    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    request = httpx.Request("GET", "https://example.org/items")
    transport = PacedTransport(inner, limit=f"{PLENTY}/minute", store=Counting())
    calls = walk(lambda: transport.handle_request(request))
    questions[0] = 0
    for _ in range(100):
        transport.handle_request(request)
    return calls, questions[0] / 100


CHECK = b'{"limit":"1000000000/minute","key":"user:42","name":"api"}'
POST = b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(CHECK), CHECK)
THROTTLE = b"*5\r\n$11\r\nCL.THROTTLE\r\n$7\r\nuser:42\r\n$9\r\n100000000\r\n$10\r\n1000000000\r\n$2\r\n60\r\n"


def main() -> None:
    limiter = Limiter(f"{PLENTY}/minute")
    found: list[tuple[str, float, object]] = [("Limiter.check, memory", walk(lambda: limiter.check("k")), 1)]
    with redis_server() as url:

        async def tasks() -> None:
            for what, limits, most in (
                ("one limit", f"{PLENTY}/minute", 25),
                ("two limits", [f"{PLENTY}/minute", f"{PLENTY}/hour"], 35),
            ):
                async_limiter = AsyncLimiter(limits, store=url)
                calls = await awalk(lambda limiter=async_limiter: limiter.check("k"))  # type: ignore[misc]
                found.append((f"AsyncLimiter.check, Redis, {what}", calls, most))
                await async_limiter.close()
            found.append(("ASGI, three rules, memory", await asgi(Policy.parse(rules())), 27))
            shadow = Policy.parse(rules({"mode": "shadow"}))
            found.append(("ASGI, three rules, one in shadow, memory", await asgi(shadow), 40))
            found.append(("ASGI, three rules, Redis", await asgi(Policy.parse(rules(), store=url)), 90))
            for where, store, most in (("memory", "memory://", 14), ("Redis", url, 45)):
                found.append((f"POST /v1/check, {where}", await service(store, "http", POST, b"}"), most))
            for where, store, most in (("memory", "memory://", 7), ("Redis", url, 45)):
                found.append((f"CL.THROTTLE, {where}", await service(store, "resp", THROTTLE, b":0\r\n"), most))

        asyncio.run(tasks())
    calls, questions = paced()
    found.append((f"httpx through PacedTransport, {questions:g} questions", calls, 60))
    table(
        "Python calls of one operation",
        ["operation", "calls", "at most"],
        [(what, f"{calls:.1f}", most) for what, calls, most in found],
    )


if __name__ == "__main__":
    main()

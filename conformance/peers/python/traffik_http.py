"""traffik: its throttle in a FastAPI application, one for each limit, with its memory backend and default strategy."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from functools import cache

import uvicorn
from fastapi import FastAPI, Request
from traffik import HTTPThrottle, Rate
from traffik.backends.inmemory import InMemoryBackend

from conformance.peers.python.web import KEY, limit_of

backend = InMemoryBackend(namespace="conformance")


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with backend(app, persistent=False, close_on_exit=True):
        yield


app = FastAPI(lifespan=lifespan)


async def key_of(request: Request) -> str:
    return request.headers[KEY]


@cache
def throttle(path: str) -> HTTPThrottle:
    count, seconds, _ = limit_of(path)
    return HTTPThrottle(uid=path.strip("/").replace("/", "-"), rate=Rate(limit=count, seconds=seconds),
                        identifier=key_of, backend=backend, cache_ids=False)  # fmt: skip


@app.get("/{count}/{seconds}/{name}")
async def answer(request: Request) -> dict[str, bool]:
    await throttle(request.url.path)(request)
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")

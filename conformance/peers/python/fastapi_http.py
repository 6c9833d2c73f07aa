"""fastapi-limiter: its dependency with a pyrate limiter, one for each limit and key: so it tells clients apart."""

from __future__ import annotations

import sys
from functools import cache

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import Limiter, Rate

from conformance.peers.python.web import KEY, limit_of

app = FastAPI()


@cache
def dependency(path: str, key: str) -> RateLimiter:
    count, seconds, _ = limit_of(path)
    return RateLimiter(Limiter(Rate(count, seconds * 1000)))


@app.get("/{count}/{seconds}/{name}")
async def answer(request: Request, response: Response) -> dict[str, bool]:
    await dependency(request.url.path, request.headers[KEY])(request, response)
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")

"""slowapi: a Starlette application with its decorator, its limit from the path, its headers on."""

from __future__ import annotations

import sys

import uvicorn
from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

from conformance.peers.python.web import KEY, UNITS, limit_of

app = FastAPI()


def key_of(request: Request) -> str:
    return f"{request.url.path}|{request.headers[KEY]}"


limiter = Limiter(key_func=key_of, headers_enabled=True)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


def rate(key: str) -> str:
    count, seconds, _ = limit_of(key.split("|")[0])
    return f"{count}/{UNITS[seconds]}"


@app.get("/{count}/{seconds}/{name}")
@limiter.limit(rate)
async def answer(request: Request, response: Response, count: int, seconds: int, name: str) -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error")

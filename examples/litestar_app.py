"""Litestar: rules for the application.

Run it: ``python -m examples.litestar_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path

import uvicorn
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware

from ratekeeper.adapters.asgi import RateLimitMiddleware


@get("/")
async def home() -> dict[str, str]:
    return {"hello": "world"}


@get("/search")
async def search() -> dict[str, str]:
    return {"found": "something"}


rules = DefineMiddleware(RateLimitMiddleware, policy=Path(__file__).with_name("rules.toml"))
app = Litestar([home, search], middleware=[rules])

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))

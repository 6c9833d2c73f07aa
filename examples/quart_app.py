"""Quart: rules around the application.

Run it: ``python -m examples.quart_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path

import uvicorn
from quart import Quart, request

from ratekeeper.adapters.asgi import RateLimitMiddleware

app = Quart(__name__)
app.asgi_app = RateLimitMiddleware(app.asgi_app, policy=Path(__file__).with_name("rules.toml"))


@app.get("/")
async def home() -> dict[str, str]:
    return {"hello": "world"}


@app.get("/search")
async def search() -> dict[str, str]:
    return {"found": request.args.get("q", "")}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))

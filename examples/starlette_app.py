"""Starlette: rules for the application.

Run it: ``python -m examples.starlette_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ratekeeper.adapters.asgi import RateLimitMiddleware


async def home(request: Request) -> JSONResponse:
    return JSONResponse({"hello": "world"})


async def search(request: Request) -> JSONResponse:
    return JSONResponse({"found": request.query_params.get("q", "")})


app = Starlette(
    routes=[Route("/", home), Route("/search", search)],
    middleware=[Middleware(RateLimitMiddleware, policy=Path(__file__).with_name("rules.toml"))],
)

if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ.get("PORT", "8000")))

"""aiohttp: rules for the application, a limit on a handler, and an exempt handler.

Run it: ``python -m examples.aiohttp_app``, then ``for i in 1 2 3 4 5 6; do curl -si localhost:8000/search; done``.
"""

import os
from pathlib import Path

from aiohttp import web

from ratekeeper.adapters.aiohttp import exempt, rate_limit, setup

routes = web.RouteTableDef()


@routes.get("/")
async def home(request: web.Request) -> web.Response:
    return web.json_response({"hello": "world"})


@routes.get("/search")
async def search(request: web.Request) -> web.Response:
    return web.json_response({"found": request.query.get("q", "")})


@routes.get("/report")
@rate_limit("2/minute")
async def report(request: web.Request) -> web.Response:
    return web.json_response({"report": "long"})


@routes.get("/health")
@exempt
async def health(request: web.Request) -> web.Response:
    return web.json_response({"status": "well"})


app = web.Application()
setup(app, policy=Path(__file__).with_name("rules.toml"))
app.add_routes(routes)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))

"""The ASGI middleware in Litestar and Quart, all cases through their own test clients; Starlette's are in test_asgi."""

import asyncio

import pytest
from fastapi import APIRouter, FastAPI
from litestar import Litestar, MediaType, Request, Response, get, route
from litestar.middleware import DefineMiddleware
from litestar.response import Stream
from litestar.testing import TestClient
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient as StarletteClient

from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.route_template import route_of
from tests.adapters.cases import CASES, Answer, rules, run

METHODS = ["GET", "HEAD", "POST", "OPTIONS"]


@route(["/", "/{rest:path}"], http_method=METHODS, media_type=MediaType.TEXT, status_code=200)
async def answer(request: Request) -> Response[str]:
    if request.scope["path"] == "/stream":
        return Stream(iter(["one", "two", "three"]), headers={"X-App": "yes"})  # type: ignore[return-value]
    return Response("ok", headers={"X-App": "yes"}, media_type=MediaType.TEXT)


class From:
    """An application whose requests come from ``peer``: the test client of Litestar has only one address."""

    def __init__(self, app):
        self.app = app
        self.peer = ""

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http":
            scope["client"] = (self.peer, 40_000)
        await self.app(scope, receive, send)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_litestar(case):
    def client(policy):
        app = Litestar([answer], middleware=[DefineMiddleware(RateLimitMiddleware, policy=policy)], openapi_config=None)
        app.asgi_handler = near = From(app.asgi_handler)
        client = TestClient(app)

        def send(step):
            near.peer = step.peer
            answer = client.request(step.method, step.path, headers=list(step.headers), follow_redirects=False)
            return Answer(answer.status_code, [(k.lower(), v) for k, v in answer.headers.items()], answer.content)

        return send

    run(case, client)


def quart_app(policy):
    app = Quart(__name__)

    async def parts():
        for part in (b"one", b"two", b"three"):
            yield part

    @app.route("/", defaults={"rest": ""}, methods=METHODS)
    @app.route("/<path:rest>", methods=METHODS)
    async def home(rest):
        return (parts() if rest == "stream" else "ok"), {"X-App": "yes"}

    app.asgi_app = RateLimitMiddleware(app.asgi_app, policy=policy)
    return app


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_quart(case):
    with asyncio.Runner() as runner:

        def client(policy):
            app = quart_app(policy)

            async def send(step):
                peer = {"client": (step.peer, 40_000)}
                answer = await app.test_client().open(
                    step.path, method=step.method, headers=list(step.headers), scope_base=peer
                )
                headers = [(name.lower(), value) for name, value in answer.headers.items()]
                return Answer(answer.status_code, headers, await answer.get_data())

            return lambda step: runner.run(send(step))

        run(case, client)


BY_ROUTE = rules({"by": ["route", "ip"], "limit": "1/minute"})
PATHS = ["/a/1", "/a/2", "/b", "/b", "/in/c/1", "/in/c/2", "/nowhere", "/elsewhere"]
SEEN = [200, 429, 200, 429, 200, 429, 404, 429]


def starlette_app():
    inner = [Route("/c/{n}", plain)]
    routes = [
        Route("/a/{n:int}", plain),
        Route("/b", plain, methods=["POST"]),
        Route("/b", plain),
        Mount("/in", routes=inner),
    ]
    return Starlette(routes=routes, middleware=[Middleware(RateLimitMiddleware, policy=BY_ROUTE)])


async def plain(request):
    return PlainTextResponse("ok")


def fastapi_app():
    app, router = FastAPI(), APIRouter(prefix="/in")

    @app.get("/a/{n}")
    async def a(n: int): ...

    @app.get("/b")
    async def b(): ...

    @router.get("/c/{n}")
    async def c(n: int): ...

    app.include_router(router)
    app.add_middleware(RateLimitMiddleware, policy=BY_ROUTE)
    return app


@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
def test_the_template_of_the_matched_route_is_the_key(make):
    client = StarletteClient(make(), client=("203.0.113.9", 40_000))
    assert [client.get(path).status_code for path in PATHS] == SEEN


def test_the_template_of_the_matched_route_is_the_key_in_litestar():
    @get("/a/{n:int}")
    async def a(request: Request) -> None: ...

    @get("/b")
    async def b(request: Request) -> None: ...

    app = Litestar([a, b], middleware=[DefineMiddleware(RateLimitMiddleware, policy=BY_ROUTE)], openapi_config=None)
    client = TestClient(app)
    assert [client.get(path).status_code for path in PATHS[:4]] == SEEN[:4]


def test_the_template_of_the_matched_route_is_the_key_in_quart():
    app = Quart(__name__)

    @app.get("/a/<int:n>")
    async def a(n):
        return "a"

    @app.get("/b")
    async def b():
        return "b"

    @app.get("/in/c/<n>")
    async def c(n):
        return "c"

    @app.get("/final/<n>/")
    async def final(n):
        return "final"

    @app.websocket("/a/<int:n>")
    async def socket(n): ...

    app.asgi_app = RateLimitMiddleware(app.asgi_app, policy=BY_ROUTE)

    async def main():
        client = app.test_client()
        peer = {"client": ("203.0.113.9", 40_000)}
        return [(await client.get(path, scope_base=peer)).status_code for path in [*PATHS, "/final/1/", "/final/2/"]]

    assert asyncio.run(main()) == [*SEEN, 200, 429]


@pytest.mark.parametrize("host", [b"", b"a" * 70, b"\xff\xfe", b"..", b"[::1]:80", b"x y", b"%00", b"\xc3\xa9" * 40])
def test_no_host_that_a_client_sends_breaks_the_search_for_a_route(host):
    app = Quart(__name__)
    app.add_url_rule("/", "home", lambda: "ok")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host)], "query_string": b""}
    assert route_of(scope, app.asgi_app) in ("/", None)

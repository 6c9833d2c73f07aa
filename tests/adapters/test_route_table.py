"""The routes of each framework as patterns, and what cannot be listed."""

import pytest
from aiohttp import web
from django.urls import include, path, re_path, register_converter
from fastapi import APIRouter, FastAPI
from flask import Flask
from litestar import Litestar, asgi, get
from litestar.types import Receive, Scope, Send
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from starlette.staticfiles import StaticFiles
from werkzeug.routing import BaseConverter

from ratekeeper.adapters.aiohttp import routes_of
from ratekeeper.adapters.django.translate import site_routes
from ratekeeper.adapters.route_table import (
    asgi_routes,
    fastapi_root_path,
    innermost,
    starlette_routes,
    werkzeug_routes,
)


def told(patterns):
    return [
        (pattern.text, sorted(pattern.methods - {"HEAD", "OPTIONS"}) if pattern.methods else None)
        for pattern in patterns
    ]


async def answer(request):
    return PlainTextResponse("ok")


def test_starlette(tmp_path):
    table = [
        Route("/a/{b:int}", answer, methods=["POST"]),
        WebSocketRoute("/socket", answer),
        Mount("/in", routes=[Route("/side", answer), Mount("/deep", app=StaticFiles(directory=tmp_path))]),
        Mount("/app", app=Starlette(routes=[Route("/x", answer)])),
        Host("api.example", Router([Route("/only/there", answer)])),
    ]
    assert told(starlette_routes(table)) == [
        ("/a/{b:int}", ["POST"]),
        ("/socket", None),
        ("/in/side", ["GET"]),
        ("/in/deep/**", None),
        ("/app/x", ["GET"]),
        ("/only/there", ["GET"]),
    ]
    assert starlette_routes([*table, object()]) is None


def test_fastapi():
    app, router, inner = FastAPI(openapi_url=None), APIRouter(prefix="/users"), APIRouter()
    inner.put("/deep")(lambda: 1)
    router.get("/{id}")(lambda id: id)
    router.include_router(inner, prefix="/in")
    app.include_router(router, prefix="/v1")
    app.mount("/other", FastAPI(openapi_url=None))
    assert sorted(told(starlette_routes(app.routes))) == [
        ("/other/**", None),
        ("/v1/users/in/deep", ["PUT"]),
        ("/v1/users/{id}", ["GET"]),
    ]


def test_an_application_inside_of_middleware():
    class Around:
        def __init__(self, app):
            self.app = app

    app = Starlette(routes=[Route("/a", answer)])
    assert innermost(Around(Around(app))) is app
    assert told(asgi_routes({}, Around(app))) == [("/a", ["GET"])]
    assert asgi_routes({}, answer) is None
    assert fastapi_root_path(Around(app)) == ""
    rooted = FastAPI()
    rooted.root_path = "/api"
    assert fastapi_root_path(Around(rooted)) == "/api"
    assert fastapi_root_path(Flask(__name__)) == ""  # whose root_path is a folder


def test_litestar():
    @get("/items/{n:int}")
    async def item() -> None:
        return None

    @asgi("/mounted", is_mount=True, copy_scope=True)
    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        return None

    app = Litestar([item, mounted], openapi_config=None)
    assert sorted(told(asgi_routes({"app": app}, None))) == [("/items/{n:int}", ["GET"]), ("/mounted/**", None)]


def test_flask():
    class Anything(BaseConverter):
        regex = ".*"
        part_isolating = False

    app = Flask(__name__, static_folder=None)
    app.url_map.converters["anything"] = Anything
    app.add_url_rule("/a/<int:b>", "a", methods=["POST"])
    app.add_url_rule("/files/<path:name>/x", "b")
    app.add_url_rule("/more/<anything:name>", "c")
    assert told(werkzeug_routes(app.url_map)) == [
        ("/a/<int:b>", ["POST"]),
        ("/files/<path:rest>", ["GET"]),
        ("/more/<path:rest>", ["GET"]),
    ]


class Digits:
    regex = "[0-9/]+"

    def to_python(self, value):
        return value

    to_url = to_python


def test_django():
    register_converter(Digits, "digits")
    view = lambda request: None  # noqa: E731
    table = [
        path("a/<int:b>/", view),
        path("in/", include([path("<slug:name>", view), re_path("^(?P<rest>.*)$", view)])),
        re_path(r"^files/old-(?P<rest>.*)$", view),
        path("numbers/<digits:n>", view),
    ]
    assert told(site_routes(table)) == [
        ("/a/<int:b>/", None),
        ("/in/<slug:name>", None),
        ("/in//**", None),
        ("/files/**", None),
        ("/numbers/**", None),
    ]


@pytest.mark.parametrize("prefix", ["", "/api"])
def test_aiohttp(prefix, tmp_path):
    async def handler(request):
        return web.Response()

    app, inner = web.Application(), web.Application()
    app.router.add_post("/a/{b}", handler)
    app.router.add_route("*", "/any", handler)
    app.router.add_get("/files/{rest:.*}", handler)
    app.router.add_static("/static", tmp_path)
    inner.router.add_get("/caf\u00e9", handler)
    app.add_subapp("/in", inner)
    if prefix:
        web.Application().add_subapp(prefix, app)
    assert told(routes_of(app, prefix)) == [
        ("/a/{b}", ["POST"]),
        ("/any", None),
        ("/files/{rest:path}", None),
        ("/static/**", None),
        ("/in/caf\u00e9", ["GET"]),
    ]

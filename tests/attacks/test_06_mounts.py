"""Attack 6: an application that is mounted below a prefix.  A rule's path begins where the application's routes begin.

Every framework runs behind its real server, mounted in each way that it knows.  Whatever path reaches the handler of
/login must be counted by the rule of /login.
"""

import asyncio
import contextlib
import logging
import socket
import threading
import warnings
from http.client import HTTPConnection
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn
from aiohttp import web
from aiohttp.test_utils import TestServer
from django.core.asgi import get_asgi_application
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from hypercorn.asyncio import serve as hypercorn_serve
from hypercorn.config import Config as HypercornConfig
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from quart import Quart
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from ratekeeper import Policy
from ratekeeper.adapters.aiohttp import setup
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.django_site import OURS
from tests.adapters.test_django import site

# Near the mount: with the prefix, without it, twice, without a slash, behind other segments, and as other spellings.
PATHS = [
    "/api/login", "/login", "/api/api/login", "/apilogin", "/x/api/login", "/xapi/login", "/api//login", "//api/login",
    "/api/./login", "/x/../api/login", "/%61pi/login", "/api/%6cogin", "/api/login/", "/API/login", "/api/LOGIN",
    "/api", "/api/", "/", "/api/other",
]  # fmt: skip


def policy():
    return Policy.parse({"rules": [{"name": "login", "match": "/login", "by": "all", "limit": "1000000/day"}]})


@contextlib.contextmanager
def uvicorn_server(app, **options):
    """The real server, in a thread."""
    ready = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets)
            ready.set()

    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(uvicorn.Config(app, log_level="critical", **{"lifespan": "on", **options}))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        assert ready.wait(60)
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextlib.contextmanager
def hypercorn_server(app, root_path):
    ready, loops = threading.Event(), []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    config = HypercornConfig()
    config.root_path = root_path
    config.bind = [f"fd://{listener.detach()}"]  # from here on it is hypercorn's to close
    config.errorlog = config.accesslog = None

    async def run():
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        ready.set()
        await hypercorn_serve(app, config, shutdown_trigger=stop.wait, mode="asgi")

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(60)
        yield port
    finally:
        loops[0][0].call_soon_threadsafe(loops[0][1].set)
        thread.join()


@contextlib.contextmanager
def wsgi_server(app):
    class Quiet(WSGIRequestHandler):
        def log_message(self, *_):
            pass

    server = make_server("127.0.0.1", 0, app, handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(port, path):
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Connection": "close"})
        response = connection.getresponse()
        return response.status, response.read().decode().strip('"'), response.headers.get("RateLimit-Policy", "")


def check_every_path(port, reached="/api/login"):
    answered = set()
    for path in PATHS:
        status, body, rules = ask(port, path)
        if status == 200 and body == "in":
            answered.add(path)
            assert '"login"' in rules, f"{path} reaches the handler uncounted"
        elif path.endswith("/other"):
            assert '"login"' not in rules, path
    assert reached in answered


async def starlette_login(request):
    return PlainTextResponse("in")


def starlette_app(*middleware):
    return Starlette(routes=[Route("/login", starlette_login)], middleware=list(middleware))


def fastapi_app(**options):
    app = FastAPI(**options)
    app.get("/login")(lambda: "in")
    return app


OURS_INSIDE = Middleware(RateLimitMiddleware, policy=policy())


def asgi_apps():
    yield "starlette, inside", starlette_app(OURS_INSIDE)
    yield "starlette, around", RateLimitMiddleware(starlette_app(), policy())
    inside = fastapi_app()
    inside.add_middleware(RateLimitMiddleware, policy=policy())
    yield "fastapi, inside", inside
    yield "fastapi, around", RateLimitMiddleware(fastapi_app(), policy())
    quart = Quart(__name__)

    async def login():
        return "in"

    quart.add_url_rule("/login", "login", login)
    quart.asgi_app = RateLimitMiddleware(quart.asgi_app, policy())
    yield "quart", quart

    @get("/login", media_type="text/plain")
    async def litestar_login() -> str:
        return "in"

    layer = DefineMiddleware(RateLimitMiddleware, policy=policy())
    yield "litestar, inside", Litestar([litestar_login], middleware=[layer], openapi_config=None)
    yield "litestar, around", RateLimitMiddleware(Litestar([litestar_login], openapi_config=None), policy())


ASGI = dict(asgi_apps())


@pytest.mark.full  # it starts servers
@pytest.mark.parametrize("name", ASGI)
def test_06_a_server_with_a_root_path(name):
    with uvicorn_server(ASGI[name], root_path="/api") as port:
        check_every_path(port, "/login")  # uvicorn itself puts the prefix in front
    with hypercorn_server(ASGI[name], "/api") as port:
        check_every_path(port)


@pytest.mark.parametrize("where", ["inside", "around"])
def test_06_fastapi_with_a_root_path_of_its_own(where):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # new versions say that the server should set it
        app = fastapi_app(root_path="/api")
    if where == "inside":
        app.add_middleware(RateLimitMiddleware, policy=policy())
    else:
        app = RateLimitMiddleware(app, policy())
    with uvicorn_server(app) as port:
        check_every_path(port)
        assert ask(port, "/login")[2].startswith('"login"')


@pytest.mark.full  # many applications
@pytest.mark.parametrize("root_path", ["", "/outer"])
def test_06_mounted_starlette_and_fastapi(root_path):
    """The policy of a mounted application begins at its mount; that of the application around it, at its own."""
    inner = fastapi_app()
    inner.add_middleware(RateLimitMiddleware, policy=policy())
    for mounted in (starlette_app(OURS_INSIDE), inner):
        outer = Starlette(routes=[Mount("/api", mounted)])
        with uvicorn_server(outer, root_path=root_path) as port:
            check_every_path(port)
    rules = {"rules": [{"name": "login", "match": "/api/login", "by": "all", "limit": "1000000/day"}]}
    outer = Starlette(routes=[Mount("/api", starlette_app())])
    with uvicorn_server(RateLimitMiddleware(outer, Policy.parse(rules)), root_path=root_path) as port:
        check_every_path(port)


def flask_app():
    app = Flask(__name__)
    app.add_url_rule("/login", "login", lambda: "in")
    return app


def nowhere(environ, start_response):
    start_response("404 Not Found", [])
    return [b""]


@pytest.mark.parametrize("where", ["extension", "around Flask", "around wsgi_app"])
def test_06_flask_behind_a_dispatcher(where):
    app = mounted = flask_app()
    if where == "extension":
        RateLimiter(app, policy())
    elif where == "around Flask":
        mounted = WsgiMiddleware(app, policy())
    else:
        app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy())
    with wsgi_server(DispatcherMiddleware(nowhere, {"/api": mounted, "/x/api": mounted})) as port:
        check_every_path(port)


def django_views():
    return django_path("login", lambda request: HttpResponse("in"))


def test_06_django_with_a_script_name():
    with site(policy(), django_views(), middleware=[OURS]):
        with wsgi_server(DispatcherMiddleware(nowhere, {"/api": WSGIHandler()})) as port:
            check_every_path(port)
        with uvicorn_server(get_asgi_application(), root_path="/api", lifespan="off") as port:
            check_every_path(port, "/login")


def test_06_django_with_a_forced_script_name():
    with site(policy(), django_views(), middleware=[OURS]), override_settings(FORCE_SCRIPT_NAME="/api"):
        with wsgi_server(WSGIHandler()) as port:
            check_every_path(port, "/login")
        with uvicorn_server(get_asgi_application(), lifespan="off") as port:
            check_every_path(port)


def aiohttp_app():
    async def login(request):
        return web.Response(text="in")

    app = web.Application()
    app.router.add_get("/login", login)
    return app


@pytest.mark.parametrize("prefix", ["/api", "/outer/api"])
def test_06_aiohttp_sub_applications(prefix):
    async def main():
        inner = aiohttp_app()
        setup(inner, policy())
        for part in reversed(prefix.strip("/").split("/")):
            outer = web.Application()
            outer.add_subapp("/" + part, inner)
            inner = outer
        async with TestServer(inner) as server:
            status, body, rules = await asyncio.to_thread(ask, server.port, prefix + "/login")
            assert (status, body) == (200, "in")
            assert '"login"' in rules

    asyncio.run(main())


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def warned():
    handler = Warnings()
    logging.getLogger("ratekeeper").addHandler(handler)
    yield handler.texts
    logging.getLogger("ratekeeper").removeHandler(handler)


def misplaced():
    """A rule that was written with the prefix, and one with a misspelled path."""
    rules = [
        {"name": "login", "match": "POST,GET /api/login", "limit": "5/day"},
        {"name": "typo", "match": "/logni", "limit": "5/day"},
        {"name": "whole-site", "limit": "500/day"},
    ]
    return Policy.parse({"rules": rules})


BELOW = (
    "rule 'login' never applies: no route of the application matches GET,POST /api/login. "
    "A rule's path begins where the application's routes begin, below any mount: write '/login'."
)
TYPO = "rule 'typo' never applies: no route of the application matches /logni. Did you mean '/login'?"


@pytest.mark.parametrize("app", [
    lambda: starlette_app(Middleware(RateLimitMiddleware, policy=misplaced())),
    lambda: RateLimitMiddleware(starlette_app(), misplaced()),
    lambda: RateLimitMiddleware(fastapi_app(), misplaced()),
    lambda: fastapi_app(middleware=[Middleware(RateLimitMiddleware, policy=misplaced())]),
], ids=["starlette, inside", "starlette, around", "fastapi, around", "fastapi, inside"])  # fmt: skip
@pytest.mark.full  # it starts servers
def test_06_a_server_says_at_start_up_which_rules_can_never_match(app, warned):
    with uvicorn_server(app(), root_path="/api") as port:
        assert warned == [BELOW, TYPO]
        ask(port, "/login")
    with uvicorn_server(app(), root_path="/api", lifespan="off") as port:
        assert len(warned) == 2
        ask(port, "/login")
        ask(port, "/login")
        assert warned == [BELOW, TYPO] * 2


def test_06_flask_says_it_at_the_first_request(warned):
    app = flask_app()
    RateLimiter(app, misplaced())
    with wsgi_server(DispatcherMiddleware(nowhere, {"/api": app})) as port:
        assert warned == []
        ask(port, "/api/login")
        ask(port, "/api/login")
    assert warned == [BELOW, TYPO]


def test_06_aiohttp_says_it_at_the_first_request(warned):
    async def main():
        inner, outer = aiohttp_app(), web.Application()
        setup(inner, misplaced())
        outer.add_subapp("/api", inner)
        async with TestServer(outer) as server:
            for _ in range(2):
                await asyncio.to_thread(ask, server.port, "/api/login")

    asyncio.run(main())
    assert warned == [BELOW, TYPO]


def test_06_django_says_it_in_its_checks_and_at_the_first_request(warned):
    from django.core.checks import run_checks

    views = django_path("", include([django_views()]))
    with site(misplaced(), views, middleware=[OURS]), override_settings(FORCE_SCRIPT_NAME="/api"):
        found = [check.msg for check in run_checks() if check.id == "ratekeeper.W006"]
        assert found == [BELOW, TYPO]
        with wsgi_server(WSGIHandler()) as port:
            ask(port, "/login")
            ask(port, "/login")
    assert warned == found

"""Attack 12, on the routers themselves: whatever spelling of a path a framework sends to a handler, its rule counts it.

Each route has a rule of its own with a limit that is never reached; a response of a handler whose rule is not among
those that its RateLimit-Policy names would be a hole.
"""

import asyncio
import random
from io import BytesIO, StringIO
from urllib.parse import unquote, unquote_to_bytes

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path as django_path
from django.urls import re_path
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, get
from litestar.middleware import DefineMiddleware
from quart import Quart
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from ratekeeper import Policy
from ratekeeper.adapters.aiohttp import setup
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests import tier
from tests.adapters.test_django import site

SPELLINGS = tier.steps(1000, 150)

# A name for each handler, and the pattern of its rule.
ROUTES = {
    "login": "/login",
    "slash": "/final/",
    "item": "/items/{id}",
    "deep": "/a/{b}/c",
    "files": "/files/**",
    "inner": "/in/side",
    "accents": "/caf\u00e9",
}
RULES = {
    "rules": [{"name": name, "match": match, "by": "all", "limit": "1000000/day"} for name, match in ROUTES.items()]
}
SAMPLES = ["/login", "/final/", "/items/7", "/a/x/c", "/files/x/y", "/in/side", "/caf\u00e9"]
PIECES = [
    "/", "//", ".", "..", "/./", "/../", "%2e", "%2E", "%2f", "%2F", "%252f", "%5c", "\\", ";", ";v=1", "%00", "%20",
    "%09", "%0a", "%0d", "+", "~", "%c3%a9", "%C3%A9", "%e9", "%C4%B0", "%C5%BF", "%E2%84%AA", "%ef%bc%8f", "%u002f",
    "index", "*", "%", "%2", "%85", "%e2%80%a8",
]  # fmt: skip


def spellings(count, seed):
    """Paths as on the request line, near the samples: mostly nonsense, which routers may take or leave."""
    rng = random.Random(seed)
    for _ in range(count):
        text = rng.choice(SAMPLES).replace("\u00e9", rng.choice(["%c3%a9", "%C3%A9", "%e9", "%c3%89"]))
        for _ in range(rng.choice([0, 1, 1, 2, 3])):
            at = rng.randrange(len(text) + 1)
            kind = rng.random()
            if kind < 0.5:
                text = text[:at] + rng.choice(PIECES) + text[at:]
            elif kind < 0.7:
                text = text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]
            elif kind < 0.85 and at < len(text) and text[at] != "%":
                text = text[:at] + f"%{ord(text[at]):02x}" + text[at + 1 :]
            else:
                text = text[:at] + text[at + 1 :]
        yield "/" + text.lstrip("/") if rng.random() < 0.9 else "/" + text


def asgi(app):
    loop = asyncio.new_event_loop()

    def call(spelling):
        raw = spelling.partition("?")[0]
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
            "path": unquote(raw), "raw_path": raw.encode("ascii", "replace"), "root_path": "", "query_string": b"",
            "headers": [(b"host", b"localhost")], "client": ("203.0.113.9", 1), "server": ("127.0.0.1", 80),
        }  # fmt: skip
        messages = []

        bodies = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive():
            return bodies.pop() if bodies else await asyncio.Event().wait()

        async def send(message):
            messages.append(message)

        loop.run_until_complete(app(scope, receive, send))
        headers = {name: value.decode("latin-1") for name, value in messages[0]["headers"]}
        body = b"".join(message.get("body", b"") for message in messages[1:])
        return messages[0]["status"], headers.get(b"ratelimit-policy", ""), body.decode("utf-8", "replace").strip('"')

    call.close = loop.close
    return call


def wsgi(app):
    def call(spelling):
        started = []
        environ = {
            "REQUEST_METHOD": "GET", "PATH_INFO": unquote_to_bytes(spelling).decode("latin-1"), "SCRIPT_NAME": "",
            "QUERY_STRING": "", "REMOTE_ADDR": "203.0.113.9", "SERVER_NAME": "localhost", "SERVER_PORT": "80",
            "wsgi.url_scheme": "http", "wsgi.input": BytesIO(), "wsgi.errors": StringIO(), "HTTP_HOST": "localhost",
        }  # fmt: skip
        body = b"".join(app(environ, lambda status, headers, *_: started.append((status, dict(headers)))))
        status, headers = started[0]
        policy = {name.lower(): value for name, value in headers.items()}.get("ratelimit-policy", "")
        return int(status[:3]), policy, body.decode("utf-8", "replace")

    return call


def starlette_app():
    def named(name):
        async def answer(request):
            return PlainTextResponse(name)

        return answer

    routes = [
        Route("/login", named("login")), Route("/final/", named("slash")), Route("/items/{id}", named("item")),
        Route("/a/{b}/c", named("deep")), Route("/files/{rest:path}", named("files")),
        Mount("/in", routes=[Route("/side", named("inner"))]), Route("/caf\u00e9", named("accents")),
    ]  # fmt: skip
    return asgi(RateLimitMiddleware(Starlette(routes=routes), Policy.parse(RULES)))


def fastapi_app():
    app = FastAPI(openapi_url=None)
    where = {"login": "/login", "slash": "/final/", "item": "/items/{id}", "deep": "/a/{id}/c",
             "files": "/files/{id:path}", "inner": "/in/side", "accents": "/caf\u00e9"}  # fmt: skip
    for name, route in where.items():
        app.get(route)(lambda name=name: name)  # the default is a query parameter that no request has
    return asgi(RateLimitMiddleware(app, Policy.parse(RULES)))


def quart_app():
    app = Quart(__name__)
    for name, route in WERKZEUG.items():

        async def answer(name=name, **_):
            return name

        app.add_url_rule(route, name, answer)
    app.asgi_app = RateLimitMiddleware(app.asgi_app, Policy.parse(RULES))
    return asgi(app.asgi_app)


def litestar_app():
    handlers = []
    for name, route in {"login": "/login", "slash": "/final", "item": "/items/{n:str}", "deep": "/a/{n:str}/c",
                        "files": "/files/{n:path}", "inner": "/in/side", "accents": "/caf\u00e9"}.items():  # fmt: skip

        def make(name=name):
            async def fn() -> str:
                return name

            return fn

        handlers.append(get(route, media_type="text/plain")(make()))
    return asgi(
        Litestar(handlers, middleware=[DefineMiddleware(RateLimitMiddleware, policy=Policy.parse(RULES))],
                 openapi_config=None)
    )  # fmt: skip


WERKZEUG = {"login": "/login", "slash": "/final/", "item": "/items/<id>", "deep": "/a/<b>/c",
            "files": "/files/<path:rest>", "inner": "/in/side", "accents": "/caf\u00e9"}  # fmt: skip


def flask_app():
    app = Flask(__name__)
    for name, route in WERKZEUG.items():
        app.add_url_rule(route, name, lambda name=name, **_: name)
    return wsgi(WsgiMiddleware(app, Policy.parse(RULES)))


def django_app():
    def named(name):
        return lambda request, **_: HttpResponse(name)

    views = [
        django_path("login", named("login")), django_path("final/", named("slash")),
        django_path("items/<str:id>", named("item")), django_path("a/<str:b>/c", named("deep")),
        re_path("^files/(?P<rest>.*)$", named("files")), django_path("in/side", named("inner")),
        django_path("caf\u00e9", named("accents")),
    ]  # fmt: skip
    with site(Policy.parse(RULES), *views, middleware=["ratekeeper.adapters.django.RateLimitMiddleware"]):
        handler = WSGIHandler()
        yield wsgi(handler)


MAKERS = {"starlette": starlette_app, "fastapi": fastapi_app, "quart": quart_app, "litestar": litestar_app,
          "flask": flask_app}  # fmt: skip


def check_all(call, seed, count=SPELLINGS):
    answered = set()
    spelled = 0
    for spelling in [*[text.replace("\u00e9", "%c3%a9") for text in SAMPLES], *spellings(count, seed)]:
        try:
            status, policy, name = call(spelling)
        except UnicodeError:
            continue  # the framework itself cannot read it
        if status == 200 and name in ROUTES:
            assert f'"{name}";' in policy, f"{spelling!r} reaches {name!r} uncounted: {policy!r}"
            answered.add(name)
            spelled += 1
    assert answered == set(ROUTES)
    assert spelled > count // 10


@pytest.mark.parametrize("framework", MAKERS)
def test_12_no_spelling_that_reaches_a_handler_escapes_its_rule(framework):
    call = MAKERS[framework]()
    check_all(call, seed=12)
    getattr(call, "close", int)()


def test_12_no_spelling_that_reaches_a_handler_escapes_its_rule_in_django():
    for call in django_app():
        check_all(call, seed=12)


def test_12_no_spelling_that_reaches_a_handler_escapes_its_rule_in_aiohttp():
    """Through a socket: aiohttp's own reading of the request line is part of its router."""

    async def main():
        def named(name):
            async def answer(request):
                return web.Response(text=name)

            return answer

        app = web.Application()
        setup(app, Policy.parse(RULES))
        for name, route in {**ROUTES, "slash": "/final/", "files": "/files/{rest:.*}"}.items():
            app.router.add_get(route, named(name))
        async with TestServer(app) as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)

            async def call(spelling):
                nonlocal reader, writer
                writer.write(f"GET {spelling} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode("ascii", "replace"))
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if fields.get("connection") == "close" or " 400 " in head.partition("\r\n")[0]:
                    writer.close()
                    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                return int(head.split()[1]), fields.get("ratelimit-policy", ""), body.decode("utf-8", "replace")

            answered = set()
            spellings_ = [*[text.replace("\u00e9", "%c3%a9") for text in SAMPLES], *spellings(SPELLINGS, 12)]
            for spelling in spellings_:
                if " " in spelling:
                    continue
                status, policy, name = await call(spelling)
                if status == 200 and name in ROUTES:
                    assert f'"{name}";' in policy, f"{spelling!r} reaches {name!r} uncounted: {policy!r}"
                    answered.add(name)
            writer.close()
            assert answered == set(ROUTES)

    asyncio.run(main())

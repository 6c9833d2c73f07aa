"""One small application in each framework: a view with a limit on its route, and what it answers.

``limited(framework, limit, view, **words)`` returns a function that sends a request with headers and returns (status,
headers, body).  ``view(get)`` makes the response: a status, or an exception to raise; ``get`` reads a request header.
``hooks`` are the functions of the application: ``exempt_when`` of a header reader, and ``on_breach``.  Without a limit,
only the policy limits the view.
"""

import asyncio
import json
import sys
from contextlib import ExitStack

from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from django.http import HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Request, Response
from fastapi.testclient import TestClient
from flask import Flask
from flask import request as flask_request
from rest_framework.response import Response as RestResponse
from rest_framework.views import APIView
from starlette.datastructures import Headers
from werkzeug.test import Client as WsgiClient

from ratekeeper.adapters import aiohttp as ours_aiohttp
from ratekeeper.adapters import django as ours_django
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.drf import RateLimitThrottle, route_limits
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.django_site import OURS

FRAMEWORKS = ("fastapi", "flask", "django", "django-async", "drf", "aiohttp")
APPLICATIONS = (*FRAMEWORKS, "asgi", "wsgi")
NO_RULES = {"rules": []}


def header_reader(framework, function):
    """A function of the framework's request, of one that reads a request header."""
    if function is None or isinstance(function, str) or framework == "flask":
        return (lambda: function(flask_request.headers.get)) if callable(function) else function
    return lambda request: function(request.headers.get)


def hooks_of(framework, hooks):
    """The hooks, where ``exempt_when`` is a function of what the framework calls a request."""
    hooks = dict(hooks or {})
    exempts = hooks.pop("exempt_when", None)
    if exempts is None:
        return hooks
    if framework in ("fastapi", "asgi"):
        return {**hooks, "exempt_when": lambda scope: exempts(Headers(scope=scope).get)}
    if framework == "wsgi":
        return {**hooks, "exempt_when": lambda environ: exempts(environ_reader(environ))}
    return {**hooks, "exempt_when": header_reader(framework, exempts)}


def limited(framework, limit, view, policy=NO_RULES, hooks=None, **words):
    limit = header_reader(framework, limit) if callable(limit) else limit
    for word in ("by", "cost", "exempt_when"):
        if callable(words.get(word)):
            words[word] = header_reader(framework, words[word])
    return globals()[framework.replace("-", "_") + "_app"](limit, view, policy, words, hooks_of(framework, hooks))


def fastapi_app(limit, view, policy, words, hooks):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy=policy, **hooks)

    @app.get("/", dependencies=[] if limit is None else [Depends(RateLimit(limit, **words))])
    async def home(request: Request):
        return Response(status_code=view(request.headers.get))

    return asgi_sender(app)


def asgi_sender(app):
    client = TestClient(app, raise_server_exceptions=False)

    def send(**headers):
        answer = client.get("/", headers=headers)
        return answer.status_code, answer.headers, answer.content

    return send


def asgi_app(limit, view, policy, words, hooks):
    async def app(scope, receive, send):
        await Response(status_code=view(Headers(scope=scope).get))(scope, receive, send)

    return asgi_sender(RateLimitMiddleware(app, policy=policy, **hooks))


def wsgi_app(limit, view, policy, words, hooks):
    client = WsgiClient(WsgiMiddleware(plain_wsgi(view), policy=policy, **hooks))

    def send(**headers):
        answer = client.get("/", headers=headers)
        return answer.status_code, answer.headers, answer.data

    return send


def flask_app(limit, view, policy, words, hooks):
    app = Flask("app")
    limiter = RateLimiter(app, policy=policy, **hooks)

    def home():
        return "", view(flask_request.headers.get)

    app.get("/")(home if limit is None else limiter.limit(limit, **words)(home))

    def send(**headers):
        answer = app.test_client().get("/", headers=headers)
        return answer.status_code, answer.headers, answer.data

    return send


def django_app(limit, view, policy, words, hooks, is_async=False):
    def plain(request):
        return HttpResponse(status=view(request.headers.get))

    async def awaited(request):
        return plain(request)

    decorated = awaited if is_async else plain
    if limit is not None:
        decorated = ours_django.rate_limit(limit, **words)(decorated)
    return site_sender(path("", decorated), policy, hooks, is_async)


def django_async_app(limit, view, policy, words, hooks):
    return django_app(limit, view, policy, words, hooks, is_async=True)


def drf_app(limit, view, policy, words, hooks):
    route_limits.clear()
    beside = {word: value for word, value in words.items() if word not in ("by", "cost")}

    class Throttle(RateLimitThrottle):
        pass

    Throttle.words = beside
    if callable(limit):
        Throttle.limit_of = lambda self, request, view: limit(request)
    else:
        Throttle.limit = limit
    if callable(words.get("by")):
        Throttle.subject = lambda self, request, view: words["by"](request)
    if "cost" in words:
        Throttle.cost_of = lambda self, request, view: (
            words["cost"](request) if callable(words["cost"]) else words["cost"]
        )

    class Home(APIView):
        throttle_classes = () if limit is None else (Throttle,)
        authentication_classes = permission_classes = ()

        def get(self, request):
            return RestResponse(status=view(request.headers.get))

    return site_sender(path("", Home.as_view()), policy, hooks)


def site_sender(pattern, policy, hooks, is_async=False):
    urls = sys.modules["tests.adapters.frameworks"]
    urls.urlpatterns = [pattern]
    client = AsyncClient(raise_request_exception=False) if is_async else Client(raise_request_exception=False)
    ours = {"POLICY": policy, **{name.upper(): function for name, function in hooks.items()}}
    setting = {"ROOT_URLCONF": "tests.adapters.frameworks", "MIDDLEWARE": [OURS], "RATEKEEPER": ours}
    stack = ExitStack()

    def send(**headers):
        if not getattr(send, "entered", False):
            stack.enter_context(override_settings(**setting))
            send.entered = True
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = asyncio.run(client.get("/", headers=given)) if is_async else client.get("/", headers=given)
        return answer.status_code, answer.headers, answer.content

    send.close = stack.close
    return send


def aiohttp_app(limit, view, policy, words, hooks):
    app = web.Application()
    ours_aiohttp.setup(app, policy=policy, **hooks)

    async def home(request):
        return web.Response(status=view(request.headers.get))

    app.router.add_get("/", home if limit is None else ours_aiohttp.rate_limit(limit, **words)(home))
    loop = asyncio.new_event_loop()
    client = loop.run_until_complete(started(app))

    def send(**headers):
        async def get():
            answer = await client.get("/", headers=headers)
            return answer.status, answer.headers, await answer.read()

        return loop.run_until_complete(get())

    def close():
        loop.run_until_complete(client.close())
        loop.close()

    send.close = close
    return send


async def started(app):
    client = AiohttpClient(TestServer(app))
    await client.start_server()
    return client


def environ_reader(environ):
    return lambda name: environ.get("HTTP_" + name.upper().replace("-", "_"))


def plain_wsgi(view):
    def app(environ, start_response):
        status = view(environ_reader(environ))
        start_response(f"{status} x", [("content-length", "0")])
        return [b""]

    return app


__all__ = ["APPLICATIONS", "FRAMEWORKS", "WsgiMiddleware", "json", "limited", "plain_wsgi"]

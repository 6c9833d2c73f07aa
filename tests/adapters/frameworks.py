"""One small application in each framework: a view with a limit on its route, and what it answers.

``limited(framework, limit, view, **words)`` returns a function that sends a request with headers and returns (status,
headers, body).  ``view(get)`` makes the response: a status, or an exception to raise; ``get`` reads a request header.
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

from ratekeeper.adapters import aiohttp as ours_aiohttp
from ratekeeper.adapters import django as ours_django
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.drf import RateLimitThrottle, route_limits
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.django_site import OURS

FRAMEWORKS = ("fastapi", "flask", "django", "django-async", "drf", "aiohttp")
NO_RULES = {"rules": []}


def header_reader(framework, function):
    """A function of the framework's request, of one that reads a request header."""
    if function is None or isinstance(function, str) or framework == "flask":
        return (lambda: function(flask_request.headers.get)) if callable(function) else function
    return lambda request: function(request.headers.get)


def limited(framework, limit, view, policy=NO_RULES, **words):
    limit = header_reader(framework, limit) if callable(limit) else limit
    for word in ("by", "cost", "exempt_when"):
        if callable(words.get(word)):
            words[word] = header_reader(framework, words[word])
    return globals()[framework.replace("-", "_") + "_app"](limit, view, policy, words)


def fastapi_app(limit, view, policy, words):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy=policy)

    @app.get("/", dependencies=[Depends(RateLimit(limit, **words))])
    async def home(request: Request):
        return Response(status_code=view(request.headers.get))

    client = TestClient(app, raise_server_exceptions=False)

    def send(**headers):
        answer = client.get("/", headers=headers)
        return answer.status_code, answer.headers, answer.content

    return send


def flask_app(limit, view, policy, words):
    app = Flask("app")
    limiter = RateLimiter(app, policy=policy)

    @app.get("/")
    @limiter.limit(limit, **words)
    def home():
        return "", view(flask_request.headers.get)

    def send(**headers):
        answer = app.test_client().get("/", headers=headers)
        return answer.status_code, answer.headers, answer.data

    return send


def django_app(limit, view, policy, words, is_async=False):
    def plain(request):
        return HttpResponse(status=view(request.headers.get))

    async def awaited(request):
        return plain(request)

    decorated = ours_django.rate_limit(limit, **words)(awaited if is_async else plain)
    return site_sender(path("", decorated), policy, is_async)


def django_async_app(limit, view, policy, words):
    return django_app(limit, view, policy, words, is_async=True)


def drf_app(limit, view, policy, words):
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
        throttle_classes = (Throttle,)
        authentication_classes = permission_classes = ()

        def get(self, request):
            return RestResponse(status=view(request.headers.get))

    return site_sender(path("", Home.as_view()), policy)


def site_sender(pattern, policy, is_async=False):
    urls = sys.modules["tests.adapters.frameworks"]
    urls.urlpatterns = [pattern]
    client = AsyncClient(raise_request_exception=False) if is_async else Client(raise_request_exception=False)
    setting = {"ROOT_URLCONF": "tests.adapters.frameworks", "MIDDLEWARE": [OURS], "RATEKEEPER": {"POLICY": policy}}
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


def aiohttp_app(limit, view, policy, words):
    app = web.Application()
    ours_aiohttp.setup(app, policy=policy)

    @ours_aiohttp.rate_limit(limit, **words)
    async def home(request):
        return web.Response(status=view(request.headers.get))

    app.router.add_get("/", home)
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


def wsgi_app(view):
    def app(environ, start_response):
        status = view(lambda name: environ.get("HTTP_" + name.upper().replace("-", "_")))
        start_response(f"{status} x", [("content-length", "0")])
        return [b""]

    return app


__all__ = ["FRAMEWORKS", "WsgiMiddleware", "json", "limited", "wsgi_app"]

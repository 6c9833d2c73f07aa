"""What every adapter does first: import its framework and take a policy; mistakes are reported at once."""

import asyncio
import importlib
import sys
from pathlib import Path
from runpy import run_path
from types import ModuleType

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from fastapi.testclient import TestClient
from flask import Flask
from werkzeug.test import Client as WerkzeugClient

import ratekeeper.adapters
from ratekeeper import InvalidInput, InvalidRules, Limit, MemoryStore, Request
from ratekeeper.adapters import OTHER_WORDS, framework, policy_of
from ratekeeper.adapters.aiohttp import setup
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.django_site import OURS


@pytest.mark.parametrize("policy", [5, None, ["10/minute"]])
@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: WsgiMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy) if policy else RateLimitMiddleware(print, policy=policy),
])  # fmt: skip
def test_what_is_no_policy_is_refused(make, policy):
    with pytest.raises(InvalidInput, match="policy: expected a Policy, the path of a rules file or a dictionary, got "):
        make(policy)


@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy),
])  # fmt: skip
def test_a_limit_is_no_policy(make):
    with pytest.raises(InvalidInput) as caught:
        make("5/minute")
    assert str(caught.value) == (
        "policy: expected the path of a rules file, got the limit '5/minute'. Write limit='5/minute'."
    )
    with pytest.raises(InvalidRules, match=r"^cannot read 5\.toml: no such file or directory\.$"):
        make("5.toml")


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("aiohttp.py", "aiohttp", "aiohttp"),
        ("django/__init__.py", "django.conf", "django"),
        ("django/__init__.py", "asgiref.sync", "django"),
        ("drf.py", "rest_framework.exceptions", "drf"),
        ("fastapi.py", "fastapi", "fastapi"),
        ("flask.py", "flask", "flask"),
        ("grpc.py", "grpc", "grpc"),
    ],
)
def test_an_adapter_without_its_framework_names_the_extra(adapter, package, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        run_path(str(Path(ratekeeper.adapters.__path__[0], adapter)))
    assert str(caught.value).partition(": ")[2] == (
        f"expected {package.partition('.')[0]} to be installed. Run: pip install 'ratekeeper[{extra}]'"
    )


def test_a_framework_that_lacks_something_itself_says_so():
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"), framework("adapter"):
        importlib.import_module("no_such_module")


def test_a_limit_alone_is_a_policy():
    store = MemoryStore()
    for limit in ("2/minute", Limit("2/minute"), ["2/minute", Limit("50/day")]):
        policy = policy_of(None, limit=limit)
        assert [policy.check(Request(peer="192.0.2.1")).allowed for _ in range(3)] == [True, True, False]
        assert policy.check(Request(peer="192.0.2.2")).allowed
    assert policy_of(None, limit="2/minute", store=store).store is store


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"limit": "2/minute", "policy": {"rules": []}},
            "limit: expected a limit or a policy, got both. Write the limit as a rule of the policy.",
        ),
        (
            {"store": "memory://", "policy": {"rules": []}},
            "store: expected a limit beside it, got none. The store of a policy is named in its rules.",
        ),
        (
            {"policy": None},
            "policy: expected a Policy, the path of a rules file or a dictionary, got None. "
            "For one limit, write for example limit='100/minute'.",
        ),
    ],
)
def test_a_limit_and_a_policy_exclude_each_other(given, message):
    with pytest.raises(InvalidInput) as caught:
        policy_of(given.pop("policy", None), **given)
    assert str(caught.value) == message


def asgi_app():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    limited = RateLimitMiddleware(app, limit="2/minute")
    return [TestClient(limited).get("/").status_code for _ in range(3)]


def wsgi_app():
    def app(environ, start_response):
        start_response("200 OK", [])
        return [b"ok"]

    limited = WsgiMiddleware(app, limit="2/minute")
    return [WerkzeugClient(limited).get("/").status_code for _ in range(3)]


def flask_app():
    app = Flask("app")
    RateLimiter(app, limit="2/minute")
    app.get("/")(lambda: "ok")
    return [app.test_client().get("/").status_code for _ in range(3)]


def django_app():
    urls = ModuleType("urls")
    urls.urlpatterns = [path("", lambda request: HttpResponse("ok"))]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[OURS], RATEKEEPER={"LIMIT": "2/minute"}):
        return [Client().get("/").status_code for _ in range(3)]


def aiohttp_app():
    async def main():
        app = web.Application()
        setup(app, limit="2/minute")

        async def home(request):
            return web.Response(text="ok")

        app.router.add_get("/", home)
        async with AiohttpClient(TestServer(app)) as client:
            return [(await client.get("/")).status for _ in range(3)]

    return asyncio.run(main())


@pytest.mark.parametrize("statuses", [asgi_app, wsgi_app, flask_app, django_app, aiohttp_app])
def test_one_line_limits_an_application_in_every_framework(statuses):
    assert statuses() == [200, 200, 429]


def test_one_line_limits_a_grpc_server():
    for kind in (RateLimitInterceptor, AsyncRateLimitInterceptor):
        assert [str(rule.limits[""]) for rule in kind(limit="2/minute").policy.rules] == ["2/minute"]


KNOWN = "expected one of policy, facts, limit, store, exempt_when, on_breach"


@pytest.mark.parametrize("kind", [RateLimitMiddleware, WsgiMiddleware, RateLimiter])
@pytest.mark.parametrize("word", [*OTHER_WORDS, "plicy"])
def test_words_of_other_libraries_are_taught(kind, word):
    with pytest.raises(InvalidInput) as raised:
        kind(Flask("app"), **{word: "5/minute"})
    advice = f"Write {OTHER_WORDS[word]}." if word in OTHER_WORDS else "Did you mean 'policy'?"
    assert str(raised.value) == f"{kind.__name__}: {KNOWN}, got {word!r}. {advice}"


def test_flasks_extension_wants_the_application_first():
    app = Flask("app")
    advice = "Write RateLimiter(app). Clients are counted by address; by= beside a limit counts them otherwise."
    with pytest.raises(InvalidInput) as raised:
        RateLimiter("address", app=app)
    expected = f"RateLimiter: expected the application first, got 'address' before app=. {advice}"
    assert str(raised.value) == expected
    with pytest.raises(InvalidInput) as raised:
        RateLimiter("address")
    assert str(raised.value) == f"RateLimiter: expected a Flask application first, got 'address'. {advice}"


def test_several_limits_in_the_place_of_a_file_are_taught():
    with pytest.raises(InvalidInput) as raised:
        policy_of("5/minute;10/hour")
    assert str(raised.value) == (
        "policy: expected the path of a rules file, got the limit '5/minute;10/hour'. "
        "Write limit=['5/minute', '10/hour']."
    )

"""The migration guides: one application with the other library and with ratekeeper answers the same requests alike.

Each pair of applications is written as the guide says.  What differs is in the guide's section "What changes", and here
in the assertions after the comparison.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from flask import Blueprint, Flask, request

from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from tests.adapters import django_site  # noqa: F401 - Django's settings

PROMISED = ("x-ratelimit-limit", "x-ratelimit-remaining")


@pytest.fixture(autouse=True)
def still(frozen_limits):
    """Our limits on a clock that stands still; theirs have minutes, and the tests take less than a second."""
    return frozen_limits


DEFAULT = {
    "name": "default",
    "match": ["/**", *[f"!/{path}" for path in ["search", "both", "mine", "one", "two", "export", "busy", "health"]]],
    "by": ["route", "ip"],
    "limit": "4/minute",
    "algorithm": "fixed_window",
}


def user_of(request):
    return request.headers.get("X-User") or "nobody"


def slowapi_shop():
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.middleware import SlowAPIMiddleware
    from slowapi.util import get_remote_address
    from starlette.responses import PlainTextResponse

    limiter = Limiter(key_func=get_remote_address, default_limits=["4/minute"], headers_enabled=True)
    app = FastAPI()
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
    app.add_middleware(SlowAPIMiddleware)

    @app.get("/search")
    @limiter.limit("2/minute")
    async def search(request: Request):
        return PlainTextResponse("ok")

    @app.get("/both")
    @limiter.limit("5/minute;3/hour")
    async def both(request: Request):
        return PlainTextResponse("ok")

    @app.get("/mine")
    @limiter.limit("1/minute", key_func=user_of)
    async def mine(request: Request):
        return PlainTextResponse("ok")

    @app.get("/one")
    @limiter.shared_limit("3/minute", scope="pair")
    async def one(request: Request):
        return PlainTextResponse("ok")

    @app.get("/two")
    @limiter.shared_limit("3/minute", scope="pair")
    async def two(request: Request):
        return PlainTextResponse("ok")

    @app.get("/export")
    @limiter.limit("10/minute", cost=4)
    async def export(request: Request):
        return PlainTextResponse("ok")

    @app.get("/busy")
    @limiter.limit("6/minute")
    async def busy(request: Request):
        return PlainTextResponse("ok")

    @app.get("/plain")
    async def plain(request: Request):
        return PlainTextResponse("ok")

    @app.get("/other")
    async def other(request: Request):
        return PlainTextResponse("ok")

    @app.get("/health")
    @limiter.exempt
    async def health(request: Request):
        return PlainTextResponse("ok")

    return TestClient(app)


def fastapi_shop():
    from starlette.responses import PlainTextResponse

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy={"rules": [DEFAULT]})

    def limited(limit, **words):
        return [Depends(RateLimit(limit, algorithm="fixed_window", **words))]

    @app.get("/search", dependencies=limited("2/minute"))
    async def search():
        return PlainTextResponse("ok")

    @app.get("/both", dependencies=limited(["5/minute", "3/hour"]))
    async def both():
        return PlainTextResponse("ok")

    @app.get("/mine", dependencies=limited("1/minute", by=user_of))
    async def mine():
        return PlainTextResponse("ok")

    @app.get("/one", dependencies=limited("3/minute", name="pair"))
    async def one():
        return PlainTextResponse("ok")

    @app.get("/two", dependencies=limited("3/minute", name="pair"))
    async def two():
        return PlainTextResponse("ok")

    @app.get("/export", dependencies=limited("10/minute", cost=4))
    async def export():
        return PlainTextResponse("ok")

    @app.get("/busy", dependencies=limited("6/minute"))
    async def busy():
        return PlainTextResponse("ok")

    @app.get("/plain")
    async def plain():
        return PlainTextResponse("ok")

    @app.get("/other")
    async def other():
        return PlainTextResponse("ok")

    @app.get("/health")
    async def health():
        return PlainTextResponse("ok")

    return TestClient(app)


def flask_limiter_shop():
    from flask_limiter import Limiter
    from flask_limiter.util import get_remote_address

    app = Flask("theirs")
    limiter = Limiter(
        get_remote_address, app=app, default_limits=["4/minute"], storage_uri="memory://", headers_enabled=True
    )

    @app.get("/search")
    @limiter.limit("2/minute")
    def search():
        return "ok"

    @app.get("/both")
    @limiter.limit("5/minute;3/hour")
    def both():
        return "ok"

    @app.get("/mine")
    @limiter.limit("1/minute", key_func=lambda: user_of(request))
    def mine():
        return "ok"

    pair = limiter.shared_limit("3/minute", scope="pair")
    app.get("/one")(pair(named("one")))
    app.get("/two")(pair(named("two")))

    @app.get("/export")
    @limiter.limit("10/minute", cost=4)
    def export():
        return "ok"

    app.get("/busy")(limiter.limit("6/minute")(named("busy")))
    app.get("/plain")(named("plain"))
    app.get("/other")(named("other"))
    app.get("/health")(limiter.exempt(named("health")))
    admin = Blueprint("admin", "theirs")
    admin.get("/admin")(named("index"))
    limiter.limit("2/hour")(admin)
    app.register_blueprint(admin)
    return app.test_client()


def flask_shop():
    app = Flask("ours")
    limiter = RateLimiter(app, policy={"rules": [DEFAULT]})

    @app.get("/search")
    @limiter.limit("2/minute", algorithm="fixed_window")
    def search():
        return "ok"

    @app.get("/both")
    @limiter.limit(["5/minute", "3/hour"], algorithm="fixed_window")
    def both():
        return "ok"

    @app.get("/mine")
    @limiter.limit("1/minute", by=lambda: user_of(request), algorithm="fixed_window")
    def mine():
        return "ok"

    pair = limiter.limit("3/minute", name="pair", algorithm="fixed_window")
    app.get("/one")(pair(named("one")))
    app.get("/two")(pair(named("two")))

    @app.get("/export")
    @limiter.limit("10/minute", cost=4, algorithm="fixed_window")
    def export():
        return "ok"

    app.get("/busy")(limiter.limit("6/minute", algorithm="fixed_window")(named("busy")))
    app.get("/plain")(named("plain"))
    app.get("/other")(named("other"))
    app.get("/health")(limiter.exempt(named("health")))
    admin = Blueprint("admin", "ours")
    admin.get("/admin")(named("index"))
    limiter.limit("2/hour", algorithm="fixed_window")(admin)
    app.register_blueprint(admin)
    return app.test_client()


def named(name):
    def view(*request):
        if request:
            from django.http import HttpResponse

            return HttpResponse("ok")
        return "ok"

    view.__name__ = view.__qualname__ = name
    return view


WALK = [
    *["/search"] * 4,
    *["/both"] * 5,
    ("/mine", "ann"),
    ("/mine", "ann"),
    ("/mine", "bob"),
    "/mine",
    "/mine",
    *["/one", "/two"] * 3,
    *["/export"] * 4,
    *["/busy"] * 7,
    *["/plain"] * 6,
    *["/other"] * 5,
    *["/health"] * 8,
]


def ask(client, walk):
    answers = []
    for step in walk:
        path, user = step if isinstance(step, tuple) else (step, None)
        answers.append((step, client.get(path, headers={"X-User": user} if user else {})))
    return answers


def compare(theirs, ours, walk, refused=429):
    """Compare statuses, and return the promised headers that differ: (step, header, theirs, ours)."""
    unequal = []
    for (step, before), (_, after) in zip(ask(theirs, walk), ask(ours, walk), strict=True):
        assert (before.status_code == refused) == (after.status_code == 429), step
        assert before.status_code in (200, refused), step
        assert after.status_code in (200, 429), step
        assert ("retry-after" in after.headers) == (after.status_code == 429)
        pairs = [(name, before.headers.get(name), after.headers.get(name)) for name in PROMISED]
        unequal += [(step, *pair) for pair in pairs if pair[1] != pair[2]]
    return unequal


# "What changes" of both guides: the headers are about the limit that is closest to refusing, and a refused call with a
# cost leaves what it found.
CHANGES = [
    *[("/both", "x-ratelimit-limit", "5", "3"), ("/both", "x-ratelimit-remaining", "4", "2")],
    *[("/both", "x-ratelimit-limit", "5", "3"), ("/both", "x-ratelimit-remaining", "3", "1")],
    *[("/both", "x-ratelimit-limit", "5", "3"), ("/both", "x-ratelimit-remaining", "2", "0")],
    *[("/export", "x-ratelimit-remaining", "0", "2")] * 2,
]


def test_slowapi():
    theirs, ours = slowapi_shop(), fastapi_shop()
    assert compare(theirs, ours, WALK) == CHANGES
    assert theirs.get("/search").json() == {"error": "Rate limit exceeded: 2 per 1 minute"}
    assert set(ours.get("/search").json()) == {"detail"}
    assert ours.get("/plain").json()["retry_after"] == 60


def test_flask_limiter():
    theirs, ours = flask_limiter_shop(), flask_shop()
    assert compare(theirs, ours, [*WALK, *["/admin"] * 3]) == CHANGES
    assert theirs.get("/search").content_type == "text/html; charset=utf-8"
    assert ours.get("/search").content_type == "application/json"


def django_ratelimit_shop():
    from django_ratelimit.decorators import ratelimit

    return DjangoClient(
        "theirs",
        {
            "search": ratelimit(key="ip", rate="2/m")(named("search")),
            "mine": ratelimit(key="header:x-user", rate="1/m")(named("mine")),
            "account": ratelimit(key="user_or_ip", rate="1/m")(named("account")),
            "find": ratelimit(key="get:q", rate="1/m")(named("find")),
            "one": ratelimit(key="ip", rate="3/m", group="pair")(named("one")),
            "two": ratelimit(key="ip", rate="3/m", group="pair")(named("two")),
            "tight": ratelimit(key="ip", rate="5/m")(ratelimit(key="ip", rate="3/h")(named("tight"))),
            "named": ratelimit(key=lambda group, request: user_of(request), rate="1/m")(named("named")),
        },
    )


def django_shop():
    from ratekeeper.adapters.django import rate_limit

    def limit(text, **words):
        return rate_limit(text, algorithm="fixed_window", **words)

    return DjangoClient(
        "ours",
        {
            "search": limit("2/minute")(named("search")),
            "mine": limit("1/minute", by="header:X-User")(named("mine")),
            "account": limit("1/minute", by="user")(named("account")),
            "find": limit("1/minute", by="query:q")(named("find")),
            "one": limit("3/minute", name="pair")(named("one")),
            "two": limit("3/minute", name="pair")(named("two")),
            "tight": limit(["5/minute", "3/hour"])(named("tight")),
            "named": limit("1/minute", by=user_of)(named("named")),
        },
    )


class DjangoClient:
    def __init__(self, name, views):
        from django.test import Client
        from django.urls import path

        self.urls = ModuleType(f"migration_{name}")
        self.urls.urlpatterns = [path(address, view) for address, view in views.items()]
        sys.modules[self.urls.__name__] = self.urls
        self.client = Client()

    def get(self, path, headers):
        from django.test import override_settings

        middleware = ["tests.adapters.django_site.authentication"]
        with override_settings(ROOT_URLCONF=self.urls.__name__, MIDDLEWARE=middleware):
            return self.client.get(path, headers=headers)


def test_django_ratelimit(monkeypatch):
    from django.core.cache import cache

    monkeypatch.setattr("django_ratelimit.core.time", SimpleNamespace(time=lambda: 1_800_000_000.0))
    cache.clear()
    walk = [
        *["/search"] * 4, ("/mine", "ann"), ("/mine", "ann"), ("/mine", "bob"), "/mine", "/mine", "/account",
        "/account", ("/account", "ann"), ("/account", "ann"), ("/account", "bob"), "/find?q=a", "/find?q=a",
        "/find?q=b", *["/one", "/two"] * 3, *["/tight"] * 5, "/named", "/named", ("/named", "ann"),
    ]  # fmt: skip
    theirs, ours = django_ratelimit_shop(), django_shop()
    unequal = compare(theirs, ours, walk, refused=403)
    assert {before for _, _, before, _ in unequal} == {None}  # django-ratelimit sends no headers
    assert "x-ratelimit-limit" in ours.get("/search", {}).headers

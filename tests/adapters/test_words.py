"""The words beside a limit on a route, in every framework: computed limits, exempt_when, count_when, on_breach."""

import asyncio
import json

import pytest
from aiohttp import web
from django.http import HttpResponse
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from flask import Flask
from rest_framework.response import Response as RestResponse

from ratekeeper import AsyncLimiter, InvalidInput, Limiter, LimitExceeded
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit, answer_limit_exceeded
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.route_limit import OTHER_NAMES, RouteLimit
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from tests.adapters.frameworks import FRAMEWORKS, limited, plain_wsgi


@pytest.fixture
def send():
    """Make an application, and close it after the test."""
    opened = []

    def make(*args, **words):
        opened.append(limited(*args, **words))
        return opened[-1]

    yield make
    for each in reversed(opened):  # Django restores its settings in this order
        getattr(each, "close", int)()


def ok(get):
    return 200


def has_failed(response):
    return (response.status if isinstance(response, web.Response) else response.status_code) == 401


def wanted(get):
    return int(get("X-Status") or 200)


def statuses(app, *headers):
    return [app(**each)[0] for each in headers]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_limit_is_computed_for_each_request_and_keeps_what_was_used(send, framework):
    app = send(framework, lambda get: f"{get('X-Plan')}/minute", ok, algorithm="fixed_window")
    plans = [{"X-Plan": plan} for plan in ("2", "2", "2", "3", "3", "2")]
    assert statuses(app, *plans) == [200, 200, 429, 200, 429, 429]
    assert app(**{"X-Plan": "9"})[1]["x-ratelimit-limit"] == "9"


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_exempt_when_exempts_a_request(send, framework):
    app = send(framework, "1/minute", ok, exempt_when=lambda get: get("X-Internal") == "yes")
    inside = {"X-Internal": "yes"}
    assert statuses(app, inside, inside, {}, {}, inside) == [200, 200, 200, 429, 200]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("count_when", ["status >= 400", "function"])
def test_only_failed_logins_count(send, framework, count_when):
    if count_when == "function":
        count_when = has_failed
    app = send(framework, "2/minute", wanted, count_when=count_when)
    asked = [{"X-Status": status} for status in ("200", "401", "200", "200", "401", "200")]
    answers = [app(**each) for each in asked]
    assert [answer[0] for answer in answers] == [200, 401, 200, 200, 401, 429]
    assert [answer[1]["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "1", "1", "0", "0"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_handler_that_fails_has_answered_500(send, framework):
    def fails(get):
        if get("X-Status") == "500":
            raise RuntimeError("a fault of the application")
        return 200

    app = send(framework, "1/minute", fails, count_when="status == 401")
    assert statuses(app, {"X-Status": "500"}, {"X-Status": "500"}, {}) == [500, 500, 200]
    app = send(framework, "1/minute", fails, count_when="status >= 400")
    assert statuses(app, {}, {"X-Status": "500"}, {"X-Status": "500"}) == [200, 500, 429]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_on_breach_is_called_with_the_verdict(send, framework):
    seen = []
    app = send(framework, "1/minute", ok, on_breach=lambda verdict: seen.append(verdict.status))
    assert statuses(app, {}, {}, {}) == [200, 429, 429]
    assert seen == [429, 429]


@pytest.mark.parametrize(
    ("framework", "answer"),
    [
        ("flask", lambda verdict: ("slow down", 418)),
        ("django", lambda verdict: HttpResponse("slow down", status=418)),
        ("django-async", lambda verdict: HttpResponse("slow down", status=418)),
        ("aiohttp", lambda verdict: web.Response(text="slow down", status=418)),
        ("fastapi", lambda verdict: PlainTextResponse("slow down", 418)),
        ("drf", lambda verdict: RestResponse({"detail": "slow down"}, 418)),
    ],
)
def test_what_on_breach_returns_answers_the_request(send, framework, answer):
    app = send(framework, "1/minute", ok, on_breach=answer)
    app()
    status, headers, body = app()
    assert (status, body.removeprefix(b'{"detail":"').removesuffix(b'"}')) == (418, b"slow down")
    assert headers["retry-after"] == "60"


def test_on_breach_of_fastapi_may_raise_and_answers_only_behind_the_middleware(send):
    def teapot(verdict):
        raise HTTPException(418, "slow down")

    app = send("fastapi", "1/minute", ok, on_breach=teapot)
    assert statuses(app, {}, {}) == [200, 418]
    client = TestClient(app_of(RateLimit("1/minute", on_breach=lambda verdict: "slow down")))
    client.get("/")
    with pytest.raises(InvalidInput) as raised:
        client.get("/")
    assert str(raised.value) == (
        "on_breach: expected None, as a dependency alone cannot answer a request, got a value. Raise an HTTPException, "
        "or write app.add_middleware(RateLimitMiddleware, policy={'rules': []})."
    )


def app_of(limit):
    app = FastAPI()

    @app.get("/", dependencies=[Depends(limit)])
    async def home(): ...

    return app


def test_count_when_needs_the_middleware_in_fastapi():
    client = TestClient(app_of(RateLimit("1/minute", count_when="status >= 400")))
    with pytest.raises(InvalidInput) as raised:
        client.get("/")
    assert str(raised.value) == (
        "RateLimit: expected RateLimitMiddleware in front of the application, as nothing else sees the response that "
        "count_when asks about. Write app.add_middleware(RateLimitMiddleware, policy={'rules': []})."
    )


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_cost_of_0_only_looks_and_limits_of_0_refuse(send, framework):
    app = send(framework, "2/minute", ok, cost=lambda get: int(get("X-Cost") or 1))
    answers = [app(**{"X-Cost": cost}) for cost in ("0", "1", "0", "1", "1", "0")]
    assert [answer[0] for answer in answers] == [200, 200, 200, 200, 429, 200]
    assert [answer[1]["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "1", "0", "0", "0"]
    assert statuses(send(framework, "0/minute", ok), {}, {}) == [429, 429]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_rules_of_the_policy_count_by_the_response_too(send, framework):
    policy = {"rules": [{"name": "failures", "limit": "2/minute", "count_when": "status == 401"}]}
    app = send(framework, "9/minute", wanted, policy=policy)
    asked = [{"X-Status": status} for status in ("200", "401", "200", "401", "200")]
    assert statuses(app, *asked) == [200, 401, 200, 401, 429]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_header_names_are_the_applications_own(send, framework):
    names = {"limit": "X-Quota", "remaining": "X-Left", "reset_after": "X-Reset-In", "retry_after": "X-Wait"}
    app = send(framework, "2/minute", ok, policy={"response": {"headers": names}, "rules": []})
    answers = [app()[1] for _ in range(3)]
    assert [(each["x-quota"], each["x-left"], each["x-reset-in"]) for each in answers] == [
        ("2", "1", "30"), ("2", "0", "60"), ("2", "0", "60"),
    ]  # fmt: skip
    assert ["x-wait" in each for each in answers] == [False, False, True]
    assert all("x-ratelimit-limit" not in each and "ratelimit" not in each for each in answers)
    assert answers[2]["retry-after"] == answers[2]["x-wait"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_decorator_of_a_limiter_answers_429(send, framework):
    limiter = Limiter("1/minute", name="reports")

    @limiter.limit(key="all")
    def report():
        return 200

    app = send(framework, "9/minute", lambda get: report(), policy={"response": {"body": "json"}, "rules": []})
    assert app()[0] == 200
    status, headers, body = app()
    assert status == 429
    assert (headers["retry-after"], headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("60", "1", "0")
    assert headers["ratelimit-policy"] == '"reports";q=1;w=60'
    assert json.loads(body)["error"] == "rate_limited"
    assert headers.get_list("retry-after") == ["60"] if hasattr(headers, "get_list") else True


def test_the_decorator_of_a_limiter_answers_429_without_the_middleware():
    app = FastAPI()
    app.add_exception_handler(LimitExceeded, answer_limit_exceeded)
    limiter = AsyncLimiter(["5/minute", "1/hour"], name="reports")

    @app.get("/")
    @limiter.limit(key="all")
    async def home():
        return "ok"

    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    answer = client.get("/")
    assert answer.headers["retry-after"] == "3600"
    assert answer.headers["ratelimit-policy"] == '"reports-minute";q=5;w=60, "reports-hour";q=1;w=3600'
    assert answer.json()["limit"] == 1


def test_plain_asgi_and_wsgi_applications_answer_limit_exceeded_too():
    limiter = Limiter("1/minute")

    async def asgi(scope, receive, send):
        await asyncio.sleep(0)
        limiter.reserve("a").__enter__()

    client = TestClient(RateLimitMiddleware(asgi, limit="9/minute"), raise_server_exceptions=False)
    limiter.check("a")
    assert client.get("/").status_code == 429
    answered = []

    def fails(environ, start_response):
        raise LimitExceeded(limiter.check("a"))

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1"}
    app = WsgiMiddleware(fails, limit="9/minute")
    body = b"".join(app(environ, lambda status, headers: answered.append((status, dict(headers)))))
    assert answered[0][0] == "429 Too Many Requests"
    assert answered[0][1]["retry-after"] == "60"
    assert "ratelimit" not in answered[0][1]  # the error does not say which limit it was
    assert json.loads(body)["retry_after"] == 60


def test_wsgi_counts_by_the_response():
    app = WsgiMiddleware(
        plain_wsgi(wanted), {"rules": [{"name": "a", "limit": "1/minute", "count_when": "status >= 400"}]}
    )
    answers = []
    for status in ("200", "200", "404", "200"):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1", "HTTP_X_STATUS": status}
        list(app(environ, lambda status, headers: answers.append((status[:3], dict(headers)["x-ratelimit-remaining"]))))
    assert answers == [("200", "1"), ("200", "1"), ("404", "0"), ("429", "0")]


def test_a_limit_in_shadow_is_seen_and_refuses_nobody():
    app = Flask("app")
    limiter = RateLimiter(app)

    @app.get("/")
    @limiter.limit("1/minute", mode="shadow")
    def home():
        return str(limiter.verdict.limited)

    client = app.test_client()
    assert [client.get("/").text for _ in range(3)] == ["False", "True", "True"]


def test_request_filters_of_flask_exempt_from_every_limit():
    from flask import request

    app = Flask("app")
    limiter = RateLimiter(app, limit="1/minute")

    @limiter.request_filter
    def internal():
        return request.headers.get("X-Internal") == "yes"

    @app.get("/")
    @limiter.limit("1/minute")
    def home():
        return "ok"

    client = app.test_client()
    inside = {"X-Internal": "yes"}
    answers = [client.get("/", headers=headers).status_code for headers in (inside, inside, {}, {}, inside)]
    assert answers == [200, 200, 200, 429, 200]


@pytest.mark.parametrize("framework", ["flask", "django", "django-async", "aiohttp"])
@pytest.mark.parametrize("replaces", [False, True])
def test_a_limit_of_a_route_replaces_the_default_rules(send, framework, replaces):
    policy = {"rules": [{"name": "rest", "limit": "1/minute", "default": True}, {"name": "all", "limit": "4/minute"}]}
    app = send(framework, "3/minute", ok, policy=policy, replaces_default=replaces)
    assert statuses(app, *[{}] * 4) == ([200, 200, 200, 429] if replaces else [200, 429, 429, 429])


def test_a_limit_of_a_route_replaces_the_one_limit_of_an_application():
    app = Flask("app")
    limiter = RateLimiter(app, limit="1/minute")

    @app.get("/")
    @limiter.limit("3/minute", replaces_default=True)
    def home():
        return "ok"

    @app.get("/other")
    def other():
        return "ok"

    client = app.test_client()
    assert [client.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert [client.get("/other").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("word", OTHER_NAMES)
def test_words_of_other_libraries_are_taught(word):
    with pytest.raises(InvalidInput) as raised:
        RouteLimit("5/minute", **{word: True})
    assert str(raised.value) == f"limit: expected another word for {word!r}. Write {OTHER_NAMES[word]}."


@pytest.mark.parametrize("word", ["exempt_when", "on_breach"])
def test_what_must_be_a_function_is_one(word):
    with pytest.raises(InvalidInput) as raised:
        RouteLimit("5/minute", **{word: "yes"})
    assert str(raised.value) == f"limit: expected a function as {word}, got 'yes'."

"""Limits on a route: what they inherit from the application's policy, in every framework, and mistakes in them."""

import ast
import asyncio
import inspect
from pathlib import Path
from types import ModuleType
from typing import Annotated
from uuid import UUID

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient as AiohttpClient
from aiohttp.test_utils import TestServer
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Header
from fastapi.testclient import TestClient
from flask import Flask, request
from rest_framework.views import APIView

from ratekeeper import InvalidInput, Limit, MemoryStore, Policy
from ratekeeper.adapters import route_limit as route_limit_module
from ratekeeper.adapters.aiohttp import rate_limit, setup
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.django import rate_limit as django_limit
from ratekeeper.adapters.drf import RateLimitThrottle, route_limits
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from ratekeeper.rules.schema import RULE
from tests.adapters.django_site import OURS

SOURCES = (
    "one of ip, user, api_key, tier, route, host, method, all, header:NAME, cookie:NAME, query:NAME, jwt:NAME, "
    "app:NAME, function:NAME"
)
WORDS = (
    "one of name, match, default, host, by, limit, algorithm, window, timezone, cost, count_when, counts, scope, "
    "mode, enforce_percent, warn_at, grace, penalty, allow_from, exempt, on_store_error, max_delay, message, headers"
)
NO_LIMIT = (
    "limits: expected a limit such as '100/minute' or a list of limits, got 5. Write a period too, such as '5/minute'."
)
SERVER = {"SERVER_SOFTWARE": "gunicorn/23.0.0"}  # drops header names with underscores
PROXY = "127.0.0.1"
CLIENTS = [{"X-Forwarded-For": f"192.0.2.{number}"} for number in range(4)]


def through_fastapi(policy, headers, **words):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy=policy)

    @app.get("/", dependencies=[Depends(RateLimit("2/minute", **words))])
    async def home(): ...

    client = TestClient(app, client=(PROXY, 1))
    return [client.get("/", headers=each) for each in headers]


def through_flask(policy, headers, **words):
    app = Flask("app")
    limiter = RateLimiter(app, policy=policy)

    @app.get("/")
    @limiter.limit("2/minute", **words)
    def home():
        return "ok"

    return [app.test_client().get("/", headers=each, environ_overrides=SERVER) for each in headers]


def through_django(policy, headers, **words):
    urls = ModuleType("urls")
    urls.urlpatterns = [path("", django_limit("2/minute", **words)(lambda request: HttpResponse("ok")))]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[OURS], RATEKEEPER={"POLICY": policy}):
        return [Client(REMOTE_ADDR=PROXY).get("/", headers=each) for each in headers]


def through_drf(policy, headers, **words):
    route_limits.clear()

    class Throttle(RateLimitThrottle):
        limit = "2/minute"
        by = words.pop("by", "ip")

    class Home(APIView):
        throttle_classes = (Throttle,)

        def get(self, request):
            return HttpResponse("ok")

    urls = ModuleType("urls")
    urls.urlpatterns = [path("", Home.as_view())]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[OURS], RATEKEEPER={"POLICY": policy}):
        return [Client(REMOTE_ADDR=PROXY).get("/", headers=each) for each in headers]


def through_aiohttp(policy, headers, limit="2/minute", **words):
    async def main():
        @rate_limit(limit, **words)
        async def home(request):
            return web.Response(text="ok")

        app = web.Application()
        setup(app, policy=policy)
        app.router.add_get("/", home)
        async with AiohttpClient(TestServer(app)) as client:
            answers = [await client.get("/", headers=each) for each in headers]
        for answer in answers:
            answer.status_code = answer.status
        return answers

    return asyncio.run(main())


FRAMEWORKS = [through_fastapi, through_flask, through_django, through_drf, through_aiohttp]


def statuses(answers):
    return [answer.status_code for answer in answers]


@pytest.mark.parametrize("through", FRAMEWORKS)
def test_clients_of_one_load_balancer_are_counted_apart(through):
    policy = Policy.parse({"trusted_proxies": [PROXY], "rules": []})
    assert statuses(through(policy, CLIENTS)) == [200, 200, 200, 200]


@pytest.mark.parametrize("through", FRAMEWORKS)
def test_a_proxy_that_the_policy_does_not_trust_speaks_for_nobody(through):
    assert statuses(through(Policy.parse({"rules": []}), CLIENTS)) == [200, 200, 429, 429]


@pytest.mark.parametrize("through", FRAMEWORKS)
def test_identity_store_sinks_response_and_exemptions_are_inherited(through):
    store, events = MemoryStore(), []
    settings = {
        "trusted_proxies": [PROXY],
        "identity": {"user": "header:X-User"},
        "exempt": ["192.0.2.3"],
        "response": {"headers": ["draft-6"]},
        "rules": [],
    }
    users = [{"X-User": "ann"}, {"X-User": "bob"}, {"X-User": "ann"}, {"X-User": "ann"}, CLIENTS[3]]
    by = "header:X-User" if through in (through_django, through_drf) else "user"  # there, a user is Django's own
    first = through(Policy.parse(settings, store=store, sinks=[events.append]), users, by=by)
    assert statuses(first) == [200, 200, 200, 429, 200]
    assert [event.result for event in events if event.limits] == ["allowed", "allowed", "allowed", "refused"]
    assert "ratelimit-remaining" in first[0].headers
    assert "x-ratelimit-limit" not in first[0].headers
    assert "ratelimit-remaining" not in first[4].headers
    again = through(Policy.parse(settings, store=store), users, by=by)  # as another process would
    assert statuses(again) == [429, 200, 429, 429, 200]


@pytest.mark.parametrize("through", FRAMEWORKS)
def test_new_rules_and_sinks_reach_the_limit_too(through):
    events = []
    policy = Policy.parse({"rules": []})

    def trusting():
        yield {}
        policy.listen(events.append)
        yield {}
        policy.replace(Policy.parse({"trusted_proxies": [PROXY], "rules": []}).compiled.settings)
        yield from CLIENTS

    assert statuses(through(policy, trusting())) == [200, 200, 200, 200, 200, 200]
    assert len([event for event in events if event.limits]) == 5


class User:
    def __init__(self, number):
        self.id = number


ANN = UUID(int=42)
NAMES = [42, "42", b"42", ("42",), (42, "a"), ANN, str(ANN), None]
NOBODY = [User(1), {"id": 1}, 4.2, True, ["ann"], {"ann"}, (), b"", (User(1),)]


def who(headers):
    return (NAMES + NOBODY)[int(headers["X-Who"])]


def fastapi_subjects(headers):
    app = FastAPI()
    limits = {
        "request": RateLimit("1/minute", by=lambda request: who(request.headers)),
        "dependency": RateLimit("1/minute", by=fastapi_user),
    }
    for name, limit in limits.items():
        app.get(f"/{name}", dependencies=[Depends(limit)])(lambda: "ok")
    client = TestClient(app, raise_server_exceptions=False)
    both = [[client.get(f"/{name}", headers=each).status_code for each in headers] for name in limits]
    assert both[0] == both[1]
    return both[0]


async def fastapi_user(x_who: Annotated[str, Header()]):
    return who({"X-Who": x_who})


def fastapi_facts(headers):
    app = FastAPI()

    async def facts(scope):
        return {"user": who({"X-Who": dict(scope["headers"])[b"x-who"]})}

    policy = {"rules": [{"name": "all", "by": "app:user", "limit": "1/minute"}]}
    app.add_middleware(RateLimitMiddleware, policy=policy, facts=facts)
    app.get("/")(lambda: "ok")
    client = TestClient(app, raise_server_exceptions=False)
    return [client.get("/", headers=each).status_code for each in headers]


def flask_subjects(headers):
    app = Flask("app")
    limiter = RateLimiter(app, policy={"rules": []})
    app.get("/")(limiter.limit("1/minute", by=lambda: who(request.headers))(lambda: "ok"))
    return statuses([app.test_client().get("/", headers=each, environ_overrides=SERVER) for each in headers])


def django_subjects(headers):
    view = django_limit("1/minute", by=lambda request: who(request.headers))(lambda request: HttpResponse("ok"))
    return django_statuses(view, headers)


async def async_view(request):
    return HttpResponse("ok")


def async_django_subjects(headers):
    return django_statuses(django_limit("1/minute", by=lambda request: who(request.headers))(async_view), headers)


def drf_subjects(headers):
    route_limits.clear()

    class Throttle(RateLimitThrottle):
        limit = "1/minute"

        def subject(self, request, view):
            return who(request.headers)

    class Home(APIView):
        throttle_classes = (Throttle,)

        def get(self, request):
            return HttpResponse("ok")

    return django_statuses(Home.as_view(), headers)


def django_statuses(view, headers):
    urls = ModuleType("urls")
    urls.urlpatterns = [path("", view)]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[OURS], RATEKEEPER={"POLICY": None}):
        client = Client(raise_request_exception=False)
        return statuses([client.get("/", headers=each) for each in headers])


def aiohttp_subjects(headers):
    def by(request):
        return who(request.headers)

    return statuses(through_aiohttp({"rules": []}, headers, by=by, limit="1/minute"))


SUBJECTS = [
    fastapi_subjects, fastapi_facts, flask_subjects, django_subjects, async_django_subjects, drf_subjects,
    aiohttp_subjects,
]  # fmt: skip


@pytest.mark.parametrize("through", SUBJECTS)
def test_whatever_names_a_client_is_counted_by_itself(through):
    asked = [{"X-Who": str(number)} for number in range(len(NAMES))]
    assert through(asked) == [200] * len(NAMES)
    assert through(asked * 2) == [200] * len(NAMES) + [429] * len(NAMES)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("through", SUBJECTS)
def test_what_names_no_client_is_an_error_of_the_server_and_never_counted_by_address(through):
    asked = [{"X-Who": str(len(NAMES) + number)} for number in range(len(NOBODY))]
    nobody = [{"X-Who": str(NAMES.index(None))}] * 2
    assert through([*asked, *nobody, *asked]) == [500] * len(NOBODY) + [200, 429] + [500] * len(NOBODY)


def user(request):
    return "1"


def organisation(request):
    return "1"


def stacked_fastapi(policy, *limits, methods=("GET",)):
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy=policy)
    app.add_api_route(
        "/", lambda: "ok", methods=["GET", "POST"],
        dependencies=[Depends(RateLimit(limit, **words)) for limit, words in limits],
    )  # fmt: skip
    return [TestClient(app).request(method, "/") for method in methods]


def stacked_flask(policy, *limits, methods=("GET",)):
    app = Flask("app")
    limiter, view = RateLimiter(app, policy=policy), lambda: "ok"
    for limit, words in limits:
        by = words.get("by")
        view = limiter.limit(limit, **{**words, "by": without_argument(by) if callable(by) else by})(view)
    app.add_url_rule("/", view_func=view, endpoint="home", methods=["GET", "POST"])
    return [app.test_client().open("/", method=method) for method in methods]


def without_argument(function):
    def by():
        return function(None)

    by.__qualname__ = function.__qualname__
    return by


def stacked_django(policy, *limits, methods=("GET",)):
    def view(request):
        return HttpResponse("ok")

    for limit, words in limits:
        view = django_limit(limit, **words)(view)
    urls = ModuleType("urls")
    urls.urlpatterns = [path("", view)]
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[OURS], RATEKEEPER={"POLICY": policy}):
        return [Client().generic(method, "/") for method in methods]


def stacked_aiohttp(policy, *limits, methods=("GET",)):
    async def home(request):
        return web.Response(text="ok")

    async def main(handler=home):
        for limit, words in limits:
            handler = rate_limit(limit, **words)(handler)
        app = web.Application()
        setup(app, policy=policy)
        app.router.add_route("*", "/", handler)
        async with AiohttpClient(TestServer(app)) as client:
            answers = [await client.request(method, "/") for method in methods]
        for answer in answers:
            answer.status_code = answer.status
        return answers

    return asyncio.run(main())


STACKED = [stacked_fastapi, stacked_flask, stacked_django, stacked_aiohttp]


@pytest.mark.parametrize("through", STACKED)
@pytest.mark.parametrize(
    "words",
    [
        ({"by": user}, {"by": organisation}),
        ({"by": lambda request: "1"}, {"by": lambda request: "1"}),
        ({"by": "ip"}, {"by": "all"}),
        ({}, {}),
    ],
)
def test_two_limits_of_the_same_text_at_one_route_count_apart(through, words):
    policy = Policy.parse({"rules": []}, store=MemoryStore())
    answers = through(policy, *[("1/minute", each) for each in words], methods=["GET"] * 2)
    assert statuses(answers) == [200, 429]
    again = through(policy, *[("1/minute", each) for each in words])  # as another process would
    assert statuses(again) == [429]


@pytest.mark.parametrize("through", STACKED)
def test_limits_for_other_methods_count_apart(through):
    limits = [("1/minute", {"match": "GET"}), ("1/minute", {"match": "POST"})]
    answers = through({"rules": []}, *limits, methods=["GET", "POST", "GET", "POST"])
    assert statuses(answers) == [200, 200, 429, 429]


LONG = [f"{number + 1}/{unit} burst {number + 20}" for number, unit in enumerate(["second", "minute", "hour", "day"])]


@pytest.mark.parametrize("through", STACKED)
def test_a_long_limit_needs_no_name(through):
    answers = through({"rules": []}, (["1/minute", *LONG], {}), methods=["GET"] * 2)
    assert statuses(answers) == [200, 429]
    assert len(", ".join(LONG)) > 64


@pytest.mark.parametrize("through", STACKED)
def test_a_table_by_tier_inherits_the_tiers_of_the_application(through):
    limit = ({"free": "1/minute", "paid": "3/minute"}, {})
    for tier, expected in (("free", [200, 429, 429]), ("paid", [200, 200, 200])):
        policy = Policy.parse(
            {"tiers": {"from": "function:plan", "default": "free"}, "rules": []},
            functions={"plan": lambda request, tier=tier: tier},
        )
        assert statuses(through(policy, limit, methods=["GET"] * 3)) == expected


def test_a_table_by_tier_needs_the_default_tier_of_the_application():
    limit = RouteLimit({"fre": "1/minute", "paid": "3/minute"})
    with pytest.raises(InvalidInput) as caught:
        limit.policy(Policy.parse({"rules": []}))
    assert str(caught.value) == (
        "limit 'tiers': expected tiers in the application's policy, as the limit is a table by tier, got none. "
        "Add [tiers] with 'from' and 'default' to its rules."
    )
    with pytest.raises(InvalidInput) as caught:
        limit.policy(Policy.parse({"tiers": {"from": "app:tier", "default": "free"}, "rules": []}))
    assert str(caught.value) == (
        "limit 'tiers': expected a limit for the default tier 'free' too, got fre, paid. Did you mean 'fre'?"
    )


def test_what_happens_without_a_store_is_inherited_unless_the_limit_says_it():
    policy = Policy.parse({"on_store_error": "deny", "rules": []})
    for words, expected in (({}, "deny"), ({"on_store_error": "allow"}, "allow"), ({"settings": {}}, "local")):
        (rule,) = RouteLimit("1/minute", **words).policy(policy).rules
        assert rule.on_store_error == expected


def test_the_counters_of_a_named_limit_are_shared_and_have_its_name():
    assert RouteLimit("1/minute", name="api", by=user).space == "api"
    assert RouteLimit("1/minute").space == "1/minute"
    assert RouteLimit("1/minute", by=user).space == "1/minute by tests.adapters.test_route_limit.user"


def test_a_fact_named_subject_or_cost_is_the_applications_own():
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy={"rules": []}, facts=lambda scope: {"subject": "ann", "cost": 7})

    @app.get("/", dependencies=[Depends(RateLimit("1/minute", by="app:subject"))])
    async def home(): ...

    assert statuses([TestClient(app, client=(f"192.0.2.{n}", 1)).get("/") for n in (1, 2)]) == [200, 429]


def test_fastapi_without_a_middleware_counts_peers_or_inherits_from_a_policy():
    app = FastAPI()
    policy = Policy.parse({"trusted_proxies": [PROXY], "rules": []})

    @app.get("/peer", dependencies=[Depends(RateLimit("2/minute"))])
    async def peer(): ...

    @app.get("/client", dependencies=[Depends(RateLimit("2/minute", policy=policy))])
    async def client(): ...

    through = TestClient(app, client=(PROXY, 1))
    assert statuses([through.get("/peer", headers=each) for each in CLIENTS]) == [200, 200, 429, 429]
    assert statuses([through.get("/client", headers=each) for each in CLIENTS]) == [200, 200, 200, 200]


@pytest.mark.parametrize(("own", "expected"), [(None, [200] * 4), ({"rules": []}, [200, 200, 429, 429])])
def test_flask_without_a_policy_inherits_from_a_wsgi_middleware(own, expected):
    app = Flask("app")
    limiter = RateLimiter(app, policy=own)

    @app.get("/")
    @limiter.limit("2/minute")
    def home():
        return "ok"

    app.wsgi_app = WsgiMiddleware(app.wsgi_app, policy={"trusted_proxies": [PROXY], "rules": []})
    answers = [app.test_client().get("/", headers=each, environ_overrides=SERVER) for each in CLIENTS]
    assert statuses(answers) == expected


def test_fastapi_inherits_from_the_nearest_middleware():
    store = MemoryStore()
    trusting = Policy.parse({"trusted_proxies": [PROXY], "rules": [{"name": "near", "limit": "9/minute"}]}, store=store)
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy=trusting)
    app.add_middleware(RateLimitMiddleware, policy={"rules": [{"name": "far", "limit": "9/minute"}]})

    @app.get("/", dependencies=[Depends(RateLimit("2/minute", name="route"))])
    async def home(): ...

    through = TestClient(app, client=(PROXY, 1))
    answers = [through.get("/", headers=each) for each in CLIENTS]
    assert statuses(answers) == [200, 200, 200, 200]
    assert answers[0].headers.get_list("ratelimit-policy") == ['"far";q=9;w=60, "near";q=9;w=60, "route";q=2;w=60']
    answers = [through.get("/", headers=CLIENTS[0]) for _ in range(5)]
    assert statuses(answers) == [200, 429, 429, 429, 429]
    assert all(len(answer.headers.get_list("ratelimit")) == 1 for answer in answers)
    assert through.get("/none", headers=CLIENTS[1]).headers["x-ratelimit-remaining"] == "3"  # far: 5 admitted before


def test_what_an_inner_middleware_refuses_the_outer_one_gets_back():
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy={"rules": [{"name": "near", "limit": "1/minute"}]})
    app.add_middleware(RateLimitMiddleware, policy={"rules": [{"name": "far", "limit": "2/minute"}]})
    client = TestClient(app, client=(PROXY, 1))
    answers = [client.get("/") for _ in range(5)]
    assert statuses(answers) == [404, 429, 429, 429, 429]
    assert {answer.headers["ratelimit"].partition(";")[0] for answer in answers[1:]} == {'"near"'}
    assert all(len(answer.headers.get_list("ratelimit-policy")) == 1 for answer in answers)


def test_fastapi_store_and_settings_replace_what_it_would_inherit():
    trusting = {"trusted_proxies": [PROXY], "rules": []}
    assert statuses(through_fastapi(Policy.parse(trusting), CLIENTS, settings={})) == [200, 200, 429, 429]
    own, inherited = MemoryStore(), MemoryStore()
    policy = Policy.parse(trusting, store=inherited)
    same = [CLIENTS[0]] * 2
    assert statuses(through_fastapi(policy, same, store=own)) == [200, 200]
    assert statuses(through_fastapi(policy, same)) == [200, 200]
    assert statuses(through_fastapi(policy, CLIENTS, store=own)) == [429, 200, 200, 200]


def test_a_refusal_at_a_route_has_headers_though_the_application_answers_it():
    from fastapi.responses import PlainTextResponse

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, policy={"rules": [{"name": "all", "limit": "9/minute"}]})
    app.add_exception_handler(429, lambda request, error: PlainTextResponse("slow down", 429))

    @app.get("/", dependencies=[Depends(RateLimit("1/minute", name="route"))])
    async def home(): ...

    _, second = (TestClient(app).get("/") for _ in range(2))
    assert (second.status_code, second.text) == (429, "slow down")
    assert second.headers["content-type"].startswith("text/plain")
    assert second.headers["retry-after"] == "60"
    assert second.headers.get_list("ratelimit") == ['"route";r=0;t=60']


def test_a_rendered_body_is_for_the_middleware_and_fastapi_answers_with_the_message():
    rules = {"response": {"body": lambda verdict: ("text/html", b"<h1>no</h1>")}, "rules": []}
    answer = through_fastapi(Policy.parse(rules), [{}] * 3)[2]
    assert answer.json() == {"detail": "Too many requests. Try again in 30 seconds."}


def test_facts_of_the_middleware_reach_the_limit():
    app = FastAPI()
    policy = Policy.parse({"identity": {"user": "app:user"}, "rules": []})
    app.add_middleware(
        RateLimitMiddleware, policy=policy, facts=lambda scope: {"user": dict(scope["headers"])[b"x-session"].decode()}
    )

    @app.get("/", dependencies=[Depends(RateLimit("1/minute", by="user"))])
    async def home(): ...

    client = TestClient(app)
    assert statuses([client.get("/", headers={"X-Session": each}) for each in "aba"]) == [200, 200, 429]


@pytest.mark.parametrize("make", [RateLimit, RouteLimit])
@pytest.mark.parametrize(
    ("limit", "words", "message"),
    [
        (5, {}, NO_LIMIT),
        (None, {}, "limits: expected a limit such as '100/minute' or a list of limits, got None."),
        ([5], {}, "limit: expected text such as '100/minute' or a Limit, got 5 (int)."),
        ("5/minute", {"by": 5}, "limit '5/minute', by: expected text, got 5."),
        (
            "5/minute",
            {"by": "usr", "name": "all"},
            f"limit 'all', by: expected {SOURCES}, got 'usr'. Did you mean 'user'?",
        ),
        ("5/minute", {"graze": 5}, f"limit '5/minute': expected {WORDS}, got 'graze'. Did you mean 'grace'?"),
        (
            "5/minute",
            {"settings": {"trusted_proxies": 5}},
            "limit: trusted_proxies: expected a list of addresses and networks such as ['10.0.0.0/8'], got 5.",
        ),
        (
            "5/minute",
            {"by": "jwt"},
            f"limit '5/minute', by: expected {SOURCES}, got 'jwt'. A name is missing, as in 'jwt:sub'.",
        ),
        (
            "5/minute",
            {"by": "header:"},
            f"expected {SOURCES}, got 'header:'. A name is missing, as in 'header:X-Api-Key'.",
        ),
        ("5/minute", {"by": "usr"}, f"expected {SOURCES}, got 'usr'. Did you mean 'user'?"),
    ],
)
def test_what_is_no_limit_of_a_route_is_refused(make, limit, words, message):
    with pytest.raises(InvalidInput) as caught:
        make(limit, **words)
    assert str(caught.value).endswith(message)


@pytest.mark.parametrize("make", [RateLimit, RouteLimit, RateLimiter(Flask("app")).limit, rate_limit])
@pytest.mark.parametrize("word", ["key", "key_func", "identifier"])
def test_the_words_of_other_libraries_lead_to_by(make, word):
    with pytest.raises(InvalidInput) as caught:
        make("5/minute", **{word: print})
    assert str(caught.value) == (
        f"limit: expected 'by' to say which clients are counted apart, got {word!r}. Write by=, with a source such as "
        "'header:X-Api-Key' or a function."
    )


def test_a_limit_inherits_from_a_policy_and_nothing_else():
    with pytest.raises(InvalidInput) as caught:
        RateLimit("5/minute", policy="rules.toml")
    assert str(caught.value) == (
        "policy: expected the Policy that the limit inherits from, got 'rules.toml'. Use Policy.load first."
    )


def test_a_limit_of_a_route_may_be_a_value():
    (rule,) = RouteLimit(Limit(5, "minute", algorithm="sliding_log")).settings.rules
    assert rule.limits == {"": Limit("5/minute sliding_log")}
    (rule,) = RouteLimit([Limit(5, "minute"), "50/day"]).settings.rules
    assert str(rule.limits[""]) == "5/minute, 50/day"


def test_a_limit_on_one_route_is_no_default():
    with pytest.raises(InvalidInput) as raised:
        RouteLimit("5/minute", default=True)
    assert str(raised.value) == (
        "limit: expected a limit for this route, got default=True, which is for rules files and for FastAPI's "
        "RateLimit. Write a rule with default = true."
    )


def test_the_typed_words_of_a_limit_are_those_of_a_rule():
    tree = ast.parse(Path(route_limit_module.__file__).read_text())
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    fields = {each.target.id for each in classes["RuleWords"].body if isinstance(each, ast.AnnAssign)}
    apart = {"name", "by", "cost", "limit", "count_when", "counts", "default"}  # explicit, or not for a route
    assert fields == RULE["properties"].keys() - apart
    words = {each.target.id for each in classes["LimitWords"].body if isinstance(each, ast.AnnAssign)}
    explicit = inspect.signature(RouteLimit).parameters.keys() - {"limit", "space", "words"}
    assert words == explicit

"""The Django middleware, decorator and checks, through Django and its test clients, plain and async."""

import asyncio
from types import ModuleType

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View

from ratekeeper import InvalidInput, InvalidLimit, InvalidRules, Policy, Request
from ratekeeper.adapters.django import RateLimitMiddleware, exempt, rate_limit
from ratekeeper.testing import FakeClock
from tests.adapters.cases import CASES, HERE, THERE, Answer, rules, run
from tests.adapters.django_site import AUTHENTICATION, OURS
from tests.servers import closed_port


def site(policy=None, *views, middleware=(AUTHENTICATION, OURS), **setting):
    urls = ModuleType("urls")
    urls.urlpatterns = list(views)
    return override_settings(ROOT_URLCONF=urls, MIDDLEWARE=list(middleware), RATEKEEPER={"POLICY": policy, **setting})


def send_plain(method, where, peer=HERE, headers=()):
    return Client(REMOTE_ADDR=peer).generic(method, where, headers=dict(headers))


def send_async(method, where, peer=HERE, headers=()):
    class Here(AsyncClient):
        async def request(self, **scope):
            return await super().request(**scope, client=[peer, 0])

    return asyncio.run(Here().generic(method, where, headers=dict(headers)))


def statuses(*paths, send=send_plain, **more):
    return [send("GET", where, **more).status_code for where in paths]


def plain_answer(request, **_):
    if request.path == "/stream":
        return StreamingHttpResponse(iter([b"one", b"two", b"three"]), headers={"X-App": "yes"})
    return HttpResponse("ok", headers={"X-App": "yes"})


async def async_answer(request, **_):
    async def parts():
        for part in (b"one", b"two", b"three"):
            yield part

    if request.path == "/stream":
        return StreamingHttpResponse(parts(), headers={"X-App": "yes"})
    return HttpResponse("ok", headers={"X-App": "yes"})


async def gathered(response):
    return b"".join([part async for part in response.streaming_content])


def body_of(response):
    if not response.streaming:
        return response.content
    return asyncio.run(gathered(response)) if response.is_async else b"".join(response.streaming_content)


WAYS = [(send_plain, plain_answer), (send_async, async_answer), (send_async, plain_answer)]


@pytest.mark.parametrize(("send", "view"), WAYS, ids=["plain", "async", "plain view in async"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases(case, send, view):
    if case.name == "a stream passes untouched" and (send, view) == WAYS[2]:
        view = async_answer  # Django itself warns of a plain stream in an async server

    def client(policy):
        def answer(step):
            with site(policy, re_path("^.*$", view)):
                response = send(step.method, step.path, step.peer, step.headers)
                return Answer(response.status_code, [(k.lower(), v) for k, v in response.items()], body_of(response))

        return answer

    run(case, client)


@pytest.mark.parametrize("send", [send_plain, send_async])
def test_a_limit_at_a_view_counts_each_client_on_each_template(send):
    answer = plain_answer if send is send_plain else async_answer
    limited = rate_limit("1/minute")(answer)
    with site(None, path("a/<int:item>", limited), path("b", limited), path("in/", include([path("c", limited)]))):
        assert statuses("/a/1", "/a/2", "/b", "/b", "/in/c", "/in/c", send=send) == [200, 429, 200, 429, 200, 429]
        assert statuses("/a/1", peer=THERE, send=send) == [200]


@pytest.mark.parametrize("send", [send_plain, send_async])
@pytest.mark.parametrize("middleware", [(), (OURS,)])
def test_several_hold_together_and_tell_of_all_once(send, middleware):
    policy = Policy.parse(rules({"limit": "9/minute"}), clock=FakeClock(1000.0))
    answer = plain_answer if send is send_plain else async_answer
    view = rate_limit("5/minute")(rate_limit("2/hour")(answer))
    with site(policy, path("", view), middleware=middleware):
        answers = [send("GET", "/") for _ in range(6)]
        assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
        main = '"rule-0";q=9;w=60, ' if middleware else ""
        assert answers[0]["ratelimit-policy"] == main + '"5/minute";q=5;w=60, "2/hour";q=2;w=3600'
        assert answers[1]["ratelimit"] == '"2/hour";r=0;t=1800'
        assert answers[2]["ratelimit-policy"] == '"2/hour";q=2;w=3600'
        assert answers[2]["retry-after"] == "1800"
    if middleware:  # four refusals by the hour gave the others back what they had taken
        assert "7 of 9 left" in policy.explain(Request("GET", "/", HERE)).steps[0].text


@pytest.mark.parametrize("send", [send_plain, send_async])
def test_users_are_counted_by_name_and_others_by_address(send):
    answer = plain_answer if send is send_plain else async_answer
    policy = rules({"by": "user", "limit": "1/minute"}, identity={"user": "app:user"})
    for site_policy in (policy, None):
        view = answer if site_policy else rate_limit("1/minute", by="user")(answer)
        with site(site_policy, path("", view)):
            sent = [send("GET", "/", headers={"X-User": user}).status_code for user in ("1", "1", "2")]
            assert sent == [200, 429, 200]
            assert statuses("/", "/", send=send) == [200, 429]


async def known_async(request):
    return {"user": request.headers["X-Name"]}


def known_plain(request):
    return {"user": request.headers["X-Name"]}


@pytest.mark.parametrize(("send", "facts"), [(send_plain, known_plain), (send_async, known_async)])
def test_facts_of_the_settings(send, facts):
    policy = rules({"by": "app:user", "limit": "1/minute"})
    for given in (facts, f"{__name__}.{facts.__name__}"):
        if isinstance(given, str) and __name__ != "tests.adapters.test_django":
            continue
        with site(policy, path("", plain_answer), FACTS=given):
            assert [send("GET", "/", headers={"X-Name": name}).status_code for name in "aab"] == [200, 429, 200]


async def who_async(request):
    return request.GET.get("u")


@pytest.mark.parametrize("send", [send_plain, send_async])
def test_by_and_cost_are_functions_of_the_request(send):
    by = who_async if send is send_async else lambda request: request.GET.get("u")
    answer = plain_answer if send is send_plain else async_answer
    view = rate_limit("4/minute", by=by, cost=lambda request: int(request.GET.get("n", 1)))(answer)
    with site(None, path("", view)):
        answers = statuses("/?u=a&n=3", "/?u=a&n=2", "/?u=b&n=3", "/?n=3", "/?n=2", "/?n=-1", send=send)
        assert answers == [200, 429, 200, 200, 429, 400]


def test_exempt_views():
    class Health(View):
        @method_decorator(exempt)
        def dispatch(self, *args, **kwargs):
            return HttpResponse("fine")

    limited = exempt(rate_limit("2/minute")(plain_answer))
    urls = [path("", plain_answer), path("free", exempt(lambda request: HttpResponse("free"))), path("own", limited)]
    with site(rules({"limit": "1/minute"}), *urls, path("health", Health.as_view())):
        assert statuses("/", "/", "/free", "/free", "/health", "/health") == [200, 429, 200, 200, 200, 200]
        assert statuses("/own", "/own", "/own") == [200, 200, 200]
        assert statuses("/nowhere") == [429]


def test_the_first_request_finds_its_view_exempt(tmp_path, monkeypatch):
    """Django imports the URLs, and so decorates the views, when it first resolves one."""
    (tmp_path / "late_urls.py").write_text(
        "from django.http import HttpResponse\n"
        "from django.urls import path\n"
        "from ratekeeper.adapters.django import exempt\n"
        "urlpatterns = [path('free', exempt(lambda request: HttpResponse('free')))]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("ratekeeper.adapters.django.exempt_views", [])
    with site(rules({"limit": "1/minute"})), override_settings(ROOT_URLCONF="late_urls"):
        assert "X-RateLimit-Limit" not in send_plain("GET", "/free")


def test_class_based_views():
    @method_decorator(rate_limit("1/minute"), name="dispatch")
    class Items(View):
        def get(self, request):
            return HttpResponse("items")

    with site(None, path("items", Items.as_view())):
        assert statuses("/items", "/items") == [200, 429]


def test_routes_of_the_framework_are_keys_in_the_middleware_too():
    with site(
        rules({"by": ["route", "ip"], "limit": "1/minute"}), path("a/<int:n>", plain_answer), path("b", plain_answer)
    ):
        assert statuses("/a/1", "/a/2", "/b", "/b", "/nowhere", "/elsewhere") == [200, 429, 200, 429, 404, 429]


def test_vary_and_exposed_headers_are_added_to_and_not_replaced():
    def view(request):
        return HttpResponse("", headers={"Vary": "Cookie", "Access-Control-Expose-Headers": "X-Mine"})

    with site(rules({"limit": "9/minute"}, response={"cors": ["*"]}), path("", view)):
        answer = send_plain("GET", "/", headers={"Origin": "https://a.example"})
        assert answer["access-control-expose-headers"].startswith("X-Mine, Retry-After, ")
        assert answer["vary"] == "Cookie"


def test_the_policy_may_be_a_file(tmp_path):
    (tmp_path / "rules.toml").write_text('[[rules]]\nname = "all"\nlimit = "1/minute"\n')
    with site(tmp_path / "rules.toml", path("", plain_answer)):
        assert statuses("/", "/") == [200, 429]


def test_mistakes_surface_at_the_start():
    with pytest.raises(InvalidLimit):
        rate_limit("5/fortnight")
    message = "plain_answer: expected a plain function as by, got an async one. Nothing awaits it."
    with pytest.raises(InvalidInput, match=message):
        rate_limit("5/minute", by=who_async)(plain_answer)
    with site({"rules": [{"name": "x"}]}), pytest.raises(InvalidRules):
        RateLimitMiddleware(plain_answer)
    with override_settings():
        del settings.RATEKEEPER
        with pytest.raises(ImproperlyConfigured) as error:
            RateLimitMiddleware(plain_answer)
    assert str(error.value) == (
        'RATEKEEPER: expected a setting such as {"POLICY": BASE_DIR / "rules.toml"} beside the middleware, got none. '
        'If views alone have limits, write {"POLICY": None}.'
    )


def check_messages(deploy=False):
    messages = run_checks(include_deployment_checks=deploy)
    return [(message.id, message.msg) for message in messages if message.id.startswith("ratekeeper.")]


GOOD = rules({"limit": "1/minute"})
REAL = "django.contrib.auth.middleware.AuthenticationMiddleware"


def test_checks_of_a_good_site_are_silent():
    with site(GOOD, middleware=[REAL, OURS]):
        assert check_messages() == []


@pytest.mark.parametrize(
    ("setting", "middleware", "expected"),
    [
        ({"POLICY": {"rules": [{"name": "x", "limit": "0 concurrent"}]}}, [OURS], "ratekeeper.E001"),
        ({"POLICY": "nowhere.toml"}, [OURS], "ratekeeper.E001"),
        ({"POLICY": GOOD, "POLICIES": 1}, [OURS], "ratekeeper.E002"),
        ({"POLICY": GOOD, "FACTS": "nowhere.at_all"}, [OURS], "ratekeeper.E003"),
        ({"POLICY": GOOD, "FACTS": 5}, [OURS], "ratekeeper.E003"),
        ({"POLICY": GOOD, "EXEMPT_WHEN": "nowhere.at_all"}, [OURS], "ratekeeper.E003"),
        ({"POLICY": GOOD, "ON_BREACH": 5}, [OURS], "ratekeeper.E003"),
        ({"POLICY": rules({"by": "jwt:sub", "limit": "1/s"}, identity={"user": "jwt:sub"})}, [OURS], "ratekeeper.W001"),
        ({"POLICY": GOOD}, [], "ratekeeper.W002"),
        ({"POLICY": rules({"by": "app:user", "limit": "1/s"})}, [OURS], "ratekeeper.W003"),
        ({"POLICY": rules({"by": "app:user", "limit": "1/s"})}, [OURS, REAL], "ratekeeper.W003"),
    ],
)
def test_checks_find_what_is_wrong(setting, middleware, expected):
    with site(middleware=middleware), override_settings(RATEKEEPER=setting):
        assert expected in [number for number, _ in check_messages()]


def test_checks_know_of_proxies_and_processes():
    with site(GOOD, middleware=[OURS]), override_settings(SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https")):
        assert [number for number, _ in check_messages()] == ["ratekeeper.W004"]
    trusting = {**GOOD, "trusted_proxies": ["10.0.0.0/8"]}
    with site(trusting, middleware=[OURS]), override_settings(USE_X_FORWARDED_HOST=True):
        assert check_messages() == []
        assert check_messages(deploy=True) == [
            ("ratekeeper.W005", "Each process counts by itself: the store is memory://.")
        ]


def decorated(is_async):
    """A view that holds a place, and answers with the status of the same call made while it does."""
    if is_async:

        @rate_limit("1 concurrent", by="all")
        async def held(request):
            if "broken" in request.GET:
                raise OSError("broken")
            inner = (await AsyncClient().get("/")).status_code if "inner" in request.GET else ""
            return HttpResponse(str(inner))
    else:

        @rate_limit("1 concurrent", by="all")
        def held(request):
            if "broken" in request.GET:
                raise OSError("broken")
            return HttpResponse(str(Client().get("/").status_code) if "inner" in request.GET else "")

    return held


@pytest.mark.parametrize("middleware", [[OURS], []])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_decorated_view_holds_its_place_until_the_response_is_closed(middleware, is_async):
    send = send_async if is_async else send_plain
    with site(rules({"limit": "100/minute"}), path("", decorated(is_async)), middleware=middleware):
        for _ in range(2):
            answer = send("GET", "/?inner")
            assert (answer.status_code, answer.content) == (200, b"429")
        for _ in range(2):
            with pytest.raises(OSError, match="broken"):
                send("GET", "/?broken")
        assert send("GET", "/").status_code == 200


def test_checks_of_a_store_that_does_not_answer():
    with (
        closed_port() as port,
        site({"store": f"redis://127.0.0.1:{port}/0", "rules": [{"name": "a", "limit": "1/day"}]}),
    ):
        found = [check for check in run_checks() if check.id == "ratekeeper.W007"]
    assert found[0].msg.startswith(f"The store does not answer: redis://127.0.0.1:{port}")


def test_checks_of_identities_that_nothing_names_and_of_shadowed_rules():
    rules = [
        {"name": "a", "by": "user", "limit": "1/day"},
        {"name": "b", "by": "user", "match": "/x", "limit": "2/day"},
    ]
    with site({"rules": rules}, path("x", plain_answer)):
        found = [check.msg for check in run_checks() if check.id == "ratekeeper.W001"]
    assert [text.partition(",")[0].partition(":")[0] for text in found] == [
        "rule 'a' counts by 'user'", "rule 'b' counts by 'user'", "rule 'b' never refuses a request",
    ]  # fmt: skip

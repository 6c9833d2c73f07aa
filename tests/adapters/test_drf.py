"""The REST framework throttle, through its views and Django's test client."""

import random

import pytest
from django.core.cache import cache
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.urls import path
from rest_framework import throttling
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView

from ratekeeper import InvalidInput, Policy
from ratekeeper.adapters import drf
from ratekeeper.adapters.django.apps import check_throttles
from ratekeeper.adapters.drf import RateLimitThrottle, route_limits
from ratekeeper.testing import FakeClock
from tests import tier
from tests.adapters.cases import HERE, THERE, rules
from tests.adapters.django_site import OURS, user_of
from tests.adapters.test_django import site


@pytest.fixture(autouse=True)
def fresh():
    route_limits.clear()


class Named(BaseAuthentication):
    def authenticate(self, request):
        user = user_of(request)
        return (user, None) if user.is_authenticated else None


def view(*throttles, scope=None):
    class Answer(APIView):
        authentication_classes = (Named,)
        throttle_classes = throttles
        throttle_scope = scope

        def get(self, request, **_):
            return Response({"ok": True})

    return Answer.as_view()


def throttle(**attributes):
    return type("Own", (RateLimitThrottle,), attributes)


def empty(**settings):
    return Policy.parse({**settings, "rules": []}, clock=FakeClock(1000.0))


def get(where="/", peer=HERE, **headers):
    return Client(REMOTE_ADDR=peer).get(where, headers=headers)


def statuses(*users, where="/", **more):
    return [get(where, **({"X-User": user} if user else {}), **more).status_code for user in users]


def test_users_are_counted_by_name_and_others_by_address_in_all_views():
    limited = throttle(limit="1/minute")
    with site(empty(), path("a/<int:n>", view(limited)), path("b", view(limited))):
        assert statuses("ann", where="/a/1") == [200]
        assert statuses("ann", "bob", where="/b") == [429, 200]
        assert statuses("", "", where="/a/2") == [200, 429]
        assert statuses("", where="/b", peer=THERE) == [200]


def test_a_refusal_is_rest_frameworks_own_with_an_exact_wait():
    with site(empty(), path("", view(throttle(limit="2/minute")))):
        first, _, refused = get(), get(), get()
        assert (first["x-ratelimit-remaining"], first["ratelimit"].split(";")[1]) == ("1", "r=1")
        assert refused.status_code == 429
        assert refused["retry-after"] == "30"
        assert refused.json() == {"detail": "Request was throttled. Expected available in 30 seconds."}
        assert (refused["x-ratelimit-remaining"], refused["cache-control"]) == ("0", "no-store")


def test_without_the_middleware_there_is_still_a_retry_after():
    with site(empty(), path("", view(throttle(limit="1/minute"))), middleware=[]):
        assert get().status_code == 200
        assert get()["retry-after"] == "60"


def test_rates_of_scopes():
    with site(empty(), path("a", view(throttle(scope="burst"))), path("b", view(RateLimitThrottle, scope="burst"))):
        assert statuses("", "", "", where="/a") == [200, 200, 429]
        assert statuses("", "", "", where="/b") == [429] * 3  # one scope, one counter
    with site(empty(), path("", view(RateLimitThrottle, scope="none")), path("x", view(RateLimitThrottle))):
        assert statuses(*[""] * 5) == [200] * 5
        assert statuses(*[""] * 5, where="/x") == [200] * 5


def test_an_unknown_scope_says_so():
    message = "Own: expected DEFAULT_THROTTLE_RATES to name the scope 'bursts', got .*burst.* Did you mean 'burst'?"
    with site(empty(), path("", view(throttle(scope="bursts")))), pytest.raises(InvalidInput, match=message):
        get()


def test_several_hold_together():
    policy = empty()
    wide, narrow = throttle(limit="5/hour", scope="wide"), throttle(limit="1/minute", scope="narrow")
    with site(policy, path("", view(wide, narrow)), path("x", view(wide))):
        answers = [get() for _ in range(9)]
        assert [answer.status_code for answer in answers] == [200] + [429] * 8
        assert answers[0]["ratelimit-policy"] == '"wide";q=5;w=3600, "narrow";q=1;w=60'
        assert answers[1]["retry-after"] == "60"
        assert get("/x")["x-ratelimit-remaining"] == "3"  # eight refusals took nothing from the wide limit
    route_limits.clear()
    with site(empty(), path("", view(narrow, wide)), path("x", view(wide))):  # nor if the narrow limit is asked first
        assert [get().status_code for _ in range(3)] == [200, 429, 429]
        assert get("/x")["x-ratelimit-remaining"] == "3"


def test_subject_and_cost_are_methods():
    class Tenant(RateLimitThrottle):
        limit = "4/minute"

        def subject(self, request, view):
            return request.headers.get("X-Tenant")

        def cost_of(self, request, view):
            return int(request.query_params.get("n", 1))

    with site(empty(), path("", view(Tenant))):
        sent = [get("/?n=3", **{"X-Tenant": tenant}).status_code for tenant in "aab"]
        assert sent == [200, 429, 200]
        assert get("/?n=-1", **{"X-Tenant": "c"}).status_code == 400


def test_by_a_source_behind_a_proxy():
    with site(empty(trusted_proxies=["203.0.113.0/24"]), path("", view(throttle(limit="1/minute", by="ip")))):
        clients = ["192.0.2.1", "192.0.2.1", "192.0.2.2"]
        assert [get(**{"X-Forwarded-For": each}).status_code for each in clients] == [200, 429, 200]


def test_words_of_a_rule():
    limited = throttle(limit="1/minute", words={"allow_from": ["198.51.100.0/24"], "message": "Not here."})
    with site(empty(), path("", view(limited))):
        answer = get()
        assert (answer.status_code, answer.json(), "retry-after" in answer) == (403, {"detail": "Not here."}, False)
        assert statuses("", peer=THERE) == [200]


def test_the_middleware_and_a_throttle_are_told_as_one():
    policy = Policy.parse(rules({"limit": "9/minute"}))
    with site(policy, path("", view(throttle(limit="2/minute", scope="mine"))), middleware=[OURS]):
        assert get()["ratelimit-policy"] == '"rule-0";q=9;w=60, "mine";q=2;w=60'


def test_facts_of_the_settings_reach_rules_of_tiers():
    tiers = {"tiers": {"from": "app:tier", "default": "free"}, "rules": []}
    limited = throttle(limit={"free": "1/minute", "paid": "2/minute"}, words={"settings": tiers})
    with (
        site(None, path("", view(limited))),
        override_settings(
            RATEKEEPER={"POLICY": None, "FACTS": lambda request: {"tier": request.headers.get("X-Tier")}}
        ),
    ):
        assert [get(**{"X-Tier": "paid", "X-User": "a"}).status_code for _ in range(3)] == [200, 200, 429]
        assert [get(**{"X-User": "b"}).status_code for _ in range(2)] == [200, 429]


def test_a_throttle_holds_a_place_where_the_middleware_gives_it_back():
    limited = throttle(limit="1 concurrent")

    class Answer(APIView):
        throttle_classes = (limited,)

        def get(self, request):
            if "broken" in request.query_params:
                raise ValueError("broken")
            return Response({"inner": get().status_code} if "inner" in request.query_params else {})

    with site(empty(), path("", Answer.as_view()), middleware=[OURS]):
        assert [get("/?inner").json() for _ in range(2)] == [{"inner": 429}] * 2
        for _ in range(2):
            with pytest.raises(ValueError, match="broken"):
                get("/?broken")
        assert get().status_code == 200
    with site(empty(), path("", Answer.as_view()), middleware=[]), pytest.raises(ImproperlyConfigured) as caught:
        get()
    assert str(caught.value) == (
        "Own: expected the middleware of ratekeeper.adapters.django, as nothing else knows when a response is done "
        "and its place is free. Add it to MIDDLEWARE."
    )


def throttles_of(module, clock):
    """The same throttles, of REST framework or of ours: only the module that they are imported from differs."""

    class Burst(module.UserRateThrottle):
        rate = "3/min"

    class Anonymous(module.AnonRateThrottle):
        rate = "2/m"

    class Scoped(module.ScopedRateThrottle):
        pass

    class Tenant(module.SimpleRateThrottle):
        scope = "burst"

        def get_cache_key(self, request, view):
            return request.headers.get("X-Tenant")

    kinds = (Burst, Anonymous, Scoped, Tenant)
    for kind in kinds if module is throttling else ():
        kind.timer = staticmethod(lambda: clock.now)
    return kinds


def answers_of(module, seed):
    rng, clock = random.Random(seed), FakeClock(1_000_000.0)
    cache.clear()
    route_limits.clear()
    burst, anonymous, scoped, tenant = throttles_of(module, clock)
    urls = [
        path("burst", view(burst)),
        path("anonymous", view(anonymous)),
        path("scoped", view(scoped, scope="day")),
        path("unscoped", view(scoped)),
        path("tenant", view(tenant)),
        path("both", view(anonymous, burst)),
    ]
    answers = []
    with site(Policy.parse({"rules": []}, clock=clock), *urls):
        for _ in range(120):
            clock.advance(rng.choice([0, 0.25, 1, 7, 20]))
            where = rng.choice(["burst", "anonymous", "scoped", "unscoped", "tenant", "both"])
            headers = {"X-User": rng.choice(["ann", "bob"])} if rng.random() < 0.5 else {}
            headers |= {"X-Tenant": rng.choice(["a", "b"])} if rng.random() < 0.7 else {}
            answers.append((where, get(f"/{where}", peer=rng.choice([HERE, THERE]), **headers).status_code))
    return answers


@pytest.mark.parametrize("seed", range(tier.steps(5, 2)))
def test_one_changed_import_gives_the_answers_of_rest_framework(seed):
    theirs, ours = answers_of(throttling, seed), answers_of(drf, seed)
    # REST framework charges a request to the throttles before the one that refuses it; we charge it to none.
    ours_alone = [answer for answer in ours if answer[0] not in ("both", "burst", "anonymous")]
    assert ours_alone == [answer for answer in theirs if answer[0] not in ("both", "burst", "anonymous")]
    assert {status for _, status in ours} == {200, 429}
    with_one_throttle = [(where, status) for where, status in answers_without_both(throttling, seed)]
    assert answers_without_both(drf, seed) == with_one_throttle


def answers_without_both(module, seed):
    rng, clock = random.Random(seed), FakeClock(1_000_000.0)
    cache.clear()
    route_limits.clear()
    burst, anonymous, _, _ = throttles_of(module, clock)
    answers = []
    urls = [path("burst", view(burst)), path("anonymous", view(anonymous))]
    with site(Policy.parse({"rules": []}, clock=clock), *urls):
        for _ in range(80):
            clock.advance(rng.choice([0, 0.25, 1, 7, 20]))
            where, user = rng.choice(["burst", "anonymous"]), rng.choice(["ann", "bob", ""])
            answers.append((where, get(f"/{where}", **({"X-User": user} if user else {})).status_code))
    return answers


def test_a_throttle_without_a_limit_is_an_error():
    with site(empty(), path("", view(throttle()))), pytest.raises(ImproperlyConfigured) as caught:
        get()
    assert str(caught.value) == (
        "Own: expected a limit or a scope, got neither, so it would limit nothing. Set limit = '100/minute' or "
        "scope = 'NAME' on it, or use ScopedRateThrottle for views with a throttle_scope."
    )


def test_manage_py_check_finds_typos_of_scopes_and_bad_limits():
    class Typo(drf.UserRateThrottle):
        scope = "bursts"

    class Bad(drf.UserRateThrottle):
        rate = "5/fortnite"

    good = (drf.ScopedRateThrottle, throttle(limit="5/minute"), throttling.UserRateThrottle)
    urls = [path("a", view(Typo)), path("b", view(Bad)), path("c", view(drf.ScopedRateThrottle, scope="dya"))]
    with site(empty(), *urls, path("d", view(throttle())), path("e", view(*good)), path("f", lambda request: None)):
        errors = check_throttles()
    assert {error.id for error in errors} == {"ratekeeper.E004"}
    assert [str(error.msg).partition(", got")[0] for error in errors] == [
        "test_manage_py_check_finds_typos_of_scopes_and_bad_limits.<locals>.Typo: expected DEFAULT_THROTTLE_RATES to "
        "name the scope 'bursts'",
        "limit '5/fortnite': expected a unit of time (millisecond, second, minute, hour, day, week)",
        "ScopedRateThrottle: expected DEFAULT_THROTTLE_RATES to name the scope 'dya'",
        "Own: expected a limit or a scope",
    ]

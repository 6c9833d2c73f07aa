"""A client that learns a server's quota slows down before it is refused."""

import httpx

from ratekeeper import Limiter
from ratekeeper.outbound.response_limits import Quota
from ratekeeper.outbound.server_quota import ServerQuotas
from ratekeeper.testing import FakeClock
from tests.outbound.provider import URL, client


def test_a_client_slows_down_before_it_is_refused():
    """A server with a fixed window of 20 per 10 seconds: an eager client uses all of it and is never refused."""
    clock = FakeClock()
    window = Limiter("20 per 10 seconds", algorithm="fixed_window", clock=clock)
    refused, came = [], []

    def server(request):
        decision = window.check("k")
        came.append(clock.now)
        if not decision:
            refused.append(clock.now)
        return httpx.Response(
            200 if decision else 429,
            headers={
                "x-ratelimit-limit": "20",
                "x-ratelimit-remaining": str(decision.remaining),
                "x-ratelimit-reset": f"{decision.reset_after:.6f}",
            },
        )

    with client(server, clock) as session:
        while clock.now < 100:
            session.get(URL)
    assert not refused
    assert len(came) >= 190  # of 200 in ten windows


def test_what_is_learned_settles_at_the_rate_of_a_bucket():
    clock = FakeClock()
    bucket = Limiter("50/second", algorithm="token_bucket", clock=clock)
    answers = []

    def server(request):
        decision = bucket.check("k")
        answers.append(decision.allowed)
        left = decision.remaining
        fields = {"ratelimit-policy": '"b";q=50;w=1', "ratelimit": f'"b";r={left};t=1'}
        return httpx.Response(200 if decision else 429, headers=fields)

    with client(server, clock) as session:
        while clock.now < 20:
            session.get(URL)
    assert answers.count(False) == 0
    assert len(answers) >= 0.97 * 50 * 20


def test_only_quotas_that_count_requests_and_have_a_reset_are_learned(monkeypatch):
    monkeypatch.setattr("ratekeeper.outbound.server_quota.MOST_KEYS", 2)
    quotas = ServerQuotas()
    quotas.observe("a", [Quota("tokens", 0, 9.0, unit="tokens"), Quota("requests", 0)], 0)
    assert quotas.wait("a", 0) == 0
    for key in ("a", "b", "c"):  # the oldest of too many keys is forgotten
        quotas.observe(key, [Quota("requests", 0, 9.0)], 0)
    assert [quotas.wait(key, 0) for key in "abc"] == [0, 9_000_000, 9_000_000]

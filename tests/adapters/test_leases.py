"""Places that a request holds: refused while others hold them, and given back however a request ends."""

import asyncio

import pytest

from ratekeeper import Policy
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.route import RouteLimit
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from ratekeeper.errors import InvalidInput, InvalidRules
from ratekeeper.testing import FakeClock
from tests.adapters.cases import HERE, rules

RULES = rules({"limit": "2 concurrent"}, {"limit": "100/minute", "by": "all"})


def scope(path="/"):
    return {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "client": (HERE, 1)}


async def nothing():
    await asyncio.Event().wait()


def test_asgi_holds_a_place_while_the_application_runs():
    async def main():
        clock = FakeClock(start=1.0)
        policy = Policy.parse(RULES, clock=clock)
        go = asyncio.Event()
        sent = []

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            if scope["path"] == "/broken":
                raise OSError("broken")
            await go.wait()
            await send({"type": "http.response.body", "body": b"ok"})

        async def call(path="/"):
            told = []

            async def send(message):
                told.append(message)

            sent.append(told)
            await RateLimitMiddleware(app, policy)(scope(path), nothing, send)
            return told[0]["status"], dict(told[0]["headers"])

        with pytest.raises(OSError, match="broken"):
            await call("/broken")
        first, second = (asyncio.create_task(call()) for _ in range(2))
        for _ in range(5):
            await asyncio.sleep(0)
        status, headers = await call()
        assert status == 429
        assert headers[b"retry-after"] == b"1"  # a lease may come back at any moment
        assert headers[b"ratelimit"] == b'"rule-0";r=0;t=1'
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        third = asyncio.create_task(call())
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(sent[-1]) == 1
        go.set()
        assert [(await task)[0] for task in (first, third)] == [200, 200]
        assert [status for status, _ in await asyncio.gather(call(), call())] == [200, 200]

    asyncio.run(main())


def test_wsgi_holds_a_place_until_the_response_is_closed():
    policy = Policy.parse(RULES, clock=FakeClock(start=1.0))

    def app(environ, start_response):
        if environ["PATH_INFO"] == "/broken":
            raise OSError("broken")
        start_response("200 OK", [])
        return iter([b"one", b"two"])

    def call(path="/"):
        statuses = []
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "REMOTE_ADDR": HERE}
        return WsgiMiddleware(app, policy)(environ, lambda status, headers: statuses.append(status)), statuses

    with pytest.raises(OSError, match="broken"):
        call("/broken")
    (first, _), (second, _), (_, refused) = call(), call(), call()
    assert refused == ["429 Too Many Requests"]
    assert list(first) == [b"one", b"two"]
    assert call()[1] == ["429 Too Many Requests"]  # read to its end, but not closed
    first.close()
    assert call()[1] == ["200 OK"]
    second.close()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"limit": "2 concurrent", "mode": "shadow"},
         "rules: rules[0].mode (rule 'rule-0'): expected every request to be held by '2 concurrent', got 'shadow'. "
         "Enforce it, or take it out."),
        ({"limit": "2 concurrent", "counts": "messages"},
         "rules: rules[0].counts (rule 'rule-0'): expected 'requests' with '2 concurrent', got 'messages'. "
         "A message holds nothing."),
    ],
)  # fmt: skip
def test_rules_that_could_not_give_back_are_refused(rule, message):
    with pytest.raises(InvalidRules) as caught:
        Policy.parse(rules(rule))
    assert str(caught.value) == message


@pytest.mark.parametrize("make", [RouteLimit, RateLimit])
def test_a_limit_at_a_route_cannot_hold(make):
    with pytest.raises(InvalidInput) as caught:
        make("2 concurrent")
    assert str(caught.value) == (
        "limit: expected a rate at a route, got '2 concurrent'. Put it into a rule of the policy, whose middleware "
        "knows when a response is done."
    )

"""Leases of a request: others are refused meanwhile, and the slot is free again however the request ends."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fastapi import Depends, FastAPI
from flask import Flask
from starlette.responses import StreamingResponse
from starlette.testclient import TestClient as StarletteClient

from ratekeeper import Policy, Request
from ratekeeper.adapters.aiohttp import rate_limit, setup
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from ratekeeper.errors import InvalidRules
from ratekeeper.testing import FakeClock
from tests.adapters.cases import HERE, rules

RULES = rules({"limit": "2 concurrent"}, {"limit": "100/minute", "by": "all"})


def scope(path="/"):
    return {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "client": (HERE, 1)}


async def nothing():
    await asyncio.Event().wait()


def test_asgi_holds_a_place_while_the_application_runs():
    """Attack 37: a place comes back after an error, a cancellation and the end."""

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
            messages = []

            async def send(message):
                messages.append(message)

            sent.append(messages)
            await RateLimitMiddleware(app, policy)(scope(path), nothing, send)
            return messages[0]["status"], dict(messages[0]["headers"])

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
         "rules: rules[0].mode (rule 'rule-0'): expected every request to hold a lease of '2 concurrent', got "
         "'shadow'. Enforce the rule, or remove it."),
        ({"limit": "2 concurrent", "counts": "messages"},
         "rules: rules[0].counts (rule 'rule-0'): expected 'requests' with '2 concurrent', got 'messages'. "
         "A message holds no lease."),
    ],
)  # fmt: skip
def test_rules_that_could_not_give_back_are_refused(rule, message):
    with pytest.raises(InvalidRules) as caught:
        Policy.parse(rules(rule))
    assert str(caught.value) == message


def test_flask_routes_hold_until_their_response_is_closed():
    app = Flask(__name__)
    limiter = RateLimiter(app, rules({"limit": "100/minute"}))

    @app.get("/held")
    @limiter.limit("1 concurrent")
    def held():
        return iter([b"one", b"two"])

    @app.get("/broken")
    @limiter.limit("1 concurrent")
    def broken():
        raise OSError("broken")

    client = app.test_client()
    first = client.get("/held", buffered=False)
    assert [first.status_code, client.get("/held").status_code] == [200, 429]
    first.close()
    assert client.get("/held").status_code == 200
    assert [client.get("/broken").status_code for _ in range(3)] == [500] * 3
    app.testing = True  # errors go through, and there is no response at all
    for _ in range(3):
        with pytest.raises(OSError, match="broken"):
            client.get("/broken")


def test_flask_routes_hold_behind_the_wsgi_middleware_too():
    app = Flask(__name__)
    limiter = RateLimiter(app)

    @app.get("/held")
    @limiter.limit("1 concurrent")
    def held():
        return "ok"

    app.wsgi_app = WsgiMiddleware(app.wsgi_app, rules({"limit": "100/minute"}))
    client = app.test_client()
    assert [client.get("/held", buffered=True).status_code for _ in range(3)] == [200] * 3
    first = client.get("/held", buffered=False)
    assert client.get("/held").status_code == 429
    first.close()
    assert client.get("/held").status_code == 200


@pytest.mark.parametrize("with_middleware", [False, True])
def test_aiohttp_handlers_hold_while_they_run(with_middleware):
    async def main():
        go, inside = asyncio.Event(), asyncio.Event()

        @rate_limit("1 concurrent")
        async def held(request):
            if "broken" in request.query:
                raise OSError("broken")
            inside.set()
            await go.wait()
            return web.Response(text="ok")

        app = web.Application()
        if with_middleware:
            setup(app, rules({"limit": "100/minute"}))
        app.router.add_get("/held", held)
        async with TestClient(TestServer(app)) as client:
            first = asyncio.create_task(client.get("/held"))
            await inside.wait()
            assert (await client.get("/held")).status == 429
            go.set()
            assert (await first).status == 200
            assert [(await client.get("/held?broken")).status for _ in range(2)] == [500, 500]
            assert (await client.get("/held")).status == 200

    asyncio.run(main())


@pytest.mark.parametrize("middleware", [None, {"limit": "100/minute"}, {"limit": "5 concurrent"}])
def test_fastapi_dependencies_hold_until_the_response_is_done(middleware):
    async def main():
        go, inside = asyncio.Event(), asyncio.Event()
        clock = FakeClock(start=1.0)
        app = FastAPI()
        two = [Depends(RateLimit("1 concurrent", clock=clock)), Depends(RateLimit("6/minute", clock=clock))]

        @app.get("/held", dependencies=two)
        async def held(broken: bool = False):
            if broken:
                raise OSError("broken")

            async def parts():
                yield b"one"
                inside.set()
                await go.wait()

            return StreamingResponse(parts())

        if middleware:
            app.add_middleware(RateLimitMiddleware, policy=Policy.parse(rules(middleware), clock=clock))

        async def call(query=b""):
            messages = []

            async def send(message):
                messages.append(message)

            http_scope = {**scope("/held"), "query_string": query, "http_version": "1.1", "scheme": "http"}
            try:
                await app(http_scope, nothing, send)
            except OSError:
                return 500
            return messages[0]["status"]

        first = asyncio.create_task(call())
        await inside.wait()
        assert await call() == 429  # the stream is not at its end
        go.set()
        assert await first == 200
        assert [await call(b"broken=1") for _ in range(3)] == [500] * 3
        assert [await call() for _ in range(3)] == [
            200,
            200,
            429,
        ]  # six in a minute; none of them to the place's refusal
        clock.advance(60)
        assert await call() == 200  # and the refusal of the second gave back the place of the first

    asyncio.run(main())


def test_a_dependency_that_refuses_gives_back_what_the_middleware_took():
    clock = FakeClock(start=1.0)
    policy = Policy.parse(rules({"limit": "10/minute"}), clock=clock)
    app = FastAPI()

    @app.get("/", dependencies=[Depends(RateLimit("2/minute", clock=clock))])
    async def home(): ...

    app.add_middleware(RateLimitMiddleware, policy=policy)
    client = StarletteClient(app, client=(HERE, 1))
    answers = [client.get("/") for _ in range(6)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429, 429, 429]
    assert policy.check(Request(peer=HERE)).remaining == 7
    for answer in answers:  # one set of headers, whichever limit refused
        names = [name for name, _ in answer.headers.multi_items()]
        assert len(names) == len(set(names))


def test_a_renewed_lease_outlives_its_time_and_ends_once():
    async def main():
        clock = FakeClock(start=1.0)
        policy = Policy.parse(rules({"limit": "1 concurrent for 30 seconds"}), clock=clock)
        limits, request = RequestLimits(), Request(peer=HERE)
        assert (await limits.acheck(policy, request)).allowed
        clock.advance(20)
        await limits.leases[0].renew()
        clock.advance(20)
        assert not (await policy.acheck(request)).allowed
        await limits.arelease()
        assert (await policy.acheck(request)).allowed
        await limits.arelease()
        assert not (await policy.acheck(request)).allowed

    asyncio.run(main())


@pytest.mark.parametrize("leaves", [True, False])
def test_a_client_that_leaves_before_its_turn_gives_everything_back(leaves):
    clock = FakeClock(start=1.0)
    slow = Policy.parse(rules({"limit": "1/second burst 3 leaky_bucket"}), clock=clock)
    quick = Policy.parse(rules({"limit": "9/hour"}), clock=clock)
    request = Request(peer=HERE)

    async def on_a_loop(limits):
        await limits.acheck(quick, request)
        await limits.acheck(slow, request, lambda: leaves)

    def in_a_thread(limits):
        limits.check(quick, request)
        limits.check(slow, request, lambda: leaves)

    for attempt in (in_a_thread, lambda limits: asyncio.run(on_a_loop(limits))):
        assert slow.check(request).allowed
        limits = RequestLimits()
        if leaves:
            with pytest.raises((ConnectionAbortedError, asyncio.CancelledError)):
                attempt(limits)
        else:
            attempt(limits)
        assert len(limits.admitted) == (0 if leaves else 2)
    assert quick.check(request).remaining == (8 if leaves else 6)

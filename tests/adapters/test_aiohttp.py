"""The aiohttp adapter, through its own server and client, on loopback."""

import asyncio
import json
from dataclasses import replace

import pytest
from aiohttp import ClientSession, TCPConnector, WSMsgType, web
from aiohttp.test_utils import TestServer
from yarl import URL

from ratekeeper import InvalidLimit, Policy, Request
from ratekeeper.adapters.aiohttp import exempt, rate_limit, setup
from ratekeeper.testing import FakeClock
from tests.adapters.cases import CASES, Answer, Case, rules, run

# Sockets of this host can stand for the peers of the cases: all of 127.0.0.0/8 is loopback.
PEERS = {"203.0.113.": "127.0.113.", "198.51.100.": "127.51.100."}
HERE, THERE = "127.0.113.9", "127.51.100.7"


def on_loopback(case: Case) -> Case:
    text = json.dumps(case.rules)
    for theirs, ours in PEERS.items():
        text = text.replace(theirs, ours)
    steps = [
        replace(step, peer=step.peer.replace("203.0.", "127.0.").replace("198.51.", "127.51.")) for step in case.steps
    ]
    return replace(case, rules=json.loads(text), steps=steps)


async def fetch(server, path, method="GET", peer=HERE, headers=()):
    async with ClientSession(connector=TCPConnector(local_addr=(peer, 0), force_close=True)) as session:
        url = URL(f"http://{server.host}:{server.port}{path}", encoded=True)
        async with session.request(method, url, headers=list(headers)) as answer:
            headers = [(name.lower(), value) for name, value in answer.headers.items()]
            return Answer(answer.status, headers, await answer.read())


def serve(app, *requests):
    """Start ``app``, send each request, and gather the answers."""

    async def main():
        async with TestServer(app) as server:
            return [await fetch(server, **each) for each in requests]

    return asyncio.run(main())


def statuses(app, *paths, **more):
    return [answer.status for answer in serve(app, *[{"path": path, **more} for path in paths])]


async def answer(request):
    if request.path != "/stream":
        return web.Response(text="ok", headers={"X-App": "yes"})
    stream = web.StreamResponse(headers={"X-App": "yes"})
    await stream.prepare(request)
    for part in (b"one", b"two", b"three"):
        await stream.write(part)
    return stream


@pytest.mark.parametrize("case", [on_loopback(case) for case in CASES], ids=lambda case: case.name)
def test_cases(case):
    with asyncio.Runner() as runner:

        def client(policy):
            app = web.Application()
            setup(app, policy)
            app.router.add_route("*", "/{rest:.*}", answer)
            server.append(TestServer(app))
            runner.run(server[0].start_server())
            return lambda step: runner.run(fetch(server[0], step.path, step.method, step.peer, step.headers))

        server = []
        try:
            run(case, client)
        finally:
            runner.run(server[0].close())


def app_with(*routes, policy=None, **more):
    app = web.Application()
    setup(app, policy, **more)
    app.add_routes([web.get(path, handler) for path, handler in routes])
    return app


def test_a_limit_at_a_handler_counts_each_client_on_each_template():
    limited = rate_limit("1/minute")(answer)
    app = app_with(("/a/{item}", limited), ("/b", limited))
    paths = [("/a/1", HERE), ("/a/2", HERE), ("/b", HERE), ("/a/1", THERE)]
    answers = serve(app, *[{"path": path, "peer": peer} for path, peer in paths])
    assert [each.status for each in answers] == [200, 429, 200, 200]


def test_several_hold_together_and_tell_of_all():
    policy = Policy.parse(rules({"limit": "9/minute"}), clock=FakeClock(1000.0))
    app = app_with(("/", rate_limit("5/minute")(rate_limit("2/hour")(answer))), ("/free", answer), policy=policy)
    *answers, free = serve(app, *[{"path": "/"}] * 6, {"path": "/free"})
    assert [each.status for each in answers] == [200, 200, 429, 429, 429, 429]
    expected = '"rule-0";q=9;w=60, "5/minute";q=5;w=60, "2/hour";q=2;w=3600'
    assert [value for name, value in answers[0].headers if name == "ratelimit-policy"] == [expected]
    assert dict(answers[2].headers)["ratelimit-policy"] == '"2/hour";q=2;w=3600'
    assert dict(answers[2].headers)["retry-after"] == "1800"
    assert dict(free.headers)["x-ratelimit-remaining"] == "6"  # four refusals gave the policy back what they had taken


def test_by_cost_and_facts_may_be_async():
    async def who(request):
        return request.query.get("u")

    async def facts(request):
        return {"cost": int(request.query.get("n", 1))}

    app = app_with(
        ("/", rate_limit("4/minute", by=who, cost=lambda request: int(request.query["n"]))(answer)), facts=facts
    )
    paths = ["/?u=a&n=3", "/?u=a&n=2", "/?u=b&n=3", "/?n=3", "/?n=2", "/?n=-1"]
    assert statuses(app, *paths) == [200, 429, 200, 200, 429, 400]
    settings = rules({"by": "app:user", "limit": "1/minute"})
    app = app_with(("/", answer), policy=settings, facts=lambda request: {"user": request.query["u"]})
    assert statuses(app, "/?u=1", "/?u=1", "/?u=2") == [200, 429, 200]


def test_exempt_handlers_have_no_limits_not_even_their_own():
    @exempt
    async def free(request):
        return web.Response()

    limited = exempt(rate_limit("2/minute")(answer))
    app = app_with(("/", answer), ("/free", free), ("/own", limited), policy=rules({"limit": "1/minute"}))
    paths = ["/", "/", "/free", "/free", "/own", "/own", "/own", "/nowhere"]
    assert statuses(app, *paths) == [200, 429, 200, 200, 200, 200, 200, 429]


def test_views_and_sub_applications():
    class Items(web.View):
        @rate_limit("1/minute")
        async def get(self):
            return web.Response(text="items")

    inner = web.Application()
    inner.add_routes([web.view("/items", Items), web.get("/x", answer)])
    app = app_with(policy={"trusted_proxies": ["127.0.0.0/8"], "rules": [{"name": "all", "limit": "3/minute"}]})
    app.add_subapp("/in", inner)
    client = {"headers": [("X-Forwarded-For", "192.0.2.1")]}
    answers = serve(app, *[{"path": path, **client} for path in ["/in/items", "/in/items", "/in/x", "/in/x", "/in/x"]])
    assert [each.status for each in answers] == [200, 429, 200, 200, 429]
    assert "x-ratelimit-limit" in dict(answers[0].headers)


def test_a_handler_without_a_policy_is_limited_all_the_same():
    app = web.Application()
    app.add_routes([web.get("/", rate_limit("1/minute", name="alone")(answer))])
    assert statuses(app, "/", "/") == [200, 429]


def test_websockets_are_counted_at_the_handshake():
    async def chat(request):
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    async def main():
        app = app_with(("/chat", chat), policy=rules({"limit": "1/minute"}))
        async with TestServer(app) as server, ClientSession() as session:
            async with session.ws_connect(server.make_url("/chat")) as socket:
                await socket.send_str("hello")
                heard = await socket.receive()
                remaining = socket._response.headers["x-ratelimit-remaining"]
            refused = await session.get(server.make_url("/chat"))
            return heard.type, heard.data, remaining, refused.status

    assert asyncio.run(main()) == (WSMsgType.TEXT, "hello", "0", 429)


def test_a_leaky_bucket_delays_and_a_client_that_left_gives_its_place_back():
    clock = FakeClock(100.0, auto=False)
    policy = Policy.parse(rules({"limit": "1/second burst 3 leaky_bucket"}), clock=clock)
    called = []

    async def slow(request):
        called.append(clock.now)
        return web.Response()

    async def turns(until):
        while not until():  # noqa: ASYNC110 - what happens in the server has no event
            await asyncio.sleep(0)

    async def main():
        async with TestServer(app_with(("/", slow), policy=policy)) as server:
            await fetch(server, "/")
            leaving = asyncio.create_task(fetch(server, "/"))
            await turns(lambda: clock._sleepers)
            staying = asyncio.create_task(fetch(server, "/"))
            await turns(lambda: len(clock._sleepers) == 2)
            leaving.cancel()
            await asyncio.wait([leaving])
            await turns(lambda: len(server.handler.connections) == 1)
            clock.advance(2)
            return (await staying).status

    assert asyncio.run(main()) == 200
    assert called == [100.0, 102.0]  # who left was never answered
    assert policy.check(Request(peer=HERE)).remaining == 2


def test_mistakes_surface_when_they_are_made():
    with pytest.raises(InvalidLimit):
        rate_limit("5/fortnight")

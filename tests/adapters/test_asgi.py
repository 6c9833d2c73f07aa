"""The ASGI middleware through the bare interface, and inside Starlette, FastAPI, Litestar and Quart."""

import asyncio
from urllib.parse import unquote

import pytest

from ratekeeper import Policy, Request
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.check import Check
from ratekeeper.testing import FakeClock
from tests.adapters.cases import CASES, HERE, Answer, Step, rules, run


async def application(scope, receive, send):
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-app", b"yes")]})
    for chunk in (b"one", b"two", b"three") if scope["path"] == "/stream" else (b"ok",):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def scope_of(step):
    path, _, query = step.path.partition("?")
    return {
        "type": "http",
        "method": step.method,
        "path": unquote(path),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in step.headers],
        "client": (step.peer, 40_000),
    }


def call(app, step):
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope_of(step), receive, send))
    start, *rest = sent
    headers = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], headers, b"".join(message.get("body", b"") for message in rest))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bare(case):
    def client(policy):
        app = RateLimitMiddleware(application, policy)
        return lambda step: call(app, step)

    run(case, client)


def starlette_client(policy, make):
    from starlette.testclient import TestClient

    app = make(policy)

    def send(step):
        client = TestClient(app, client=(step.peer, 40_000), follow_redirects=False)
        answer = client.request(step.method, step.path, headers=list(step.headers))
        return Answer(answer.status_code, [(k.lower(), v) for k, v in answer.headers.items()], answer.content)

    return send


def starlette_app(policy):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse, StreamingResponse
    from starlette.routing import Route

    async def answer(request):
        if request.url.path == "/stream":
            return StreamingResponse(iter(["one", "two", "three"]), headers={"x-app": "yes"})
        return PlainTextResponse("ok", headers={"x-app": "yes"})

    methods = ["GET", "HEAD", "POST", "OPTIONS"]
    return Starlette(
        routes=[Route("/{rest:path}", answer, methods=methods)],
        middleware=[Middleware(RateLimitMiddleware, policy=policy)],
    )


def fastapi_app(policy):
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse, StreamingResponse

    app = FastAPI()

    @app.api_route("/{rest:path}", methods=["GET", "HEAD", "POST", "OPTIONS"])
    async def answer(rest: str):
        if rest == "stream":
            return StreamingResponse(iter(["one", "two", "three"]), headers={"x-app": "yes"})
        return PlainTextResponse("ok", headers={"x-app": "yes"})

    app.add_middleware(RateLimitMiddleware, policy=policy)
    return app


@pytest.mark.parametrize("make", [starlette_app, fastapi_app])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_in_a_framework(case, make):
    run(case, lambda policy: starlette_client(policy, make))


def test_litestar_takes_it_as_middleware():
    from litestar import Litestar, get
    from litestar.middleware import DefineMiddleware
    from litestar.testing import TestClient

    @get("/")
    async def home() -> str:
        return "ok"

    policy = Policy.parse(rules({"limit": "1/minute"}))
    with TestClient(Litestar([home], middleware=[DefineMiddleware(RateLimitMiddleware, policy=policy)])) as client:
        first, second = client.get("/"), client.get("/")
    assert (first.status_code, first.headers["x-ratelimit-remaining"]) == (200, "0")
    assert (second.status_code, second.headers["retry-after"]) == (429, "60")


def test_quart_takes_it_around_its_application():
    from quart import Quart

    app = Quart(__name__)

    @app.get("/")
    async def home():
        return "ok"

    app.asgi_app = RateLimitMiddleware(app.asgi_app, policy=rules({"limit": "1/minute"}))

    async def main():
        client = app.test_client()
        return await client.get("/"), await client.get("/")

    first, second = asyncio.run(main())
    assert (first.status_code, first.headers["x-ratelimit-remaining"]) == (200, "0")
    assert (second.status_code, second.headers["retry-after"]) == (429, "60")


def test_lifespan_and_unknown_kinds_pass():
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["type"])

    middleware = RateLimitMiddleware(app, policy=rules({"limit": "1/minute"}))
    for _ in range(3):
        asyncio.run(middleware({"type": "lifespan"}, None, None))
    assert seen == ["lifespan"] * 3


def test_each_chunk_of_a_stream_is_sent_when_it_is_made_and_not_gathered():
    order = []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        for number in range(3):
            order.append(f"made {number}")
            await send({"type": "http.response.body", "body": b"x", "more_body": True})

    async def send(message):
        order.append(message["type"])

    middleware = RateLimitMiddleware(app, policy=rules({"limit": "1/minute"}))
    asyncio.run(middleware(scope_of(Step()), None, send))
    assert order == ["http.response.start", *[word for n in range(3) for word in (f"made {n}", "http.response.body")]]


def test_the_application_can_read_the_verdict():
    remaining = []

    async def app(scope, receive, send):
        remaining.append(scope["ratekeeper.verdict"].remaining)

    asyncio.run(RateLimitMiddleware(app, policy=rules({"limit": "5/minute"}))(scope_of(Step()), None, None))
    assert remaining == [4]


def test_a_scope_that_is_used_again_is_a_new_request():
    app = RateLimitMiddleware(application, policy=rules({"limit": "3/minute"}))
    scope, answers = scope_of(Step()), []

    async def send(message):
        if message["type"] == "http.response.start":
            answers.append((message["status"], dict(message["headers"]).get(b"ratelimit-policy")))

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    for _ in range(4):
        asyncio.run(app(scope, receive, send))
    assert answers == [(status, b'"rule-0";q=3;w=60') for status in (200, 200, 200, 429)]


def test_facts_are_what_the_application_verified():
    settings = rules({"by": "user", "limit": "1/minute"}, identity={"user": "app:user"})
    app = RateLimitMiddleware(application, settings, facts=lambda scope: {"user": scope["client"][0][-1]})
    assert [call(app, Step(peer=peer)).status for peer in ("192.0.2.1", "198.51.100.1", "192.0.2.2")] == [200, 429, 200]


def websocket(app, *, extensions=(), messages=()):
    sent, incoming = [], [{"type": "websocket.connect"}, *[{"type": "websocket.receive", "text": m} for m in messages]]

    async def receive():
        return incoming.pop(0) if incoming else {"type": "websocket.disconnect", "code": 1000}

    async def send(message):
        sent.append(message)

    scope = {**scope_of(Step(path="/chat")), "type": "websocket", "extensions": {name: {} for name in extensions}}
    del scope["method"]
    asyncio.run(app(scope, receive, send))
    return sent


async def echo(scope, receive, send):
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


def test_a_handshake_is_a_request_and_its_refusal_is_a_429_where_the_server_can():
    app = RateLimitMiddleware(echo, policy=rules({"match": "GET /chat", "limit": "1/minute"}))
    accepted = websocket(app)[0]
    assert dict(accepted["headers"])[b"x-ratelimit-remaining"] == b"0"
    start, body = websocket(app, extensions=["websocket.http.response"])
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert dict(start["headers"])[b"retry-after"] == b"60"
    assert b"rate_limited" in body["body"]
    (closed,) = websocket(app)
    assert (closed["type"], closed["code"]) == ("websocket.close", 1013)


def test_messages_are_counted_one_by_one_and_one_too_many_closes():
    """Attack 36: a socket is no way around a limit."""

    app = RateLimitMiddleware(echo, policy=rules({"counts": "messages", "limit": "3/minute"}))
    sent = websocket(app, messages="abcde")
    assert [message.get("text") for message in sent if message["type"] == "websocket.send"] == ["a", "b", "c"]
    assert (sent[-1]["type"], sent[-1]["code"]) == ("websocket.close", 1013)
    assert call(RateLimitMiddleware(application, app.policy), Step()).status == 200  # requests are not messages


def queue(limit="10/second burst 3 leaky_bucket", **more):
    clock = FakeClock(100.0, auto=False)
    return Policy.parse(rules({"limit": limit, **more}), clock=clock), clock


def test_a_leaky_bucket_delays_instead_of_refusing():
    policy, clock = queue()
    app = RateLimitMiddleware(application, policy)
    done = []

    async def call_as(name):
        heard = []

        async def receive_once():
            if heard:
                await asyncio.Event().wait()
            heard.append(1)
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            if message["type"] == "http.response.start":
                done.append((name, clock.now, message["status"]))

        await app(scope_of(Step()), receive_once, send)

    async def main():
        tasks = [asyncio.create_task(call_as(number)) for number in range(4)]
        for _ in range(8):
            for _ in range(20):
                await asyncio.sleep(0)
            clock.advance(0.05)
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert sorted(done) == [(0, 100.0, 200), (1, 100.1, 200), (2, 100.2, 200), (3, 100.0, 429)]


def test_a_client_that_leaves_the_queue_gives_its_place_back():
    policy, _ = queue("1/second burst 2 leaky_bucket")
    app = RateLimitMiddleware(application, policy)
    called = []

    async def waiting(scope, receive, send):
        called.append(scope)

    async def main():
        async def gone():
            return {"type": "http.disconnect"}

        await app(scope_of(Step()), gone, send)
        before = policy.store.peek((check,))[0].remaining
        await RateLimitMiddleware(waiting, policy)(scope_of(Step()), gone, send)
        after = policy.store.peek((check,))[0].remaining
        return before, after

    async def send(message):
        pass

    check = Check("rule-0", HERE, policy.rules[0].limits[""], 1)
    assert asyncio.run(main()) == (1, 1)
    assert not called


def test_a_request_that_is_cancelled_in_the_queue_gives_its_place_back():
    policy, _ = queue("1/second burst 2 leaky_bucket")
    check = Check("rule-0", HERE, policy.rules[0].limits[""], 1)

    async def main():
        async def quiet():
            await asyncio.Event().wait()

        await RateLimitMiddleware(empty, policy)(scope_of(Step()), quiet, None)
        task = asyncio.create_task(RateLimitMiddleware(empty, policy)(scope_of(Step()), quiet, None))
        for _ in range(5):
            await asyncio.sleep(0)
        before = policy.store.peek((check,))[0].remaining
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return before, policy.store.peek((check,))[0].remaining

    assert asyncio.run(main()) == (0, 1)


def test_a_body_that_arrives_in_the_queue_reaches_the_application_whole():
    policy, clock = queue("1/second burst 2 leaky_bucket")
    bodies = []

    async def reader(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        bodies.append(body)

    async def main(chunks):
        incoming = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        incoming.append({"type": "http.request", "body": b".", "more_body": False})

        async def receive():
            return incoming.pop(0) if incoming else await asyncio.Event().wait()

        task = asyncio.create_task(RateLimitMiddleware(reader, policy)(scope_of(Step()), receive, None))
        for _ in range(20):
            await asyncio.sleep(0)
        clock.advance(2)
        await task

    for chunks in ([], [b"a", b"b"]):
        asyncio.run(RateLimitMiddleware(empty, policy)(scope_of(Step()), None, None))
        asyncio.run(main(chunks))
        clock.advance(10)
    assert bodies == [b".", b"ab."]


async def empty(scope, receive, send):
    pass


def test_a_wait_longer_than_max_delay_is_refused_and_takes_nothing():
    policy, clock = queue("1/second burst 10 leaky_bucket", max_delay="2 seconds")
    verdicts = [policy.check(Request(peer=HERE)) for _ in range(5)]
    assert [verdict.allowed for verdict in verdicts] == [True, True, True, False, False]
    assert [verdict.delay for verdict in verdicts[:3]] == [0.0, 1.0, 2.0]
    assert [verdict.retry_after for verdict in verdicts[3:]] == [1.0, 1.0]
    clock.advance(1)
    assert policy.check(Request(peer=HERE)).delay == 2.0


def test_headers_of_the_application_stay_alone():
    async def app(scope, receive, send):
        headers = [(b"x-ratelimit-limit", b"7"), (b"retry-after", b"99"), (b"vary", b"Accept")]
        await send({"type": "http.response.start", "status": 429, "headers": headers})
        await send({"type": "http.response.body"})

    sent = []

    async def send(message):
        sent.append(message)

    limited = RateLimitMiddleware(app, policy={"rules": [{"name": "all", "limit": "2/minute"}]})
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": None}
    asyncio.run(limited(scope, None, send))
    names = [name for name, _ in sent[0]["headers"]]
    assert names.count(b"x-ratelimit-limit") == names.count(b"retry-after") == names.count(b"ratelimit") == 1
    assert (b"x-ratelimit-limit", b"7") in sent[0]["headers"]

"""What an application says about all of its requests: one test for each word, over every adapter."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc.aio
import pytest
from aiohttp import web
from django.http import HttpResponse
from fastapi.responses import PlainTextResponse
from flask import Flask
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from rest_framework.response import Response as RestResponse
from werkzeug.wrappers import Response as WerkzeugResponse

from ratekeeper import AsyncLimiter, InvalidInput, Limiter, Policy
from ratekeeper.adapters import aiohttp as ours_aiohttp
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.grpc import AsyncRateLimitInterceptor, RateLimitInterceptor
from ratekeeper.adapters.hooks import Hooks
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware
from ratekeeper.testing import FakeClock
from tests.adapters.frameworks import APPLICATIONS, FRAMEWORKS, limited

RULES = {"rules": [{"name": "site", "limit": "1/minute"}]}
NO_RULES = {"rules": []}
INSIDE = {"X-Inside": "yes"}
ANSWERS = {  # an answer of each framework's own
    "fastapi": lambda text: PlainTextResponse(text, 418),
    "asgi": lambda text: PlainTextResponse(text, 418),
    "wsgi": lambda text: WerkzeugResponse(text, 418),
    "flask": lambda text: (text, 418),
    "django": lambda text: HttpResponse(text, status=418),
    "django-async": lambda text: HttpResponse(text, status=418),
    "drf": lambda text: HttpResponse(text, status=418),
    "aiohttp": lambda text: web.Response(text=text, status=418),
}
AWAITING = ("fastapi", "asgi", "django-async", "aiohttp")


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


def from_inside(get):
    return get("X-Inside") == "yes"


def statuses(app, *headers):
    return [app(**each)[0] for each in headers]


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_exempt_when_exempts_from_the_policy(send, framework):
    app = send(framework, None, ok, policy=RULES, hooks={"exempt_when": from_inside})
    assert statuses(app, {}, INSIDE, {}, INSIDE, INSIDE) == [200, 200, 429, 200, 200]
    assert "ratelimit" not in app(**INSIDE)[1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_exempt_when_exempts_from_the_limits_of_routes(send, framework):
    app = send(framework, "1/minute", ok, hooks={"exempt_when": from_inside})
    assert statuses(app, {}, INSIDE, {}, INSIDE, INSIDE) == [200, 200, 429, 200, 200]


@pytest.mark.parametrize("framework", AWAITING)
def test_exempt_when_may_be_async_on_an_event_loop(send, framework):
    async def exempts(get):
        await asyncio.sleep(0)
        return from_inside(get)

    app = send(framework, None, ok, policy=RULES, hooks={"exempt_when": exempts})
    assert statuses(app, {}, INSIDE, {}, INSIDE) == [200, 200, 429, 200]


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_on_breach_sees_each_refusal_of_the_policy(send, framework):
    seen = []
    app = send(framework, None, ok, policy=RULES, hooks={"on_breach": lambda verdict: seen.append(verdict.status)})
    assert statuses(app, {}, {}, {}) == [200, 429, 429]
    assert seen == [429, 429]


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_what_on_breach_returns_answers_the_request(send, framework):
    hooks = {"on_breach": lambda verdict: ANSWERS[framework](f"{verdict.reason}: slow down")}
    app = send(framework, None, ok, policy=RULES, hooks=hooks)
    app()
    status, headers, body = app()
    assert (status, body) == (418, b"limit: slow down")
    assert headers["retry-after"] == "60"
    assert headers["x-ratelimit-remaining"] == "0"


@pytest.mark.parametrize("framework", AWAITING)
def test_on_breach_may_be_async_on_an_event_loop(send, framework):
    async def answer(verdict):
        await asyncio.sleep(0)
        return ANSWERS[framework]("slow down")

    app = send(framework, None, ok, policy=RULES, hooks={"on_breach": answer})
    app()
    assert app()[0] == 418


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_on_breach_answers_for_limits_of_routes_that_have_none(send, framework):
    answers = {**ANSWERS, "drf": lambda text: RestResponse(text, 418)}
    hooks = {"on_breach": lambda verdict: answers[framework]("all")}
    app = send(framework, "1/minute", ok, hooks=hooks)
    app()
    status, headers, body = app()
    assert (status, b"all" in body, headers["retry-after"]) == (418, True, "60")
    own = send(framework, "1/hour", ok, hooks=hooks, on_breach=lambda verdict: answers[framework]("own"))
    own()
    assert b"own" in own()[2]  # REST framework puts a text into {"detail": ...}


@pytest.mark.parametrize("framework", APPLICATIONS)
@pytest.mark.parametrize("headers", [{}, INSIDE])
def test_on_breach_answers_for_limiters_inside_of_handlers(send, framework, headers):
    """An exempt request meets such a limiter too: the handler asks it, not the application."""
    limiter = Limiter("1/minute")

    @limiter.limit(key="all")
    def called():
        return 200

    hooks = {"on_breach": lambda verdict: ANSWERS[framework]("slow down"), "exempt_when": from_inside}
    app = send(framework, None, lambda get: called(), policy=NO_RULES, hooks=hooks)
    assert statuses(app, headers, headers) == [200, 418]


@pytest.mark.parametrize("framework", APPLICATIONS)
def test_header_names_are_those_of_the_policy(send, framework):
    policy = {**RULES, "response": {"headers": {"remaining": "X-Left", "retry_after": "X-Come-Back"}}}
    app = send(framework, None, ok, policy=policy)
    assert app()[1]["x-left"] == "0"
    status, headers, _ = app()
    assert (status, headers["x-come-back"], "ratelimit" in headers) == (429, "60", False)


async def later(*_):
    return True


PLAIN = [
    lambda **hooks: WsgiMiddleware(print, limit="1/minute", **hooks),
    lambda **hooks: RateLimiter(Flask("app"), limit="1/minute", **hooks),
    lambda **hooks: RateLimitInterceptor(limit="1/minute", **hooks),
]


@pytest.mark.parametrize("make", PLAIN)
@pytest.mark.parametrize("word", ["exempt_when", "on_breach"])
def test_nothing_awaits_an_async_function_in_a_thread(make, word):
    """A coroutine is true: it would exempt every request."""
    with pytest.raises(InvalidInput) as raised:
        make(**{word: later})
    assert str(raised.value).endswith(f": expected a plain function as {word}, got an async one. Nothing awaits it.")


def test_an_awaitable_exempts_nobody():
    with pytest.raises(InvalidInput) as raised:
        Hooks("RateLimiter", lambda: later(), None).exempts(None)
    assert str(raised.value) == (
        "RateLimiter: expected exempt_when to return its answer, got an awaitable. Nothing awaits it."
    )
    with pytest.raises(InvalidInput):
        Hooks("RateLimiter", None, lambda verdict: later()).answer(None)


@pytest.mark.parametrize("word", ["exempt_when", "on_breach"])
@pytest.mark.parametrize(
    "make",
    [
        *PLAIN,
        lambda **hooks: RateLimitMiddleware(print, limit="1/minute", **hooks),
        lambda **hooks: AsyncRateLimitInterceptor(limit="1/minute", **hooks),
        lambda **hooks: ours_aiohttp.setup(web.Application(), limit="1/minute", **hooks),
    ],
)
def test_what_must_be_a_function_is_one(make, word):
    with pytest.raises(InvalidInput, match=rf": expected a function as {word}, got True\.$"):
        make(**{word: True})


@pytest.mark.parametrize("framework", ["asgi", "wsgi"])
def test_what_cannot_answer_is_an_error(framework):
    async def asgi(scope, receive, send): ...

    if framework == "wsgi":
        app = WsgiMiddleware(print, policy={"rules": [{"name": "r", "limit": "0/minute"}]}, on_breach=lambda _: "slow")
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "1.1.1.1"}
        with pytest.raises(InvalidInput) as raised:
            app(environ, print)
        assert str(raised.value) == (
            "RateLimitMiddleware: expected on_breach to return a WSGI application or None, got 'slow'."
        )
        return
    app = RateLimitMiddleware(asgi, policy={"rules": [{"name": "r", "limit": "0/minute"}]}, on_breach=lambda _: "slow")
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b"", "client": ("1.1.1.1", 1)}
    with pytest.raises(InvalidInput) as raised:
        asyncio.run(app(scope, None, None))
    assert str(raised.value) == (
        "on_breach: expected an ASGI application such as a Response of Starlette, or None, got 'slow'."
    )


# gRPC: a call has no HTTP response, so on_breach gives the message of the status.


class Handlers(grpc.GenericRpcHandler):
    def __init__(self, behaviours):
        self.behaviours = behaviours

    def service(self, details):
        name = details.method.rpartition("/")[2]
        make = grpc.unary_stream_rpc_method_handler if name == "stream" else grpc.unary_unary_rpc_method_handler
        return make(self.behaviours[name])


def outcome(call):
    """The code, the message, and the seconds of RetryInfo."""
    try:
        call()
    except grpc.RpcError as error:
        found = dict(error.trailing_metadata() or ())
        details = Status.FromString(found["grpc-status-details-bin"]).details if len(found) > 1 else ()
        retry = RetryInfo()
        if details:
            assert details[0].Unpack(retry)
        return error.code().name, error.details(), retry.retry_delay.seconds
    return "OK", None, None


def is_inside(context):
    return dict(context.invocation_metadata()).get("x-inside") == "yes"


def with_calls(kind, behaviours, test, **words):
    """Run ``test(call)`` against a server; ``call(name, **metadata)`` makes a call and returns its outcome."""

    def caller(channel):
        def call(name, **metadata):
            given = [(key.replace("_", "-"), value) for key, value in metadata.items()]
            if name == "stream":
                return outcome(lambda: list(channel.unary_stream("/a.B/stream")(b"", metadata=given, timeout=20)))
            return outcome(lambda: channel.unary_unary(f"/a.B/{name}")(b"", metadata=given, timeout=20))

        return call

    async def run():
        server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor(**words)])
        server.add_generic_rpc_handlers([Handlers(behaviours)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                await asyncio.to_thread(test, caller(channel))
        finally:
            await server.stop(None)

    if kind == "async":
        asyncio.run(run())
        return
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[RateLimitInterceptor(**words)])
    server.add_generic_rpc_handlers([Handlers(behaviours)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            test(caller(channel))
    finally:
        server.stop(None).wait()


def plain_behaviours(guard=lambda: None):
    def unary(request, context):
        guard()
        return b"ok"

    def stream(request, context):
        yield b"one"
        guard()

    return {"unary": unary, "stream": stream}


def async_behaviours(guard=None):
    async def unary(request, context):
        if guard is not None:
            await guard()
        return b"ok"

    async def stream(request, context):
        yield b"one"
        if guard is not None:
            await guard()

    return {"unary": unary, "stream": stream}


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_hooks_of_grpc(kind):
    seen = []

    def answer(verdict):
        seen.append(verdict.retry_after)
        return "slow down"

    def test(call):
        assert call("unary")[0] == "OK"
        assert call("unary") == ("RESOURCE_EXHAUSTED", "slow down", 60)
        assert call("stream") == ("RESOURCE_EXHAUSTED", "slow down", 60)
        assert [call(name, x_inside="yes")[0] for name in ("unary", "stream")] == ["OK", "OK"]

    behaviours = plain_behaviours() if kind == "plain" else async_behaviours()
    policy = Policy.parse(RULES, clock=FakeClock())
    with_calls(kind, behaviours, test, policy=policy, exempt_when=is_inside, on_breach=answer)
    assert len(seen) == 2


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_on_breach_of_grpc_returns_is_a_text(kind):
    def test(call):
        assert call("unary") == ("INTERNAL", "The limits of this server are misconfigured.", 0)

    behaviours = plain_behaviours() if kind == "plain" else async_behaviours()
    policy = {"rules": [{"name": "r", "limit": "0/minute"}]}
    with_calls(kind, behaviours, test, policy=policy, on_breach=lambda verdict: 429)


@pytest.mark.parametrize("hooks", [{}, {"on_breach": lambda verdict: None}])
@pytest.mark.parametrize("name", ["unary", "stream"])
@pytest.mark.parametrize("kind", ["plain", "async", "plain on a loop"])
def test_limit_exceeded_ends_a_call_of_grpc(kind, name, hooks):
    """It was UNKNOWN, and told nobody when to come back."""
    if kind == "async":
        limiter = AsyncLimiter("1/hour", name="inner")

        @limiter.limit(key="all")
        async def guard():
            pass

        behaviours = async_behaviours(guard)
    else:
        plain = Limiter("1/hour", name="inner")
        behaviours = plain_behaviours(plain.limit(key="all")(lambda: None))

    def test(call):
        assert call(name)[0] == "OK"
        code, message, seconds = call(name)
        assert (code, 3500 < seconds <= 3600) == ("RESOURCE_EXHAUSTED", True)
        assert "try again" in message.lower()

    with_calls("plain" if kind == "plain" else "async", behaviours, test, policy=NO_RULES, **hooks)

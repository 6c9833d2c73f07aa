"""A request that need not wait takes few calls of ours, in every client library, and asks the store once."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

import grpc
import httpx
import pytest
import requests
from requests.adapters import BaseAdapter
from yarl import URL as AiohttpURL

import ratekeeper
from ratekeeper.outbound.aiohttp import PacedMiddleware
from ratekeeper.outbound.grpc import PacedInterceptor, paced_interceptors
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.stores import MemoryStore
from ratekeeper.testing import FakeClock

MOST_CALLS = 40
URL = "https://api.example.com/v1/things"
OURS = str(Path(ratekeeper.__file__).parent)
NOT_OURS = str(Path(ratekeeper.__file__).parent / "testing")
OPERATIONS = ("check", "states", "peek", "take", "refund")


class Counting(MemoryStore):
    """Counts the questions that it is asked."""


for operation in OPERATIONS:

    def ask(self, *arguments, operation=operation):
        self.questions.append(operation)
        return getattr(MemoryStore, operation)(self, *arguments)

    setattr(Counting, operation, ask)


class Calls:
    """Counts calls of functions of the package, and resumptions of its generators."""

    def __init__(self):
        self.count = 0

    def __call__(self, frame, event, argument):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(OURS) and not name.startswith(NOT_OURS):
            self.count += 1

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)


class Inner(BaseAdapter):
    """Answers requests in this process."""

    def send(self, request, **options):
        response = requests.Response()
        response.status_code = 200
        return response

    def close(self):
        pass


def httpx_sync(options):
    client = httpx.Client(transport=PacedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), **options))
    return lambda: client.get(URL)


def httpx_async(options):
    transport = AsyncPacedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), **options)
    client = httpx.AsyncClient(transport=transport)
    return lambda: client.get(URL)


def requests_sync(options):
    session = requests.Session()
    session.mount("https://", PacedAdapter(Inner(), **options))
    return lambda: session.get(URL)


def aiohttp_async(options):
    paced = PacedMiddleware(**options)
    request = SimpleNamespace(method="GET", url=AiohttpURL(URL), headers={}, body=b"")

    async def handler(request):
        return SimpleNamespace(status=200, headers={"Server": "x"})

    return lambda: paced(request, handler)


DETAILS = SimpleNamespace(
    method="/shop.Orders/Get", timeout=None, metadata=None, credentials=None, wait_for_ready=None, compression=None
)


def grpc_sync(options):
    call = SimpleNamespace(done=lambda: True, code=lambda: grpc.StatusCode.OK, trailing_metadata=lambda: ())
    interceptor = PacedInterceptor(**options)
    return lambda: interceptor.intercept_unary_unary(lambda details, request: call, DETAILS, b"")


def grpc_async(options):
    async def code():
        return grpc.StatusCode.OK

    async def trailing_metadata():
        return ()

    async def continuation(details, request):
        return SimpleNamespace(code=code, trailing_metadata=trailing_metadata)

    interceptor = paced_interceptors(**options)[0]
    return lambda: interceptor.intercept_unary_unary(continuation, DETAILS, b"")


@pytest.mark.parametrize("make", [httpx_sync, httpx_async, requests_sync, aiohttp_async, grpc_sync, grpc_async])
def test_a_request_that_need_not_wait_is_short(make):
    clock = FakeClock()
    store = Counting(clock=clock)
    store.questions = []

    async def main():
        send = make({"limit": "10/second", "store": store})
        for _ in range(3):  # the first ones fill caches
            clock.advance(1)
            store.questions.clear()
            with Calls() as calls:
                response = send()
                if make.__name__.endswith("_async"):
                    await response
        assert store.questions == ["check"]
        assert calls.count <= MOST_CALLS, calls.count

    asyncio.run(main())

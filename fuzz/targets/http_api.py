"""The paths of the HTTP listener with any query and body: never an error of ours, and metrics that can be read."""

from __future__ import annotations

import asyncio
from typing import Any

from fuzz.choices import Choices
from ratekeeper.rules.policy import Policy
from ratekeeper.service.connection import PendingResponse
from ratekeeper.service.decider import Decider
from ratekeeper.service.http.reservation_token import Seal
from ratekeeper.service.http.routes import HttpRoutes
from ratekeeper.service.http.server import Call, HttpListener, awaited
from ratekeeper.service.options import Bounds, Options
from ratekeeper.service.worker_counters import WorkerCounters
from ratekeeper.testing import FakeClock

BOUNDS = Bounds(names=16, tables=8_000_000)
RULES: dict[str, Any] = {
    "rules": [
        {"name": "search", "match": "GET /search/{word}", "by": ["header:X-Api-Key", "ip"], "limit": "5/minute"},
        {"name": "all", "by": "ip", "limit": ["9/second", "100/hour sliding_log"], "cost": {"from": "body", "most": 9}},
    ],
    "store": "memory://?max_keys=300",
    "trusted_proxies": ["10.0.0.0/8"],
}
NAMES = tuple(
    b"host x-api-key x-forwarded-for x-forwarded-uri x-forwarded-method x-original-uri x-forwarded-host authorization "
    b"content-type origin x-envoy-original-path forwarded".split()
)
METHODS = ("POST", "GET", "HEAD", "PUT", "OPTIONS", "\xe9")


async def answer(routes: HttpRoutes, call: Call) -> bytes:
    refusal = routes.screen(call)
    if refusal is not None:
        return refusal
    outcome: Any = routes.route(call)
    if isinstance(outcome, PendingResponse):
        return await awaited(outcome)
    if outcome.__class__ is bytes:
        return bytes(outcome)
    return bytes(await outcome) if hasattr(outcome, "__await__") else b"HTTP/1.1 200 a stream"


async def run(data: bytes) -> None:
    choices = Choices(data)
    decider = Decider(Policy.parse(RULES, clock=FakeClock()), Options(bounds=BOUNDS))
    routes = HttpRoutes(decider, WorkerCounters(None, 0, decider.counters), Seal(b"secret"))
    routes.dashboard.listener = HttpListener(routes.route, BOUNDS)
    paths = [path for path in routes.paths if "reload" not in path]
    while choices:
        path, method = choices.of([*paths, "/v1/auth/x/"]), choices.of(METHODS)
        query = choices.piece(40).decode("latin-1")
        headers = [(choices.of(NAMES), choices.piece(30)) for _ in range(choices.number() % 4)]
        body = choices.take(choices.number(2) % 1000)
        for _ in range(2):  # the second time it may be in a cache
            call = Call(method, path, query, [(b"host", b"localhost"), *headers], body, "10.0.0.1")
            answered = await answer(routes, call)
            assert answered.startswith(b"HTTP/1.1 "), answered[:100]
            assert not answered.startswith(b"HTTP/1.1 500"), (path, body, answered)
    page = await answer(routes, Call("GET", "/metrics", "", [(b"host", b"localhost")], b"", None))
    assert page.startswith(b"HTTP/1.1 200"), page
    for line in page.partition(b"\r\n\r\n")[2].decode().split("\n"):
        assert not line or line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0, line
    assert not sum(decider.counters.faults.values()), "a call failed"
    decider.policy.close()


def check(data: bytes) -> None:
    asyncio.run(run(data))

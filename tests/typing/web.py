"""What web applications and clients use, as a strict type checker sees it; never run, only checked."""

from typing import assert_type

import httpx
import requests
from fastapi import Depends, FastAPI
from fastapi import Request as Asked
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware

from ratekeeper import Decision, Limiter, LimitExceeded, Policy, Request, Verdict
from ratekeeper.adapters.aiohttp import rate_limit
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.django import rate_limit as django_limit
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.requests import PacedAdapter
from ratekeeper.testing import FakeClock, frozen

policy = Policy.load("rules.toml", functions={"path": lambda request: request.path}, watch=1.0)
verdict = policy.check(Request(method="GET", path="/search", peer="203.0.113.9", headers=[("a", "b"), (b"c", b"d")]))
general: Verdict = verdict
assert_type(verdict.retry_after, float | None)
assert_type(verdict.status, int)
assert_type(verdict.headers, list[tuple[bytes, bytes]])
assert_type(general.decisions, tuple[Decision, ...])
parsed = Policy.parse({"rules": [{"name": "a", "limit": "5/minute"}]}, clock=FakeClock())

app = FastAPI()
app.add_middleware(RateLimitMiddleware, policy=policy)
plain = Starlette(middleware=[Middleware(RateLimitMiddleware, policy=policy)])


async def user_id(request: Asked) -> str:
    return str(request.state.user)


@app.get("/", dependencies=[Depends(RateLimit("10/minute")), Depends(RateLimit("5/minute", by=user_id))])
async def root() -> str:
    return ""


client = httpx.Client(transport=PacedTransport(httpx.HTTPTransport(), limit="5/second"))
waiting = httpx.AsyncClient(
    transport=AsyncPacedTransport(
        httpx.AsyncHTTPTransport(), limit="5/second", key=None, max_wait=30.0, max_retries=3, store="memory://"
    )
)
requests.Session().mount("https://", PacedAdapter(limit="5/second"))


async def use() -> None:
    assert_type((await policy.acheck(Request(path="/"))).allowed, bool)


def told(error: LimitExceeded) -> None:
    assert_type(error.decision, Decision)
    assert_type(error.retry_after, float | None)


with frozen() as clock:
    assert_type(clock, FakeClock)
    clock.advance(5)


# Words beside a limit on a route are typed: a checker finds a misspelled word and a wrong algorithm.
flask = Flask("app")
limiter = RateLimiter(flask, limit="100/minute")


@flask.post("/login")
@limiter.limit("5/minute", by=lambda: "a", count_when="status == 401", algorithm="sliding_log", mode="shadow")
def login() -> str:
    return ""


RateLimit(lambda request: "5/minute", exempt_when=lambda request: True, on_breach=print, warn_at=0.8)
rate_limit("5/minute", cost=2, replaces_default=True)
django_limit("5/minute", by="user", penalty={"after": 1, "within": 60, "block": 60})
limiter.limit("5/minute", algoritm="gcra")  # type: ignore[call-arg]
limiter.limit("5/minute", algorithm="leaky")  # type: ignore[arg-type]
rate_limit("5/minute", mode="on")  # type: ignore[arg-type]
django_limit("5/minute", key="ip")  # type: ignore[call-arg]
RateLimit("5/minute", key_func=str)  # type: ignore[call-arg]
Limiter("5/minute", algorithm="leaky")  # type: ignore[arg-type]
RateLimiter(flask, default_limits=["5/minute"])  # type: ignore[call-arg]

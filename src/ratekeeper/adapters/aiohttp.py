"""aiohttp server: a policy for an application, and limits at its handlers.

    app = web.Application()
    setup(app, policy="rules.toml")

    @routes.post("/login")
    @rate_limit("5/minute")
    async def login(request): ...

Streams and WebSockets pass untouched: the fields are written when a response is prepared.
"""

from __future__ import annotations

from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.request_limits import DECIDED, RequestLimits
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.identity.request import Request
from ratekeeper.rules.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path
    from typing import TypeVar

    from ratekeeper.adapters.route_limit import Limits
    from ratekeeper.http.verdict import HttpVerdict

    Handler = Callable[..., Awaitable[web.StreamResponse]]
    Facts = Callable[[web.Request], Any]
    Target = TypeVar("Target", bound=Callable[..., Any])

POLICY = web.AppKey("ratekeeper.policy", Policy)
FACTS = web.AppKey("ratekeeper.facts", object)
KEY: Any = web.RequestKey(DECIDED, RequestLimits) if hasattr(web, "RequestKey") else DECIDED  # older ones take text
EXEMPT = "__ratekeeper_exempt__"
ALONE = Policy.parse({"rules": []})  # of handlers whose application has no policy


def setup(
    app: web.Application, policy: Policy | str | Path | Mapping[str, Any] | None = None, facts: Facts | None = None
) -> None:
    """Ask ``policy`` before each request of ``app`` and its sub-applications, and tell in each response how it stands.

    ``facts`` is a function of the request, plain or async, that tells what the application knows of it.
    """
    app[POLICY] = policy_of({"rules": []} if policy is None else policy)
    app[FACTS] = facts
    app.middlewares.append(middleware)
    app.on_response_prepare.append(tell)


@web.middleware
async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not hasattr(request.match_info.handler, EXEMPT):
        refusal = await check(request)
        if refusal is not None:
            return refused(refusal)
    try:
        return await handler(request)
    finally:
        decided: RequestLimits | None = request.get(KEY)
        if decided is not None and decided.leases:
            await decided.arelease()


async def tell(request: web.Request, response: web.StreamResponse) -> None:
    decided: RequestLimits | None = request.get(KEY)
    for name, value in decided.added if decided is not None else ():
        response.headers.add(name, value)


async def check(request: web.Request, own: RouteLimit | None = None) -> HttpVerdict | None:
    policy = request.config_dict.get(POLICY, ALONE)
    asked = request_of(request)
    facts: Any = request.config_dict.get(FACTS)
    if facts is not None:
        told = facts(request)
        asked.facts = await told if isawaitable(told) else told
    if own is not None:
        asked.facts = await own.afacts(asked.facts, request)
        policy = own.policy(policy)
    decided: RequestLimits = request.setdefault(KEY, RequestLimits())
    return await decided.acheck(policy, asked, lambda: request.transport is None or request.transport.is_closing())


def rate_limit(limit: Limits, **words: Any) -> Callable[[Target], Target]:
    """Limit a handler, a function or a method of a View: ``@rate_limit("5/minute", by=user_id)``.

    ``words`` are ``by``, ``cost``, ``name`` and those of a rule; functions take the request, and may be async.
    """
    own = RouteLimit(limit, **words)

    def decorate(handler: Any) -> Any:
        @wraps(handler)
        async def limited(target: Any, *args: Any, **kwargs: Any) -> Any:
            request = target if isinstance(target, web.Request) else target.request
            refusal = await check(request, own)
            try:
                return refused(refusal) if refusal is not None else await handler(target, *args, **kwargs)
            finally:
                if POLICY not in request.config_dict:  # else the middleware does it
                    await request[KEY].arelease()

        return limited

    return decorate


def exempt(handler: Target) -> Target:
    """Leave a handler alone: the policy does not count it; limits of its own still hold."""
    setattr(handler, EXEMPT, True)
    return handler


def request_of(request: web.Request) -> Request:
    peer = request.transport.get_extra_info("peername") if request.transport is not None else None
    resource = request.match_info.route.resource
    return Request(
        request.method,
        request.path,
        peer[0] if isinstance(peer, tuple) else None,
        request.raw_headers,
        route=resource.canonical if resource is not None else None,
        query=request.query_string.encode(),
        decoded=True,
    )


def refused(verdict: HttpVerdict) -> web.Response:
    media = dict(verdict.headers).get(b"content-type", b"application/octet-stream").decode("latin-1")
    return web.Response(body=verdict.body, status=verdict.status, headers={"Content-Type": media})

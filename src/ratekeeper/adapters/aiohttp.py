"""aiohttp server: a policy for an application, and limits on its handlers.

    app = web.Application()
    setup(app, policy="rules.toml")

    @routes.post("/login")
    @rate_limit("5/minute")
    async def login(request): ...

Streams and WebSockets pass untouched: the headers are added when a response is prepared.
"""

from __future__ import annotations

from functools import wraps
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework, policy_of

with framework(__name__):
    from aiohttp import web

from ratekeeper.adapters.request_limits import LIMITS, RequestLimits
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

__all__ = ["exempt", "rate_limit", "setup"]
POLICY = web.AppKey("ratekeeper.policy", Policy)
FACTS = web.AppKey("ratekeeper.facts", object)
KEY: Any = web.RequestKey(LIMITS, RequestLimits) if hasattr(web, "RequestKey") else LIMITS  # older versions take text
EXEMPT = "__ratekeeper_exempt__"
WITHOUT_RULES = Policy.parse({"rules": []})  # what limits inherit in an application without a policy


def setup(
    app: web.Application, policy: Policy | str | Path | Mapping[str, Any] | None = None, facts: Facts | None = None
) -> None:
    """Check each request of ``app`` and its sub-applications with ``policy``, and add the headers to each response.

    ``facts`` is a function of the request, plain or async, that returns what the application has verified.
    """
    app[POLICY] = policy_of({"rules": []} if policy is None else policy)
    app[FACTS] = facts
    app.middlewares.append(middleware)
    app.on_response_prepare.append(add_headers)


@web.middleware
async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    if not hasattr(request.match_info.handler, EXEMPT):
        verdict = await check(request)
        if not verdict.allowed:
            return refusal(verdict)
    try:
        return await handler(request)
    finally:
        limits: RequestLimits | None = request.get(KEY)
        if limits is not None and limits.leases:
            await limits.arelease()


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    limits: RequestLimits | None = request.get(KEY)
    for name, value in limits.added_headers if limits is not None else ():
        response.headers.add(name, value)


async def check(request: web.Request, route_limit: RouteLimit | None = None) -> HttpVerdict:
    policy = request.config_dict.get(POLICY, WITHOUT_RULES)
    checked = request_of(request)
    read_facts: Any = request.config_dict.get(FACTS)
    if read_facts is not None:
        facts = read_facts(request)
        checked.facts = await facts if isawaitable(facts) else facts
    if route_limit is not None:
        checked.facts = await route_limit.afacts(checked.facts, request)
        policy = route_limit.policy(policy)
    limits: RequestLimits = request.setdefault(KEY, RequestLimits())
    return await limits.acheck(policy, checked, lambda: request.transport is None or request.transport.is_closing())


def rate_limit(limit: Limits, **words: Any) -> Callable[[Target], Target]:
    """Limit a handler, a function or a method of a View: ``@rate_limit("5/minute", by=user_id)``.

    ``words`` are ``by``, ``cost``, ``name`` and those of a rule; functions take the request, and may be async.
    """
    route_limit = RouteLimit(limit, **words)

    def decorate(handler: Any) -> Any:
        @wraps(handler)
        async def limited(target: Any, *args: Any, **kwargs: Any) -> Any:
            request = target if isinstance(target, web.Request) else target.request
            verdict = await check(request, route_limit)
            try:
                return await handler(target, *args, **kwargs) if verdict.allowed else refusal(verdict)
            finally:
                if POLICY not in request.config_dict:  # else the middleware does it
                    await request[KEY].arelease()

        return limited

    return decorate


def exempt(handler: Target) -> Target:
    """Exempt a handler from the policy; its own limits still apply."""
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


def refusal(verdict: HttpVerdict) -> web.Response:
    media = dict(verdict.headers).get(b"content-type", b"application/octet-stream").decode("latin-1")
    return web.Response(body=verdict.body, status=verdict.status, headers={"Content-Type": media})

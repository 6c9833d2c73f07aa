"""aiohttp server: a policy for an application, and limits on its handlers.

    app = web.Application()
    setup(app, limit="100/minute")
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
from urllib.parse import unquote
from weakref import WeakKeyDictionary, ref

from ratekeeper.adapters import expect_facts, framework, policy_of
from ratekeeper.adapters.hooks import NO_HOOKS, Hooks

with framework(__name__):
    from aiohttp import web

from ratekeeper.adapters.request_limits import LIMITS, RequestLimits
from ratekeeper.adapters.route_limit import REPLACES_DEFAULT, RouteLimit
from ratekeeper.adapters.route_table import warn_of_unreachable_rules
from ratekeeper.errors import LimitExceeded
from ratekeeper.identity.request import Request
from ratekeeper.rules.exceeded import exceeded
from ratekeeper.rules.policy import Policy
from ratekeeper.rules.unreachable import route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar, Unpack

    from ratekeeper.adapters import PlainLimits, Rules
    from ratekeeper.adapters.hooks import ExemptWhen, OnBreach
    from ratekeeper.adapters.route_limit import Limits, LimitWords
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.match import Pattern
    from ratekeeper.stores.protocol import Store

    Handler = Callable[..., Awaitable[web.StreamResponse]]
    Facts = Callable[[web.Request], Any]
    Target = TypeVar("Target", bound=Callable[..., Any])

__all__ = ["exempt", "rate_limit", "setup", "verdict_of"]
POLICY = web.AppKey("ratekeeper.policy", Policy)
FACTS = web.AppKey("ratekeeper.facts", object)
HOOKS = web.AppKey("ratekeeper.hooks", Hooks)
KEY: Any = web.RequestKey(LIMITS, RequestLimits) if hasattr(web, "RequestKey") else LIMITS  # older versions take text
EXEMPT = "__ratekeeper_exempt__"
WITHOUT_RULES = Policy.parse({"rules": []})  # what limits inherit in an application without a policy


def setup(
    app: web.Application,
    policy: Rules | None = None,
    facts: Facts | None = None,
    *,
    limit: PlainLimits | None = None,
    store: str | Store | None = None,
    exempt_when: ExemptWhen | None = None,
    on_breach: OnBreach | None = None,
) -> None:
    """Check each request of ``app`` and its sub-applications with ``policy``, and add the headers to each response.

    ``facts`` is a function of the request, plain or async, that returns what the application has verified.
    ``exempt_when`` is one that says whether a request is exempt from every limit.  ``on_breach`` is called with the
    verdict of each refusal, unless a limit on the handler has its own; what it returns answers the request, unless it
    is None.
    """
    app[HOOKS] = Hooks("setup", exempt_when, on_breach, awaits=True)
    is_empty = policy is None and limit is None and store is None
    opened = app[POLICY] = policy_of({"rules": []} if is_empty else policy, limit=limit, store=store)

    async def warm_up(_: web.Application) -> None:
        opened.warm_up(for_loop=True)

    app.on_startup.append(warm_up)
    app[FACTS] = facts
    app.middlewares.append(middleware)
    app.on_response_prepare.append(add_headers)


@web.middleware
async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
    hooks = request.config_dict.get(HOOKS, NO_HOOKS)
    if hooks.exempt_when is not None:
        request.setdefault(KEY, RequestLimits()).is_exempt = await hooks.aexempts(request)
    if not is_exempt(request):
        verdict = await check(request)
        if not verdict.allowed:
            return await answer_to(request, verdict)
    try:
        return await handler(request)
    except LimitExceeded as error:
        answered: RequestLimits = request.setdefault(KEY, RequestLimits())
        answered.refuse(exceeded(error, request_of(request), request.config_dict.get(POLICY)))
        return await answer_to(request, answered.verdict)  # type: ignore[arg-type]
    finally:
        limits: RequestLimits | None = request.get(KEY)
        if limits is not None and limits.leases:
            await limits.arelease()


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    limits: RequestLimits | None = request.get(KEY)
    if limits is not None:
        await limits.asettle(response.status, response)
    for name, value in limits.headers_beside(response.headers) if limits is not None else ():
        response.headers.add(name, value)


async def check(request: web.Request, route_limit: RouteLimit | None = None) -> HttpVerdict:
    policy = request.config_dict.get(POLICY, WITHOUT_RULES)
    checked = request_of(request)
    checked.root_path = mount_of(request).prefix
    if route_limit is None:
        mount_of(request).look_for_unreachable_rules(policy)
    read_facts: Any = request.config_dict.get(FACTS)
    if read_facts is not None:
        facts = read_facts(request)
        checked.facts = expect_facts(await facts if isawaitable(facts) else facts)
    limits: RequestLimits = request.setdefault(KEY, RequestLimits())
    if route_limit is not None:
        checked.facts = await route_limit.afacts(checked.facts, request)
        policy = limits.policy_of(route_limit, policy)
    elif hasattr(request.match_info.handler, REPLACES_DEFAULT):
        policy = policy.without_defaults()
    return await limits.acheck(policy, checked, lambda: request.transport is None or request.transport.is_closing())


class Mount:
    """The application that has the policy of a request, and the prefix under which it is a sub-application."""

    def __init__(self, apps: Sequence[web.Application]) -> None:
        depth = max([number for number, app in enumerate(apps) if POLICY in app], default=0)
        self.prefix = ""
        self.app = ref(apps[depth])
        self.checked_rules: object = None  # whose unreachable rules were logged
        for resource in apps[depth - 1].router.resources() if depth else ():
            if resource.get_info().get("app") is apps[depth]:  # its prefix begins with those around it
                self.prefix = unquote(resource.get_info().get("prefix", ""))

    def look_for_unreachable_rules(self, policy: Policy) -> None:
        """Log the rules that no route can match: at the first request, and after each reload."""
        app = self.app()
        if app is not None and policy.compiled is not self.checked_rules:
            self.checked_rules = policy.compiled
            warn_of_unreachable_rules(policy, routes_of(app, self.prefix))


mounts: WeakKeyDictionary[web.Application, Mount] = WeakKeyDictionary()  # by the application that answers


def mount_of(request: web.Request) -> Mount:
    apps = request.match_info.apps
    mount = mounts.get(apps[-1])
    if mount is None:
        mount = mounts[apps[-1]] = Mount(apps)
    return mount


def routes_of(app: web.Application, prefix: str) -> list[Pattern]:
    """The routes of ``app`` and its sub-applications, below ``prefix``."""
    patterns = []
    for resource in app.router.resources():
        described = resource.get_info()
        path = unquote(resource.canonical).removeprefix(prefix)
        methods = [each.method for each in resource]
        if isinstance(inner := described.get("app"), web.Application):
            patterns += routes_of(inner, prefix)
        elif "prefix" in described:  # a folder
            patterns.append(route(path + "/**"))
        elif "pattern" in described and described["pattern"].pattern.count("[^{}/]+") != path.count("{"):
            patterns.append(route(path.partition("{")[0] + "{rest:path}"))  # an expression may match slashes too
        else:
            patterns.append(route(path, None if "*" in methods else methods))
    return patterns


def rate_limit(limit: Limits, **words: Unpack[LimitWords]) -> Callable[[Target], Target]:
    """Limit a handler, a function or a method of a View: ``@rate_limit("5/minute", by=user_id)``.

    ``words`` are ``by``, ``cost``, ``name``, ``exempt_when``, ``count_when``, ``on_breach``, ``replaces_default`` and
    those of a rule; functions take the request, and may be async.  ``count_when`` may be a plain function of the
    response.  What ``on_breach`` returns answers a refusal, unless it is None.
    """
    route_limit = RouteLimit(limit, **words)

    def decorate(handler: Any) -> Any:
        @wraps(handler)
        async def limited(target: Any, *args: Any, **kwargs: Any) -> Any:
            request = target if isinstance(target, web.Request) else target.request
            if is_exempt(request):
                return await handler(target, *args, **kwargs)
            verdict = await check(request, route_limit)
            if not verdict.allowed:
                return await answer_to(request, verdict, route_limit)
            if POLICY in request.config_dict:  # the middleware does the rest
                return await handler(target, *args, **kwargs)
            limits: RequestLimits = request[KEY]
            try:
                response = await handler(target, *args, **kwargs)
                await limits.asettle(response.status, response)
            except web.HTTPException as error:
                await limits.asettle(error.status, error)
                raise
            except Exception:
                await limits.asettle(500, web.Response(status=500))
                raise
            finally:
                await limits.arelease()
            return response

        if route_limit.replaces_default:
            setattr(limited, REPLACES_DEFAULT, True)
        return limited

    return decorate


def verdict_of(request: web.Request) -> HttpVerdict | None:
    """The verdict on a request so far; its ``limited`` says whether a limit refused the request, or would have."""
    limits: RequestLimits | None = request.get(KEY)
    return limits.verdict if limits is not None else None


def exempt(handler: Target) -> Target:
    """Exempt a handler from every limit: those of the policy and its own."""
    setattr(handler, EXEMPT, True)
    return handler


def is_exempt(request: web.Request) -> bool:
    limits: RequestLimits | None = request.get(KEY)
    return hasattr(request.match_info.handler, EXEMPT) or (limits is not None and limits.is_exempt)


async def answer_to(request: web.Request, verdict: HttpVerdict, route_limit: RouteLimit | None = None) -> Any:
    """The answer to a refusal: the application's own, or ours."""
    answer = await request.config_dict.get(HOOKS, NO_HOOKS).aanswer(verdict, route_limit)
    return refusal(verdict) if answer is None else answer


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

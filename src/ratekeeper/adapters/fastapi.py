"""FastAPI dependency: a limit on a route, a router or an application.

    @app.get("/search", dependencies=[Depends(RateLimit("10/minute"))])

It counts each client on each route; limits with the same ``name`` share one counter.  Behind a ``RateLimitMiddleware``
it inherits the middleware's policy.  ``by`` and ``cost`` may be functions of the request, or dependencies with
dependencies of their own, sync or async.  A request that one limit refuses is charged to none, the middleware's rules
included.  ``document(app)`` shows 429s in OpenAPI.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from json import loads
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework

with framework(__name__):
    from fastapi import Depends, FastAPI, HTTPException, Response, WebSocketException
    from fastapi.routing import APIRoute
    from starlette.requests import HTTPConnection

from ratekeeper.adapters.asgi import (
    HOOKS,
    IS_EXEMPT,
    POLICY,
    TRY_AGAIN_LATER,
    VERDICT,
    Answered,
    limits_of,
    request_of,
)
from ratekeeper.adapters.hooks import NO_HOOKS, Hooks
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.adapters.route_limit import COST, EXEMPT, LIMIT, POSITIONAL, RouteLimit, is_leased
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.identity.identity import SUBJECT
from ratekeeper.rules.exceeded import exceeded
from ratekeeper.rules.policy import Policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from typing import Unpack

    from ratekeeper.adapters.route_limit import Limits, RuleWords
    from ratekeeper.clock import Clock
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.stores.protocol import Store

__all__ = ["RateLimit", "answer_limit_exceeded", "document"]
TOO_MANY: dict[int | str, dict[str, Any]] = {
    429: {"description": "Too many requests", "headers": {"Retry-After": {"schema": {"type": "integer"}}}}
}


WRAPPED = "__ratekeeper_headers__"  # on an endpoint whose responses get the headers
current_limits: ContextVar[RequestLimits | None] = ContextVar("ratekeeper.limits", default=None)


class RateLimit:
    """Limit a route: ``Depends(RateLimit("10/minute"))``, ``Depends(RateLimit("5/minute", by=user_id))``.

    ``by`` is a source such as ``"header:X-Api-Key"`` or a function; if the function returns None, the client's address
    is used.  The limit inherits trusted proxies, identity, exemptions, response, store and sinks from ``policy``, else
    from the policy of the ``RateLimitMiddleware`` nearest in front of the route.  Without either, it counts peer
    addresses in this process.  ``limit`` and ``cost`` may be functions too, and so may ``exempt_when``, which says
    whether a request is exempt.  ``count_when`` says which responses count, ``"status >= 400"`` or a function of the
    response, and needs the middleware.  ``on_breach`` is called with the verdict of each refusal; behind the middleware
    it may return a Response that answers the request.

    ``store`` and ``settings`` (as in a rules file) replace what it would inherit.  Other
    words are those of a rule.

    With ``default=True`` it is a limit for the remaining routes, as a dependency of the application or a router: a
    route does not meet it if one of its own limits has ``replaces_default=True``.
    """

    responses = TOO_MANY

    if not TYPE_CHECKING:  # a checker sees the signature of __init__

        def __new__(cls, limit: Limits, **words: Any) -> RateLimit:
            return object.__new__(ConcurrencyLimit if cls is RateLimit and is_leased(limit) else cls)

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: int | str | Mapping[str, Any] | Callable[..., Any] = 1,
        name: str | None = None,
        exempt_when: Callable[..., Any] | None = None,
        count_when: str | Callable[[Any], bool] | None = None,
        on_breach: Callable[[HttpVerdict], Any] | None = None,
        policy: Policy | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        settings: Mapping[str, Any] | None = None,
        default: bool = False,
        replaces_default: bool = False,
        **rule: Unpack[RuleWords],
    ) -> None:
        self.is_default = default
        self.replaces_default = replaces_default
        if default and replaces_default:
            raise InvalidInput("RateLimit: expected default or replaces_default, got both. A default replaces nothing.")
        if not (policy is None or isinstance(policy, Policy)):
            raise InvalidInput(
                f"policy: expected the Policy that the limit inherits from, got {shown(policy)}. Use Policy.load first."
            )
        self._policy = policy
        self._limit = RouteLimit(
            limit,
            by=by,
            cost=cost,
            name=name,
            exempt_when=exempt_when,
            count_when=count_when,
            on_breach=on_breach,
            store=store,
            clock=clock,
            settings=settings,
            **rule,
        )
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("connection", keyword, annotation=HTTPConnection),
            inspect.Parameter("response", keyword, annotation=Response),
        ]
        self._functions: dict[str, Callable[..., Any]] = {}  # of the request, by the fact that each returns
        self._injected: dict[str, str] = {}  # what FastAPI resolves: the fact, by the name of the parameter
        functions = {
            EXEMPT: ("exempted", exempt_when),
            SUBJECT: ("subject", self._limit.by),
            COST: ("amount", self._limit.cost),
            LIMIT: ("computed", self._limit.limit),
        }
        for fact, (parameter, function) in functions.items():
            if function is not None and takes_request(function):
                self._functions[fact] = function
            elif function is not None:
                parameters.append(inspect.Parameter(parameter, keyword, default=Depends(function), annotation=Any))
                self._injected[parameter] = fact
        self.__signature__ = inspect.Signature(parameters)  # what FastAPI injects

    async def __call__(self, *, connection: HTTPConnection, response: Response, **injected: Any) -> HttpVerdict | None:
        """Decide, and raise HTTPException with status 429 on a refusal; None if the limit does not apply."""
        scope = connection.scope
        if scope.get(IS_EXEMPT) or (self.is_default and replaces_defaults(scope.get("route"))):
            return None
        facts = {self._injected[parameter]: value for parameter, value in injected.items()}
        for fact, function in self._functions.items():
            if facts.get(EXEMPT) is not True:  # the other functions need not know such a request
                facts[fact] = await called(function, connection)
        limits = limits_of(scope)
        if self._limit.counts_responses and limits.header_writer is None:
            raise InvalidInput(
                "RateLimit: expected RateLimitMiddleware in front of the application, as nothing else sees the "
                "response that count_when asks about. "
                "Write app.add_middleware(RateLimitMiddleware, policy={'rules': []})."
            )
        request = request_of(scope)
        request.route = getattr(scope.get("route"), "path", None)
        request.facts = {**(limits.facts or {}), **facts}
        main = self._policy or limits.policy
        earlier = limits.verdict
        policy = limits.policy_of(self._limit, main)
        verdict = await limits.acheck(policy, request)
        if not verdict.allowed:
            hooks: Hooks = scope.get(HOOKS, NO_HOOKS)
            answer = await hooks.aanswer(verdict, self._limit)
            if answer is not None and limits.header_writer is None:
                raise InvalidInput(
                    "on_breach: expected None, as a dependency alone cannot answer a request, got a value. Raise an "
                    "HTTPException, or write app.add_middleware(RateLimitMiddleware, policy={'rules': []})."
                )
            raise refusal(scope, verdict) if answer is None else Answered(answer, verdict)
        scope[VERDICT] = limits.verdict
        if limits.header_writer is None:  # else the middleware adds the headers
            write_headers_beside(scope, limits)
            fields = response.headers.raw
            if earlier is not None:  # one set of headers for all limits, in place of the earlier ones
                names = {name for name, _ in earlier.headers}
                fields[:] = [field for field in fields if field[0] not in names]
            fields.extend(limits.verdict.headers)  # type: ignore[union-attr]
        return verdict


class ConcurrencyLimit(RateLimit):
    """A RateLimit such as ``"3 concurrent"``: a request holds its slot until the response is done."""

    async def __call__(  # type: ignore[override]
        self, *, connection: HTTPConnection, **injected: Any
    ) -> AsyncIterator[HttpVerdict | None]:
        verdict = await RateLimit.__call__(self, connection=connection, **injected)
        limits = limits_of(connection.scope)
        if verdict is None:
            yield None
            return
        lease = limits.leases[-1]
        lease.start_renewal()
        try:
            yield verdict
        finally:
            await limits.arelease(lease)


def write_headers_beside(scope: Any, limits: RequestLimits) -> None:
    """Add the headers to a Response that the endpoint returns, or an HTTPException that it raises.

    FastAPI merges the headers of dependencies into its own responses only.  So the endpoint is wrapped, once and for
    all its requests; the context of each request knows its limits.
    """
    current_limits.set(limits)
    included = scope.get("fastapi", {}).get("effective_route_context")  # of an included router
    dependant: Any = getattr(scope.get("route") if included is None else included, "dependant", None)
    endpoint = getattr(dependant, "call", None)
    if endpoint is None or scope["type"] != "http" or hasattr(endpoint, WRAPPED):
        return
    if inspect.isgeneratorfunction(endpoint) or inspect.isasyncgenfunction(endpoint):
        return
    if inspect.iscoroutinefunction(endpoint):

        @wraps(endpoint)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with headers_of_errors():
                return with_headers(await endpoint(*args, **kwargs))

        dependant.call = awaited
    elif inspect.isfunction(endpoint) or inspect.ismethod(endpoint):

        @wraps(endpoint)
        def called(*args: Any, **kwargs: Any) -> Any:
            with headers_of_errors():
                return with_headers(endpoint(*args, **kwargs))

        dependant.call = called
    if dependant.call is not endpoint:
        setattr(dependant.call, WRAPPED, True)


def with_headers(response: Any) -> Any:
    limits = current_limits.get()
    if isinstance(response, Response) and limits is not None:
        present = {name.decode("latin-1") for name, _ in response.raw_headers}
        for name, value in limits.headers_beside(present):
            response.headers.append(name, value)
    return response


@contextmanager
def headers_of_errors() -> Iterator[None]:
    try:
        yield
    except HTTPException as error:
        limits = current_limits.get()
        if limits is not None and limits.refusal is None:
            present = {name.lower() for name in error.headers or {}}
            error.headers = {**dict(limits.headers_beside(present)), **(error.headers or {})}
        raise


def takes_request(function: Callable[..., Any]) -> bool:
    """Whether the function takes the request and nothing else; FastAPI resolves any other as a dependency.

    One parameter without annotation and default is the request, whatever its name: as a dependency it would be a
    required query parameter, and clients without it would be answered 422.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in POSITIONAL:
        return False
    kind = parameters[0].annotation
    if kind is inspect.Parameter.empty:
        return parameters[0].default is inspect.Parameter.empty
    return issubclass(kind, HTTPConnection) if inspect.isclass(kind) else str(kind).endswith(("Request", "Connection"))


async def called(function: Callable[..., Any], connection: HTTPConnection) -> Any:
    value = function(connection)
    return await value if inspect.isawaitable(value) else value


def refusal(scope: Any, verdict: HttpVerdict) -> Exception:
    if scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, verdict.message)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in verdict.headers}
    headers.pop("content-type", None)
    is_json = b"json" in dict(verdict.headers).get(b"content-type", b"")
    detail = loads(verdict.body) if is_json else verdict.message
    return HTTPException(verdict.status, detail, headers)


async def answer_limit_exceeded(request: HTTPConnection, error: Exception) -> Response:
    """Answer 429 where ``@limiter.limit`` of a plain Limiter refused; a ``RateLimitMiddleware`` does that by itself.

    ``app.add_exception_handler(LimitExceeded, answer_limit_exceeded)``
    """
    if not isinstance(error, LimitExceeded):
        raise error
    scope = request.scope
    verdict = exceeded(error, request_of(scope), scope.get(POLICY))
    limits_of(scope).refuse(verdict)
    hooks: Hooks = scope.get(HOOKS, NO_HOOKS)
    answer = await hooks.aanswer(verdict)
    if answer is not None:
        return answer  # the middleware, whose hook it is, adds the headers
    response = Response(verdict.body, verdict.status)
    response.raw_headers.extend(verdict.headers)
    return response


def document(app: FastAPI) -> None:
    """Show the 429 of every route that has a RateLimit in the OpenAPI document of ``app``."""
    for route in app.routes:
        if isinstance(route, APIRoute) and has_limit(route.dependant):
            route.responses = {**TOO_MANY, **route.responses}
    app.openapi_schema = None


def replaces_defaults(route: Any) -> bool:
    """Whether a limit on the route says that it replaces the default ones."""
    return route is not None and any(limit.replaces_default for limit in limits_on(route.dependant))


def limits_on(dependant: Any) -> Iterator[RateLimit]:
    if isinstance(dependant.call, RateLimit):
        yield dependant.call
    for each in dependant.dependencies:
        yield from limits_on(each)


def has_limit(dependant: Any) -> bool:
    return isinstance(dependant.call, RateLimit) or any(has_limit(each) for each in dependant.dependencies)

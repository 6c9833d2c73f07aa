"""FastAPI dependency: a limit on a route, a router or an application.

    @app.get("/search", dependencies=[Depends(RateLimit("10/minute"))])

It counts each client on each route; limits with the same ``name`` share one counter.  Behind a ``RateLimitMiddleware``
it inherits the middleware's policy.  ``by`` and ``cost`` may be functions of the request, or dependencies with
dependencies of their own, sync or async.  A request that one limit refuses is charged to none, the middleware's rules
included.  ``document(app)`` shows 429s in OpenAPI.
"""

from __future__ import annotations

import inspect
from json import loads
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import framework

with framework(__name__):
    from fastapi import Depends, FastAPI, HTTPException, Response, WebSocketException
    from fastapi.routing import APIRoute
    from starlette.requests import HTTPConnection

from ratekeeper.adapters.asgi import TRY_AGAIN_LATER, VERDICT, limits_of, request_of
from ratekeeper.adapters.route_limit import RouteLimit, is_leased
from ratekeeper.errors import InvalidInput, shown
from ratekeeper.rules.policy import Policy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ratekeeper.adapters.route_limit import Limits
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.stores.protocol import Store

__all__ = ["RateLimit", "document"]
TOO_MANY: dict[int | str, dict[str, Any]] = {
    429: {"description": "Too many requests", "headers": {"Retry-After": {"schema": {"type": "integer"}}}}
}


class RateLimit:
    """Limit a route: ``Depends(RateLimit("10/minute"))``, ``Depends(RateLimit("5/minute", by=user_id))``.

    ``by`` is a source such as ``"header:X-Api-Key"`` or a function; if the function returns None, the client's address
    is used.  The limit inherits trusted proxies, identity, exemptions, response, store and sinks from ``policy``, else
    from the policy of the ``RateLimitMiddleware`` nearest in front of the route.  Without either, it counts peer
    addresses in this process.  ``store`` and ``settings`` (as in a rules file) replace what it would inherit.  Other
    words are those of a rule.
    """

    responses = TOO_MANY

    def __new__(cls, limit: Limits, **words: Any) -> RateLimit:
        return object.__new__(ConcurrencyLimit if cls is RateLimit and is_leased(limit) else cls)

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: int | Callable[..., Any] = 1,
        name: str | None = None,
        policy: Policy | None = None,
        store: str | Store | None = None,
        clock: Any = None,
        settings: dict[str, Any] | None = None,
        **rule: Any,
    ) -> None:
        if not (policy is None or isinstance(policy, Policy)):
            raise InvalidInput(
                f"policy: expected the Policy that the limit inherits from, got {shown(policy)}. Use Policy.load first."
            )
        self._policy = policy
        self._limit = RouteLimit(
            limit, by=by, cost=cost, name=name, store=store, clock=clock, settings=settings, **rule
        )
        self._by, self._cost = self._limit.by, self._limit.cost
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("connection", keyword, annotation=HTTPConnection),
            inspect.Parameter("response", keyword, annotation=Response),
        ]
        if self._by is not None and not takes_request(self._by):
            parameters.append(inspect.Parameter("subject", keyword, default=Depends(self._by), annotation=Any))
            self._by = None
        if self._cost is not None and not takes_request(self._cost):
            parameters.append(inspect.Parameter("amount", keyword, default=Depends(self._cost), annotation=Any))
            self._cost = None
        self.__signature__ = inspect.Signature(parameters)  # what FastAPI injects

    async def __call__(
        self, *, connection: HTTPConnection, response: Response, subject: Any = None, amount: Any = None
    ) -> HttpVerdict:
        """Decide, and raise HTTPException with status 429 if the request is refused."""
        scope = connection.scope
        if self._by is not None:
            subject = await called(self._by, connection)
        if self._cost is not None:
            amount = await called(self._cost, connection)
        limits = limits_of(scope)
        request = request_of(scope)
        request.route = getattr(scope.get("route"), "path", None)
        request.facts = {**(limits.facts or {}), "subject": subject, "cost": amount}
        main = self._policy or limits.policy
        earlier = limits.verdict
        policy = self._limit.policy(main) if main is not None else self._limit.alone or self._limit.without_main()
        verdict = await limits.acheck(policy, request)
        if not verdict.allowed:
            raise refusal(scope, verdict)
        scope[VERDICT] = limits.verdict
        if limits.header_writer is None:  # else the middleware adds the headers
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
    ) -> AsyncIterator[HttpVerdict]:
        verdict = await RateLimit.__call__(self, connection=connection, **injected)
        limits = limits_of(connection.scope)
        lease = limits.leases[-1]
        lease.start_renewal()
        try:
            yield verdict
        finally:
            await limits.arelease(lease)


def takes_request(function: Callable[..., Any]) -> bool:
    """Whether the function takes the request and nothing else; FastAPI resolves any other as a dependency."""
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1:
        return False
    kind = parameters[0].annotation
    is_request = issubclass(kind, HTTPConnection) if inspect.isclass(kind) else str(kind).endswith("Request")
    return is_request or parameters[0].name in ("request", "connection")


async def called(function: Callable[..., Any], connection: HTTPConnection) -> Any:
    value = function(connection)
    return await value if inspect.isawaitable(value) else value


def refusal(scope: Any, verdict: HttpVerdict) -> Exception:
    if scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, verdict.message)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in verdict.headers}
    headers.pop("content-type", None)
    form = verdict.response
    is_json = form.render is None and form.body in ("json", "problem")
    detail = loads(verdict.body) if is_json else verdict.message
    return HTTPException(verdict.status, detail, headers)


def document(app: FastAPI) -> None:
    """Show the 429 of every route that has a RateLimit in the OpenAPI document of ``app``."""
    for route in app.routes:
        if isinstance(route, APIRoute) and has_limit(route.dependant):
            route.responses = {**TOO_MANY, **route.responses}
    app.openapi_schema = None


def has_limit(dependant: Any) -> bool:
    return isinstance(dependant.call, RateLimit) or any(has_limit(each) for each in dependant.dependencies)

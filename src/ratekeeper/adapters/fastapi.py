"""FastAPI dependency: a limit on a route, a router or an application.

    @app.get("/search", dependencies=[Depends(RateLimit("10/minute"))])

Counts each client, by address, on each route; with a ``name``, all routes of that name together.  ``by`` and ``cost``
may be functions of the request, or dependencies with dependencies of their own, sync or async.  Several of them on a
route hold together: what one refuses, the others and the middleware get back.  ``document(app)`` shows 429s in OpenAPI.
"""

from __future__ import annotations

import inspect
from json import loads
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, HTTPException, Response, WebSocketException
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from ratekeeper.adapters.asgi import TAKEN, TRY_AGAIN_LATER, VERDICT, request_of
from ratekeeper.adapters.asked import asks, called
from ratekeeper.adapters.request_leases import RequestLeases, rates_back
from ratekeeper.adapters.route_limit import is_held, plain, title
from ratekeeper.rules.policy import Policy
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from ratekeeper.adapters.route_limit import Limits
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.stores.protocol import Store

DECIDED = "ratekeeper.dependencies"  # in the scope: what the dependencies of this request have decided so far
TOO_MANY: dict[int | str, dict[str, Any]] = {
    429: {"description": "Too many requests", "headers": {"Retry-After": {"schema": {"type": "integer"}}}}
}


class RateLimit:
    """Limit a route: ``Depends(RateLimit("10/minute"))``, ``Depends(RateLimit("5/minute", by=user_id))``.

    ``by`` is a source such as ``"header:X-Api-Key"`` or a function; who has no name is counted by address.  Other words
    are those of a rule, and ``settings`` those of a rules file: ``{"trusted_proxies": ["10.0.0.0/8"]}``.
    """

    responses = TOO_MANY

    def __new__(cls, limit: Limits, **words: Any) -> RateLimit:
        return object.__new__(Holding if cls is RateLimit and is_held(limit) else cls)

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: int | Callable[..., Any] = 1,
        name: str | None = None,
        store: str | Store | None = None,
        clock: Any = None,
        settings: dict[str, Any] | None = None,
        **rule: Any,
    ) -> None:
        who = "ip" if by is None else "app:subject" if callable(by) else by
        rule |= {"name": name or title(limit, rule.get("algorithm")), "limit": plain(limit)}
        rule["by"] = who if name else ["route", who]
        rule["cost"] = (lambda request: request.facts["cost"]) if callable(cost) else cost
        self.policy = Policy.parse({**(settings or {}), "rules": [rule]}, store=store, clock=clock)
        self.by, self.is_plain_by = asks(by)
        self.cost, self.is_plain_cost = asks(cost)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("connection", keyword, annotation=HTTPConnection),
            inspect.Parameter("response", keyword, annotation=Response),
        ]
        if self.by is not None and not self.is_plain_by:
            parameters.append(inspect.Parameter("subject", keyword, default=Depends(self.by), annotation=Any))
        if self.cost is not None and not self.is_plain_cost:
            parameters.append(inspect.Parameter("amount", keyword, default=Depends(self.cost), annotation=Any))
        self.__signature__ = inspect.Signature(parameters)  # what FastAPI injects

    async def __call__(
        self, *, connection: HTTPConnection, response: Response, subject: Any = None, amount: Any = None
    ) -> HttpVerdict:
        """Decide, and raise HTTPException with status 429 if the request is refused."""
        scope = connection.scope
        if self.by is not None and self.is_plain_by:
            subject = await called(self.by, connection)
        if self.cost is not None and self.is_plain_cost:
            amount = await called(self.cost, connection)
        request = request_of(scope)
        request.route = getattr(scope.get("route"), "path", None)
        request.facts = {"subject": subject, "cost": amount}
        policy = self.policy
        verdict = await policy.acheck(request) if policy.blocking else policy.check(request)
        decided = scope.setdefault(DECIDED, [])
        if not verdict.allowed:
            if VERDICT in scope:
                scope[VERDICT].yield_to(verdict)
            for taken in (*decided, scope[TAKEN]) if TAKEN in scope else decided:
                await rates_back(*taken)
            raise refusal(scope, verdict)
        decided.append((policy, verdict, verdict.answers))  # its own answers: those of others join it below
        if policy.delays and verdict.delay:
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
            except BaseException:
                await policy.agive_back(verdict)
                raise
        if VERDICT in scope:  # the middleware sends the fields, of its own rules and of these
            scope[VERDICT].join(verdict)
        else:
            first, raw = decided[0][1], response.headers.raw
            if first is not verdict:  # one set of fields for all, in the place of those sent so far
                sent = {name for name, _ in first.headers}
                raw[:] = [field for field in raw if field[0] not in sent]
                first.join(verdict)
            raw.extend(first.headers)
        return verdict


class Holding(RateLimit):
    """A RateLimit such as ``"3 concurrent"``: its place is held until the response is done."""

    async def __call__(self, **injected: Any) -> AsyncIterator[HttpVerdict]:  # type: ignore[override]
        verdict = await RateLimit.__call__(self, **injected)
        async with RequestLeases(self.policy, verdict):
            yield verdict


def refusal(scope: Any, verdict: HttpVerdict) -> Exception:
    if scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, verdict.message)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in verdict.headers}
    headers.pop("content-type", None)
    detail = loads(verdict.body) if verdict.response.body in ("json", "problem") else verdict.message
    return HTTPException(verdict.status, detail, headers)


def document(app: FastAPI) -> None:
    """Show the 429 of every route that has a RateLimit in the OpenAPI document of ``app``."""
    for route in app.routes:
        if isinstance(route, APIRoute) and limited(route.dependant):
            route.responses = {**TOO_MANY, **route.responses}
    app.openapi_schema = None


def limited(dependant: Any) -> bool:
    return isinstance(dependant.call, RateLimit) or any(limited(own) for own in dependant.dependencies)

"""ASGI middleware, for Starlette, FastAPI, Litestar, Quart and any other.

    app = RateLimitMiddleware(app, policy="rules.toml")

Bodies and streams pass untouched, WebSocket handshakes are requests, and rules that count messages see each one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.request_leases import RequestLeases
from ratekeeper.adapters.route_template import route_of
from ratekeeper.adapters.turn import wait_turn
from ratekeeper.http.verdict import STATUS
from ratekeeper.identity.request import new_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping
    from pathlib import Path

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    Facts = Callable[[Scope], Mapping[str, Any] | None]

VERDICT = "ratekeeper.verdict"  # in the scope: what was decided, for the application to read
TAKEN = "ratekeeper.taken"  # in the scope: what is to be given back if a limit of the route refuses
TRY_AGAIN_LATER = 1013  # the WebSocket close code
STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})


class RateLimitMiddleware:
    """Ask a policy before each request.  ``facts`` tells what the application has verified, as a dictionary."""

    def __init__(self, app: App, policy: Policy | str | Path | Mapping[str, Any], facts: Facts | None = None) -> None:
        self.app = app
        self.policy = policy_of(policy)
        self.facts = facts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            return await self.app(scope, receive, send)
        request = request_of(scope)
        if self.facts is not None:
            request.facts = self.facts(scope)
        policy = self.policy
        if policy.asks_route:
            request.route = route_of(scope, self.app)
        verdict = await policy.acheck(request) if policy.blocking else policy.check(request)
        if not verdict.allowed:
            return await refuse(scope, verdict, send)
        if policy.delays and verdict.delay:
            turn = await wait_turn(policy, verdict, receive)
            if turn is None:
                return None
            receive = turn
        scope[VERDICT] = verdict
        scope[TAKEN] = policy, verdict, verdict.answers
        if kind == "websocket" and policy.limits_messages:
            receive = counted(policy, request, receive, send)
        if not policy.leases:
            return await self.app(scope, receive, sender(verdict, send))
        async with RequestLeases(policy, verdict):
            return await self.app(scope, receive, sender(verdict, send))


def request_of(scope: Scope) -> Request:
    peer = client[0] if (client := scope.get("client")) else None
    return new_request(scope.get("method", "GET"), scope["path"], peer, scope["headers"], scope["query_string"])


def sender(verdict: HttpVerdict, send: Send) -> Send:
    """``send``, with the fields of the verdict on the first message of the response."""

    def with_fields(message: Message) -> Awaitable[None]:
        if message["type"] in STARTS:
            message["headers"] = [*message.get("headers", ()), *verdict.headers]
        return send(message)

    return with_fields


async def refuse(scope: Scope, verdict: HttpVerdict, send: Send) -> None:
    """Answer with the verdict; a handshake is closed with 403 where the server cannot send another answer."""
    start = "http.response"
    headers, body = verdict.headers, verdict.body
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            return await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": verdict.message})
        start = "websocket.http.response"
    fields = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": start + ".start", "status": STATUS[verdict.why], "headers": fields})
    return await send({"type": start + ".body", "body": b"" if scope.get("method") == "HEAD" else body})


def counted(policy: Policy, request: Request, receive: Receive, send: Send) -> Receive:
    """``receive``, asking the policy before each message; one too many closes the socket."""

    async def checked() -> Message:
        message = await receive()
        if message["type"] != "websocket.receive":
            return message
        verdict = await policy.acheck_message(request)
        if verdict.allowed:
            return message
        await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": verdict.message})
        return {"type": "websocket.disconnect", "code": TRY_AGAIN_LATER}

    return checked

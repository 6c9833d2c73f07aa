"""ASGI middleware, for Starlette, FastAPI, Litestar, Quart and any other.

    app = RateLimitMiddleware(app, limit="100/minute")
    app = RateLimitMiddleware(app, policy="rules.toml")

Bodies and streams pass untouched, WebSocket handshakes are requests, and rules that count messages see each one.
"""

from __future__ import annotations

import asyncio
from inspect import isawaitable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import TeachingConstructor, expect_facts, policy_of
from ratekeeper.adapters.hooks import Hooks
from ratekeeper.adapters.request_limits import LIMITS, MERGED, RequestLimits
from ratekeeper.adapters.route_table import asgi_routes, fastapi_root_path, warn_of_unreachable_rules
from ratekeeper.adapters.route_template import route_of
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.event_loop import is_trio_task
from ratekeeper.http.verdict import STATUS, HttpVerdict
from ratekeeper.identity.request import new_request
from ratekeeper.rules.condition import ResponseHead
from ratekeeper.rules.exceeded import exceeded
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping

    from ratekeeper.adapters import PlainLimits, Rules
    from ratekeeper.adapters.hooks import ExemptWhen, OnBreach
    from ratekeeper.http.headers import Field
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy
    from ratekeeper.stores.protocol import Store

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    Verified = Mapping[str, Any] | None
    Facts = Callable[[Scope], Verified | Awaitable[Verified]]

__all__ = ["RateLimitMiddleware"]
VERDICT = "ratekeeper.verdict"  # the key of the verdict in the scope, for the application to read
POLICY = "ratekeeper.policy"  # the key of the policy in the scope, for limits on routes to inherit
HOOKS = "ratekeeper.hooks"  # the key of the application's hooks in the scope, for limits on routes
IS_EXEMPT = "ratekeeper.exempt"  # the key of whether exempt_when holds, for limits on routes
TRY_AGAIN_LATER = 1013  # the WebSocket close code
STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})
OURS = frozenset({b"ratelimit", b"x-ratelimit-limit", b"x-ratelimit-remaining", b"ratelimit-limit", b"retry-after"})
name_of = itemgetter(0)
DISCONNECTS = frozenset({"http.disconnect", "websocket.disconnect"})


class RateLimitMiddleware(TeachingConstructor):
    """Ask a policy before each request, or one ``limit`` for each client: ``limit="100/minute"``.

    ``facts`` is a function of the scope, plain or async, that returns what the application has verified, as a
    dictionary.  The limits that FastAPI routes have behind this middleware inherit its policy.

    ``exempt_when`` is a function of the scope, plain or async, that says whether a request is exempt from every limit.
    ``on_breach`` is called with the verdict of each refusal, unless a limit on the route has its own; it returns an
    ASGI application that answers the request, such as a Response of Starlette, or None.
    """

    def __init__(
        self,
        app: App,
        policy: Rules | None = None,
        facts: Facts | None = None,
        *,
        limit: PlainLimits | None = None,
        store: str | Store | None = None,
        exempt_when: ExemptWhen | None = None,
        on_breach: OnBreach | None = None,
    ) -> None:
        self._app = app
        self._hooks = Hooks("RateLimitMiddleware", exempt_when, on_breach, awaits=True)
        self._has_hooks = not (exempt_when is None and on_breach is None)
        self.policy = policy_of(policy, limit=limit, store=store)
        self._facts = facts
        self._root_path = fastapi_root_path(app)
        self._checked_rules: object = None  # whose unreachable rules were logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            self._look_for_unreachable_rules(scope)
            self.policy.warm_up(for_loop=True)  # a server sends the lifespan before the first request
            return await self._app(scope, receive, send)
        client = scope.get("client")  # the next two lines are request_of: a call would cost a fiftieth of a request
        peer = client[0] if client else None
        request = new_request(scope.get("method", "GET"), scope["path"], peer, scope["headers"], scope["query_string"])
        if self._facts is not None:
            facts: Any = self._facts(scope)
            request.facts = expect_facts(await facts if isawaitable(facts) else facts)
        if root_path := self._root_path or scope.get("root_path"):
            request.root_path = root_path
        policy = self.policy
        if policy.compiled is not self._checked_rules:
            self._look_for_unreachable_rules(scope)
        if policy.asks_route:
            request.route = route_of(scope, self._app)
        if self._has_hooks:
            scope[HOOKS] = self._hooks
            scope[IS_EXEMPT] = await self._hooks.aexempts(scope)
            if scope[IS_EXEMPT]:
                return await self._pass(request, scope, receive, send)
        verdict: Any = policy.answer(request)
        if verdict.__class__ is not HttpVerdict:  # an awaitable: the store must be asked
            verdict = await verdict
        limits = limits_in_front(scope, policy) if POLICY in scope else None
        if not verdict.allowed:
            if limits is not None:
                await limits.agive_back()
                limits.refuse(verdict)
            return await self._refuse(scope, verdict, receive, send)
        if policy.delays and verdict.delay:
            turn = await wait_for_turn(policy, verdict, receive)
            if turn is None:
                return None
            receive = turn
        if kind == "websocket" and policy.limits_messages:
            receive = counted(policy, request, receive, send)
        scope[POLICY] = policy
        has_started = False
        has_own_names = verdict.response.header_names
        if limits is not None:
            limits.admit(policy, verdict)
            limits.policy, limits.facts = policy, request.facts
            scope[VERDICT] = limits.verdict
            add_headers = send  # the middleware in front adds them
        else:
            scope[VERDICT] = verdict
            if policy.settles:
                limits_of(scope)

            def add_headers(message: Message) -> Awaitable[None]:
                nonlocal has_started
                if message["type"] in STARTS:
                    has_started = True
                    if LIMITS in scope and scope[LIMITS].reserves:
                        return settle(message)
                    present = message.get("headers", ())
                    shown = verdict if verdict.replaced_by is None else verdict.replaced_by
                    fields = shown.headers
                    if shown is not verdict or not OURS.isdisjoint(map(name_of, present)) or has_own_names:
                        fields = missing_headers(present, shown)
                    message["headers"] = [*present, *fields]
                return send(message)

            async def settle(message: Message) -> None:
                await scope[LIMITS].asettle(*head_of(message))
                await add_headers(message)

        lease = None
        if policy.leases:
            limits = limits_of(scope)
            lease = limits.leases[-1]
            lease.start_renewal()
        try:
            return await self._app(scope, receive, add_headers)
        except LimitExceeded as error:
            if has_started or add_headers is send:
                raise
            return await self._refuse(scope, exceeded(error, request, policy), receive, send)
        except Answered as answered:
            if has_started or add_headers is send:
                raise
            return await answered.send(scope, receive, send)
        except Exception:
            if not has_started and LIMITS in scope:
                await scope[LIMITS].asettle(*head_of({"status": 500}))  # what the server in front answers
            raise
        finally:
            if lease is not None:
                await limits.arelease(lease)  # type: ignore[union-attr]

    async def _pass(self, request: Request, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an exempt request on; a limit inside of its handler may still refuse it."""
        has_started = False

        def noted(message: Message) -> Awaitable[None]:
            nonlocal has_started
            has_started = has_started or message["type"] in STARTS
            return send(message)

        try:
            await self._app(scope, receive, noted)
        except LimitExceeded as error:
            if has_started:
                raise
            await self._refuse(scope, exceeded(error, request, self.policy), receive, send)

    async def _refuse(self, scope: Scope, verdict: HttpVerdict, receive: Receive, send: Send) -> None:
        answer = await self._hooks.aanswer(verdict) if self._has_hooks else None
        if answer is None:
            return await refuse(scope, verdict, send)
        return await Answered(answer, verdict).send(scope, receive, send)

    def _look_for_unreachable_rules(self, scope: Scope) -> None:
        """Log the rules that no route can match: at start-up, else at the first request, and after each reload."""
        self._checked_rules = self.policy.compiled
        warn_of_unreachable_rules(self.policy, asgi_routes(scope, self._app))


class Answered(Exception):
    """Raised by a limit on a route whose ``on_breach`` returned the answer: the middleware in front sends it."""

    def __init__(self, answer: Any, verdict: HttpVerdict) -> None:
        if not callable(answer):
            raise InvalidInput(
                "on_breach: expected an ASGI application such as a Response of Starlette, or None, "
                f"got {shown(answer)}."
            )
        super().__init__("on_breach: expected RateLimitMiddleware in front of the application, which sends the answer.")
        self.answer = answer
        self.verdict = verdict

    async def send(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, with the headers of the refusal that it lacks."""
        if scope["type"] == "websocket" and "websocket.http.response" not in (scope.get("extensions") or {}):
            return await refuse(scope, self.verdict, send)  # the server can only close the handshake

        def add_headers(message: Message) -> Awaitable[None]:
            if message["type"] in STARTS:
                present = message.get("headers", ())
                message["headers"] = [*present, *missing_headers(present, self.verdict)]
            return send(message)

        return await self.answer(scope, receive, add_headers)


def limits_of(scope: Scope) -> RequestLimits:
    """The limits of a request; made only when a second policy or a lease needs them."""
    limits: RequestLimits | None = scope.get(LIMITS)
    if limits is None:
        policy = scope.get(POLICY)
        limits = scope[LIMITS] = RequestLimits()
        if policy is not None:
            verdict = scope[VERDICT]
            limits.header_writer, limits.policy, limits.facts = RateLimitMiddleware, policy, verdict.request.facts
            limits.admit(policy, verdict)
            limits.first = verdict
    return limits


def limits_in_front(scope: Scope, policy: Policy) -> RequestLimits | None:
    """The limits of another middleware in front; None if the scope object has served an earlier request."""
    if scope[POLICY] is policy:
        scope.pop(LIMITS, None)
        return None
    return limits_of(scope)


def request_of(scope: Scope) -> Request:
    peer = client[0] if (client := scope.get("client")) else None
    request = new_request(scope.get("method", "GET"), scope["path"], peer, scope["headers"], scope["query_string"])
    request.root_path = scope.get("root_path") or ""
    return request


def missing_headers(present: Iterable[Field], verdict: HttpVerdict) -> list[Field]:
    """The header fields that a response lacks: a handler may have set some of them, and a refusal has most."""
    names = {name.lower() for name, _ in present}
    if not verdict.allowed:
        names.add(b"content-type")
    return [field for field in verdict.headers if field[0] not in names or field[0].decode() in MERGED]


def head_of(message: Message) -> tuple[int, ResponseHead]:
    """The status and the head of a response that starts; a WebSocket that is accepted has 101."""
    status = message.get("status", 101)
    fields = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in message.get("headers", ())]
    return status, ResponseHead(status, dict(fields))


async def refuse(scope: Scope, verdict: HttpVerdict, send: Send) -> None:
    """Send the refusal; where the server can only close a WebSocket handshake, it answers 403."""
    start = "http.response"
    headers, body = verdict.headers, verdict.body
    if scope["type"] == "websocket":
        if "websocket.http.response" not in (scope.get("extensions") or {}):
            return await send({"type": "websocket.close", "code": TRY_AGAIN_LATER, "reason": verdict.message})
        start = "websocket.http.response"
    fields = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": start + ".start", "status": STATUS[verdict.reason], "headers": fields})
    return await send({"type": start + ".body", "body": b"" if scope.get("method") == "HEAD" else body})


def counted(policy: Policy, request: Request, receive: Receive, send: Send) -> Receive:
    """Wrap ``receive`` so that the policy decides each WebSocket message; a refused message closes the socket."""

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


async def wait_for_turn(policy: Policy, verdict: HttpVerdict, receive: Receive) -> Receive | None:
    """Wait for the turn that a leaky bucket gave, then return a ``receive`` for the application.

    If the client disconnects meanwhile, give its place back and return None.  A disconnect is only heard by receiving,
    so other messages arrive too: at most one with more to follow is buffered, never a whole body.
    """
    if is_trio_task():
        return await wait_for_turn_on_trio(policy, verdict, receive)
    buffered: list[Message] = []
    turn = asyncio.ensure_future(policy.clock.asleep(round(verdict.delay * SECOND)))
    receiving = asyncio.ensure_future(receive())
    try:
        while not turn.done():
            await asyncio.wait({turn, receiving}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                break
            message = receiving.result()
            if message["type"] in DISCONNECTS:
                turn.cancel()
                await policy.agive_back(verdict)
                return None
            buffered.append(message)
            if message.get("more_body") or message["type"] == "websocket.connect":
                await turn
            else:
                receiving = asyncio.ensure_future(receive())
    except BaseException:
        turn.cancel()
        receiving.cancel()
        await policy.agive_back(verdict)
        raise

    pending = [] if receiving.done() and buffered else [receiving]

    async def replay() -> Message:
        if buffered:
            return buffered.pop(0)
        return await (pending.pop() if pending else receive())

    return replay


async def wait_for_turn_on_trio(policy: Policy, verdict: HttpVerdict, receive: Receive) -> Receive | None:
    """``wait_for_turn`` on trio, where to cancel ``receive`` loses no message."""
    import trio

    buffered: list[Message] = []
    has_left = False
    problem: Exception | None = None

    async def listen(scope: trio.CancelScope) -> None:
        nonlocal has_left, problem
        try:
            while not buffered or not (buffered[-1].get("more_body") or buffered[-1]["type"] == "websocket.connect"):
                message = await receive()
                if message["type"] in DISCONNECTS:
                    has_left = True
                    scope.cancel()
                    return
                buffered.append(message)
        except Exception as error:
            problem = error
            scope.cancel()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen, nursery.cancel_scope)
            await policy.clock.asleep(round(verdict.delay * SECOND))
            nursery.cancel_scope.cancel()
        if problem is not None:
            raise problem
    except BaseException:
        await policy.agive_back(verdict)
        raise
    if has_left:
        await policy.agive_back(verdict)
        return None

    async def replay() -> Message:
        return buffered.pop(0) if buffered else await receive()

    return replay

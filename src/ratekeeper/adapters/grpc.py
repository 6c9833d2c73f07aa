"""gRPC server interceptors: a refused call ends with RESOURCE_EXHAUSTED and says when to try again.

    server = grpc.server(pool, interceptors=[RateLimitInterceptor("rules.toml")])
    server = grpc.aio.server(interceptors=[AsyncRateLimitInterceptor("rules.toml")])

A call is a POST to ``/package.Service/Method``, and its metadata are its headers.  A refusal carries RetryInfo in
``grpc-status-details-bin`` and ``grpc-retry-pushback-ms``, which gRPC's retries obey.  Every call gets the RateLimit
headers as trailing metadata, unless its handler sets its own.  Rules that count messages see those of request streams.
``LimitExceeded``, which a handler lets pass, ends its call in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ratekeeper.adapters import expect_facts, framework, policy_of
from ratekeeper.adapters.hooks import Hooks

with framework(__name__):
    import grpc
    import grpc.aio

from ratekeeper.adapters.grpc_status import CODES, refusal_trailers, trailers
from ratekeeper.adapters.request_limits import RequestLimits
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.identity.request import Request
from ratekeeper.rules.exceeded import exceeded

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from ratekeeper.adapters import PlainLimits, Rules
    from ratekeeper.adapters.hooks import ExemptWhen, OnBreach
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.stores.protocol import Store

__all__ = ["AsyncRateLimitInterceptor", "RateLimitInterceptor"]
log = logging.getLogger("ratekeeper")
KINDS = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


class RateLimitInterceptor(grpc.ServerInterceptor):
    """Ask a policy before each call.

    ``facts`` is a function of the call's context that returns what the application has verified, as a dictionary.
    ``exempt_when`` is one that says whether a call is exempt from every limit.  ``on_breach`` is called with the
    verdict of each refusal; the text that it returns becomes the message of the status, unless it is None.
    """

    _awaits = False  # whether handlers run on an event loop

    def __init__(
        self,
        policy: Rules | None = None,
        facts: Callable[[Any], Mapping[str, Any] | None] | None = None,
        *,
        limit: PlainLimits | None = None,
        store: str | Store | None = None,
        exempt_when: ExemptWhen | None = None,
        on_breach: OnBreach | None = None,
    ) -> None:
        self._hooks = Hooks(type(self).__name__, exempt_when, on_breach, awaits=self._awaits)
        self.policy = policy_of(policy, limit=limit, store=store)
        if self.policy.settles:
            raise InvalidInput(
                "count_when: expected rules that count every call, as a call of gRPC has no status of HTTP. "
                "Take count_when out."
            )
        self._facts = facts
        self._releases: set[asyncio.Future[None]] = set()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Wrap the handler of a call, as gRPC asks."""
        handler = continuation(details)
        return None if handler is None else self._wrap_handler(handler, details.method)

    def _wrap_handler(self, handler: Any, method: str) -> Any:
        name, make_handler = KINDS[handler.request_streaming, handler.response_streaming]
        wrapped = self._wrap(getattr(handler, name), method, handler.request_streaming)
        return make_handler(wrapped, handler.request_deserializer, handler.response_serializer)

    def _wrap(self, behaviour: Callable[..., Any], method: str, streams: bool) -> Callable[..., Any]:
        def called(message: Any, context: Any) -> Any:
            limits = RequestLimits()
            try:
                request = request_of(method, context, self._facts)
                limits.is_exempt = self._hooks.exempts(context)
                if not limits.is_exempt:
                    verdict = limits.check(self.policy, request, lambda: not context.is_active())
                    if not verdict.allowed:
                        refuse(verdict, context, self._hooks.answer(verdict))
            except ConnectionAbortedError:
                return context.abort(grpc.StatusCode.CANCELLED, "The client left before its turn.")
            except InvalidInput as error:
                return misconfigured(error, context)
            if limits.is_exempt:
                return self._answered(behaviour, message, context, request)
            if limits.leases and not context.add_callback(limits.release):
                limits.release()  # the call has ended already
            context.set_trailing_metadata(trailers(verdict))
            if streams and self.policy.limits_messages:
                message = self._counted(message, request, context)
            return self._answered(behaviour, message, context, request)

        return called

    def _answered(self, behaviour: Callable[..., Any], message: Any, context: Any, request: Request) -> Any:
        """What the handler answers: a message, or messages; a LimitExceeded ends the call as our refusals do."""

        def parts(messages: Iterator[Any]) -> Iterator[Any]:
            try:
                yield from messages
            except LimitExceeded as error:
                end_stream(*self._exceeded(error, request, context))

        try:
            answer = behaviour(message, context)
        except LimitExceeded as error:
            return refuse(*self._exceeded(error, request, context))
        return parts(answer) if hasattr(answer, "__next__") else answer

    def _exceeded(self, error: LimitExceeded, request: Request, context: Any) -> tuple[HttpVerdict, Any, Any]:
        verdict = exceeded(error, request, self.policy)
        return verdict, context, self._hooks.answer(verdict)

    def _counted(self, messages: Iterator[Any], request: Request, context: Any) -> Iterator[Any]:
        for message in messages:
            verdict = self.policy.check_message(request)
            if not verdict.allowed:
                refuse(verdict, context, self._hooks.answer(verdict))
            yield message


class AsyncRateLimitInterceptor(RateLimitInterceptor, grpc.aio.ServerInterceptor):
    """RateLimitInterceptor for ``grpc.aio``.  Plain handlers run in threads there, and are checked in them."""

    _awaits = True

    async def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:  # type: ignore[override]
        """Wrap the handler of a call, as gRPC asks."""
        handler = await continuation(details)
        return None if handler is None else self._wrap_handler(handler, details.method)

    def _wrap(self, behaviour: Callable[..., Any], method: str, streams: bool) -> Callable[..., Any]:
        async def checked(message: Any, context: Any) -> tuple[Any, Request]:
            limits = RequestLimits()
            try:
                request = request_of(method, context, self._facts)
                if await self._hooks.aexempts(context):
                    return message, request
                verdict = await limits.acheck(self.policy, request)
                if not verdict.allowed:
                    await refuse(verdict, context, await self._hooks.aanswer(verdict))
            except InvalidInput as error:
                await misconfigured(error, context)
            if limits.leases:
                context.add_done_callback(lambda _: self._release(limits))
            context.set_trailing_metadata(trailers(verdict))
            if streams and self.policy.limits_messages:
                message = self._acounted(message, request, context)
            return message, request

        async def awaited(message: Any, context: Any) -> Any:
            message, request = await checked(message, context)
            try:
                return await behaviour(message, context)
            except LimitExceeded as error:
                return await self._end_exceeded(error, request, context)

        async def streamed(message: Any, context: Any) -> AsyncIterator[Any]:
            message, request = await checked(message, context)
            try:
                async with aclosing(behaviour(message, context)) as parts:
                    async for part in parts:
                        yield part
            except LimitExceeded as error:
                await self._end_exceeded(error, request, context)

        if inspect.isasyncgenfunction(behaviour):
            return streamed
        return awaited if inspect.iscoroutinefunction(behaviour) else super()._wrap(behaviour, method, streams)

    async def _end_exceeded(self, error: LimitExceeded, request: Request, context: Any) -> Any:
        verdict = exceeded(error, request, self.policy)
        return await refuse(verdict, context, await self._hooks.aanswer(verdict))

    def _release(self, limits: RequestLimits) -> None:
        release = asyncio.ensure_future(limits.arelease())
        self._releases.add(release)  # the loop itself keeps no reference to it
        release.add_done_callback(self._releases.discard)

    async def _acounted(self, messages: AsyncIterator[Any], request: Request, context: Any) -> AsyncIterator[Any]:
        async for message in messages:
            verdict = await self.policy.acheck_message(request)
            if not verdict.allowed:
                await refuse(verdict, context, await self._hooks.aanswer(verdict))
            yield message


def request_of(method: str, context: Any, facts: Callable[[Any], Any] | None) -> Request:
    request = Request("POST", method, peer_of(context.peer()), context.invocation_metadata() or (), route=method)
    request.facts = expect_facts(facts(context)) if facts is not None else None
    return request


def peer_of(text: str) -> str | None:
    """``ipv4:203.0.113.9:443`` and ``ipv6:[::1]:443`` -> the address; None for a UNIX socket."""
    kind, _, rest = unquote(text).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else None


def refuse(verdict: HttpVerdict, context: Any, message: Any = None) -> Any:
    """End the call; in a thread this raises, on an event loop the result must be awaited."""
    text = message_of(verdict, message)
    context.set_trailing_metadata(refusal_trailers(verdict, text))
    return context.abort(CODES[verdict.status], text)


def end_stream(verdict: HttpVerdict, context: Any, message: Any = None) -> None:
    """Let a stream end with the refusal; to abort would race with its last message, which may be on its way."""
    text = message_of(verdict, message)
    context.set_trailing_metadata(refusal_trailers(verdict, text))
    context.set_code(CODES[verdict.status])
    context.set_details(text)


def message_of(verdict: HttpVerdict, message: Any) -> str:
    """The message of the status: what ``on_breach`` returned, or ours."""
    if message is None:
        return verdict.message
    if isinstance(message, str):
        return message
    raise InvalidInput(f"on_breach: expected it to return a text or None, got {shown(message)}.")


def misconfigured(error: InvalidInput, context: Any) -> Any:
    """End a call about which a function of ours said something wrong: the log has it, the client has not."""
    log.error("grpc: a call could not be decided", exc_info=error)
    return context.abort(grpc.StatusCode.INTERNAL, "The limits of this server are misconfigured.")

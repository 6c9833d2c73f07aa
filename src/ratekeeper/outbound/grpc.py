"""Client interceptors for gRPC that pace, wait as told, and call again where that is right.

    channel = grpc.intercept_channel(grpc.insecure_channel(target), PacedInterceptor(limit="10/second"))
    channel = grpc.aio.insecure_channel(target, interceptors=paced_interceptors(limit="10/second"))

An interceptor is not told where its channel leads, so calls are counted by service, the ``shop.Orders`` of
``/shop.Orders/Create``, unless ``key`` says otherwise; limits may be those of ``{"shop.Orders/Create": "1/second"}``.

Called again is only what has one request and one response, and is waited for: not ``.future()``.  RESOURCE_EXHAUSTED
counts as a refusal if the server says how long to wait; without that it may be a message that is too large.
UNAVAILABLE without a wait may have been done: called again are then only methods that were named ``idempotent``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from ratekeeper.flow.drive import adrive, drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Reply, Sender, TooLate, deliver, listen, turn
from ratekeeper.outbound.response_limits import read_grpc
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.outbound.delivery import PacedRequest
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.response_limits import ServerLimits
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

OK, REFUSED, UNAVAILABLE, OTHER = 200, 429, 503, 500


class PacingTimeout(TooLate, grpc.aio.AioRpcError):
    """The turn of a call comes too late: a TooLate that gRPC code knows as DEADLINE_EXCEEDED too."""

    def __init__(self, decision: Decision, name: str) -> None:
        TooLate.__init__(self, decision, name)
        details, none = TooLate.__str__(self), grpc.aio.Metadata()
        grpc.aio.AioRpcError.__init__(self, grpc.StatusCode.DEADLINE_EXCEEDED, none, none, details)

    def __str__(self) -> str:
        return self.details() or ""

    __repr__ = TooLate.__repr__


class Details(grpc.ClientCallDetails):
    """Those of a call, with what is left of its timeout."""

    def __init__(self, given: Any, timeout: float | None) -> None:
        self.method = given.method
        self.timeout = timeout
        self.metadata = given.metadata
        self.credentials = given.credentials
        self.wait_for_ready = given.wait_for_ready
        self.compression = getattr(given, "compression", None)


class Line:
    """What the interceptors of one channel share."""

    def __init__(
        self,
        limit: Limits | Mapping[str, Limits] | Callable[[Any], Limits | None] | None = None,
        key: Callable[[Any], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        idempotent: Iterable[str] = (),
        priority: int = 0,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
        asynchronous: bool = False,
    ) -> None:
        self.idempotent = frozenset(idempotent)
        self.priority = priority
        self.office = PacedClient(limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous)
        self.traffic = self.office.traffic
        self.listening: set[Any] = set()

    def errand(self, details: Any, is_replayable: bool) -> PacedRequest:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        service, _, own = method.removeprefix("/").rpartition("/")
        options: dict[str, Any] = {"priority": self.priority}
        patience = self.office.patience
        if details.timeout is not None and (patience is None or details.timeout * SECOND < patience):
            options["max_wait"] = max(0.0, details.timeout)
        made = self.office.errand(
            details,
            "POST",
            "grpc",
            service,
            None,
            "/" + own,
            has_key=method in self.idempotent or any(name == "idempotency-key" for name, _ in details.metadata or ()),
            is_replayable=is_replayable,
            options=options,
        )
        made.name = method
        return made

    def judge(self, code: grpc.StatusCode, metadata: Any) -> tuple[int, ServerLimits]:
        """How a call ended, as the status of a response, and what its server told."""
        told = read_grpc(metadata or (), self.traffic.wall())
        if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE) and told.wait is not None:
            return REFUSED, told
        if code is grpc.StatusCode.UNAVAILABLE:
            return UNAVAILABLE, told
        return OK if code is grpc.StatusCode.OK else OTHER, told


def remaining(details: Any, until: float | None) -> Details:
    """``details`` of a call that has waited: its timeout goes on."""
    return Details(details, None if until is None else max(0.001, until - time.monotonic()))


def deadline_of(details: Any) -> float | None:
    return None if details.timeout is None else time.monotonic() + details.timeout


class PacedInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """For ``grpc.intercept_channel``.  The arguments are those of ``ratekeeper.outbound.httpx.PacedTransport``.

    ``idempotent`` names methods, ``["/shop.Orders/Get"]``, that may be called again where nobody knows if they ran.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.line = Line(*args, **kwargs)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        until = deadline_of(details)

        def send() -> Reply:
            call = continuation(remaining(details, until), request)
            if not call.done():  # a future: nobody waits for it here
                self.watch(call, errand)
                return Reply(call, OK)
            status, told = self.line.judge(call.code(), call.trailing_metadata())
            return Reply(call, status, told=told)

        errand = self.line.errand(details, is_replayable=True)
        return self.run(deliver(self.line.traffic, errand), send)

    def paced(self, continuation: Any, details: Any, request: Any) -> Any:
        until = deadline_of(details)
        errand = self.line.errand(details, is_replayable=False)
        patience = None if errand.max_wait is None else self.line.traffic.now() + errand.max_wait
        self.run(turn(self.line.traffic, errand, patience), None)
        call = continuation(remaining(details, until), request)
        self.watch(call, errand)
        return call

    intercept_unary_stream: Any = paced
    intercept_stream_unary: Any = paced
    intercept_stream_stream: Any = paced

    def run(self, flow: Any, send: Any) -> Any:
        traffic = self.line.traffic
        wire: Any = Sender(traffic.store, send, lambda call: None)
        try:
            return drive(flow, wire, traffic.clock, traffic.lines)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name) from None

    def watch(self, call: Any, errand: PacedRequest) -> None:
        """Listen to how ``call`` ends."""

        def ended(_: Any) -> None:
            status, told = self.line.judge(call.code(), call.trailing_metadata())
            self.run(listen(self.line.traffic, errand, status, told), None)

        call.add_done_callback(ended)

    def close(self) -> None:
        """Let go of the store, if this interceptor opened it."""
        self.line.office.close()


class AsyncCalls:
    """What the interceptors of ``grpc.aio`` do; that wants one object for each kind of call."""

    def __init__(self, line: Line) -> None:
        self.line = line

    async def delivered(self, continuation: Any, details: Any, request: Any) -> Any:
        until = deadline_of(details)

        async def send() -> Reply:
            call = await continuation(of_aio(details, until), request)
            status, told = self.line.judge(await call.code(), await call.trailing_metadata())
            return Reply(call, status, told=told)

        return await self.run(deliver(self.line.traffic, self.line.errand(details, is_replayable=True)), send)

    async def paced(self, continuation: Any, details: Any, request: Any) -> Any:
        until = deadline_of(details)
        errand = self.line.errand(details, is_replayable=False)
        patience = None if errand.max_wait is None else self.line.traffic.now() + errand.max_wait
        await self.run(turn(self.line.traffic, errand, patience), None)
        call = await continuation(of_aio(details, until), request)
        call.add_done_callback(lambda _: self.watch(call, errand))
        return call

    async def run(self, flow: Any, send: Any) -> Any:
        traffic = self.line.traffic
        wire: Any = Sender(traffic.store, send, lambda call: None)
        try:
            return await adrive(flow, wire, traffic.clock, traffic.lines)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name) from None

    def watch(self, call: Any, errand: PacedRequest) -> None:
        listening = asyncio.ensure_future(self.hear(call, errand))
        self.line.listening.add(listening)  # the loop itself keeps no hold of it
        listening.add_done_callback(self.line.listening.discard)

    async def hear(self, call: Any, errand: PacedRequest) -> None:
        status, told = self.line.judge(await call.code(), await call.trailing_metadata())
        await self.run(listen(self.line.traffic, errand, status, told), None)

    async def close(self) -> None:
        """Let go of the store, if these interceptors opened it: of any one of them, for all."""
        await self.line.office.aclose()


def of_aio(details: Any, until: float | None) -> grpc.aio.ClientCallDetails:
    left: Any = remaining(details, until)
    return grpc.aio.ClientCallDetails(left.method, left.timeout, left.metadata, left.credentials, left.wait_for_ready)


class UnaryUnary(AsyncCalls, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary: Any = AsyncCalls.delivered


class UnaryStream(AsyncCalls, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream: Any = AsyncCalls.paced


class StreamUnary(AsyncCalls, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary: Any = AsyncCalls.paced


class StreamStream(AsyncCalls, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream: Any = AsyncCalls.paced


def paced_interceptors(*args: Any, **kwargs: Any) -> list[Any]:
    """The interceptors of a ``grpc.aio`` channel, which pace together.  The arguments are PacedInterceptor's."""
    line = Line(*args, asynchronous=True, **kwargs)
    return [UnaryUnary(line), UnaryStream(line), StreamUnary(line), StreamStream(line)]

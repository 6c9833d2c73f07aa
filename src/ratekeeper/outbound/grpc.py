"""Client interceptors for gRPC that pace calls, wait as the server asks, and retry where that is safe.

    channel = grpc.intercept_channel(grpc.insecure_channel(target), PacedInterceptor(limit="10/second"))
    channel = grpc.aio.insecure_channel(target, interceptors=paced_interceptors(limit="10/second"))

An interceptor does not know the target of its channel.  So calls are counted by service, the ``shop.Orders`` of
``/shop.Orders/Create``, unless ``key`` is given; a mapping of limits may name ``{"shop.Orders/Create": "1/second"}``.

Only calls with one request and one response are retried, and only if the caller waits for them: not ``.future()``.
RESOURCE_EXHAUSTED counts as a refusal if the server says how long to wait; without that it may mean that a message is
too large.  UNAVAILABLE without a wait may have been carried out, so only methods in ``idempotent`` are retried then.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

try:
    import grpc
except ImportError as error:
    error.add_note("Run: pip install 'ratekeeper[grpc]'")
    raise
import grpc.aio

from ratekeeper.flow.drive import adrive, drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Reply, Sender, TooLate, deliver, learn, take_turn
from ratekeeper.outbound.response_limits import read_grpc
from ratekeeper.outbound.teaching import TeachingOptions
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


__all__ = ["PacedInterceptor", "PacingTimeout", "paced_interceptors"]


class PacingTimeout(TooLate, grpc.aio.AioRpcError):
    """The turn of a call comes too late: a TooLate that is also gRPC's DEADLINE_EXCEEDED."""

    def __init__(self, decision: Decision, name: str) -> None:
        TooLate.__init__(self, decision, name)
        details, empty = TooLate.__str__(self), grpc.aio.Metadata()
        grpc.aio.AioRpcError.__init__(self, grpc.StatusCode.DEADLINE_EXCEEDED, empty, empty, details)

    def __str__(self) -> str:
        return self.details() or ""

    __repr__ = TooLate.__repr__


class CallDetails(grpc.ClientCallDetails):
    """The details of a call, with the rest of its timeout."""

    def __init__(self, details: Any, timeout: float | None) -> None:
        self.method = details.method
        self.timeout = timeout
        self.metadata = details.metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = getattr(details, "compression", None)


class PacedChannel:
    """The state that all interceptors of one channel share."""

    def __init__(self, client: PacedClient, idempotent: Iterable[str], priority: int) -> None:
        self.client = client
        self.pacer = client.pacer
        self.idempotent = frozenset(idempotent)
        self.priority = priority
        self.background: set[Any] = set()  # an event loop keeps only weak references to its tasks

    def paced_request(self, details: Any, is_replayable: bool) -> PacedRequest:
        method = details.method.decode() if isinstance(details.method, bytes) else details.method
        service, _, short_name = method.removeprefix("/").rpartition("/")
        options: dict[str, Any] = {"priority": self.priority}
        max_wait = self.client.max_wait
        if details.timeout is not None and (max_wait is None or details.timeout * SECOND < max_wait):
            options["max_wait"] = max(0.0, details.timeout)
        paced = self.client.paced_request(
            details,
            "POST",
            "grpc",
            service,
            None,
            "/" + short_name,
            has_idempotency_key=method in self.idempotent
            or any(name == "idempotency-key" for name, _ in details.metadata or ()),
            is_replayable=is_replayable,
            options=options,
        )
        paced.name = method
        return paced

    def result(self, code: grpc.StatusCode, metadata: Any) -> tuple[int, ServerLimits]:
        """The result of a call as an HTTP status, and the server's limits."""
        limits = read_grpc(metadata or (), self.pacer.wall())
        if code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE) and limits.wait is not None:
            return REFUSED, limits
        if code is grpc.StatusCode.UNAVAILABLE:
            return UNAVAILABLE, limits
        return OK if code is grpc.StatusCode.OK else OTHER, limits


def with_rest_of_timeout(details: Any, until: float | None) -> CallDetails:
    """``details`` of a call that has waited: its timeout has been running since."""
    return CallDetails(details, None if until is None else max(0.001, until - time.monotonic()))


def timeout_ends_at(details: Any) -> float | None:
    return None if details.timeout is None else time.monotonic() + details.timeout


class PacedInterceptor(
    TeachingOptions,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """For ``grpc.intercept_channel``.  The arguments are those of ``ratekeeper.outbound.httpx.PacedTransport``.

    ``idempotent`` lists methods, such as ``["/shop.Orders/Get"]``, that are retried even if they may have been carried
    out.
    """

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
        margin: Seconds | None = None,
    ) -> None:
        client = PacedClient(
            limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=False, margin=margin
        )
        self._channel = PacedChannel(client, idempotent, priority)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        until = timeout_ends_at(details)

        def send() -> Reply:
            call = continuation(with_rest_of_timeout(details, until), request)
            if not call.done():  # a future: its caller does not wait here
                self._learn_when_done(call, paced)
                return Reply(call, OK)
            status, limits = self._channel.result(call.code(), call.trailing_metadata())
            return Reply(call, status, limits=limits)

        paced = self._channel.paced_request(details, is_replayable=True)
        return self._run(deliver(self._channel.pacer, paced), send)

    def _pace_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        until = timeout_ends_at(details)
        pacer = self._channel.pacer
        paced = self._channel.paced_request(details, is_replayable=False)
        self._run(take_turn(pacer, paced, pacer.deadline(paced)), None)
        call = continuation(with_rest_of_timeout(details, until), request)
        self._learn_when_done(call, paced)
        return call

    intercept_unary_stream: Any = _pace_stream
    intercept_stream_unary: Any = _pace_stream
    intercept_stream_stream: Any = _pace_stream

    def _run(self, flow: Any, send: Any) -> Any:
        pacer = self._channel.pacer
        sender: Any = Sender(pacer.store, send, lambda call: None)
        try:
            return drive(flow, sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name) from None

    def _learn_when_done(self, call: Any, paced: PacedRequest) -> None:
        def done(_: Any) -> None:
            status, limits = self._channel.result(call.code(), call.trailing_metadata())
            self._run(learn(self._channel.pacer, paced, status, limits), None)

        call.add_done_callback(done)

    def close(self) -> None:
        """Close the store, if this interceptor opened it."""
        self._channel.client.close()


class AsyncPacedInterceptor:
    """Paces the calls of a ``grpc.aio`` channel, which wants one interceptor for each kind of call."""

    def __init__(self, channel: PacedChannel) -> None:
        self._channel = channel

    async def _deliver(self, continuation: Any, details: Any, request: Any) -> Any:
        until = timeout_ends_at(details)

        async def send() -> Reply:
            call = await continuation(aio_details(details, until), request)
            status, limits = self._channel.result(await call.code(), await call.trailing_metadata())
            return Reply(call, status, limits=limits)

        paced = self._channel.paced_request(details, is_replayable=True)
        return await self._run(deliver(self._channel.pacer, paced), send)

    async def _pace_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        until = timeout_ends_at(details)
        pacer = self._channel.pacer
        paced = self._channel.paced_request(details, is_replayable=False)
        await self._run(take_turn(pacer, paced, pacer.deadline(paced)), None)
        call = await continuation(aio_details(details, until), request)
        call.add_done_callback(lambda _: self._learn_in_background(call, paced))
        return call

    async def _run(self, flow: Any, send: Any) -> Any:
        pacer = self._channel.pacer
        sender: Any = Sender(pacer.store, send, lambda call: None)
        try:
            return await adrive(flow, sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name) from None

    def _learn_in_background(self, call: Any, paced: PacedRequest) -> None:
        task = asyncio.ensure_future(self._learn(call, paced))
        self._channel.background.add(task)
        task.add_done_callback(self._channel.background.discard)

    async def _learn(self, call: Any, paced: PacedRequest) -> None:
        status, limits = self._channel.result(await call.code(), await call.trailing_metadata())
        await self._run(learn(self._channel.pacer, paced, status, limits), None)

    async def close(self) -> None:
        """Close the store, if these interceptors opened it; closing any one of them is enough."""
        await self._channel.client.aclose()


def aio_details(details: Any, until: float | None) -> grpc.aio.ClientCallDetails:
    rest: Any = with_rest_of_timeout(details, until)
    return grpc.aio.ClientCallDetails(rest.method, rest.timeout, rest.metadata, rest.credentials, rest.wait_for_ready)


class UnaryUnary(AsyncPacedInterceptor, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary: Any = AsyncPacedInterceptor._deliver


class UnaryStream(AsyncPacedInterceptor, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream: Any = AsyncPacedInterceptor._pace_stream


class StreamUnary(AsyncPacedInterceptor, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary: Any = AsyncPacedInterceptor._pace_stream


class StreamStream(AsyncPacedInterceptor, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream: Any = AsyncPacedInterceptor._pace_stream


def paced_interceptors(
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
    margin: Seconds | None = None,
) -> list[Any]:
    """The interceptors of one ``grpc.aio`` channel, which share their limits.  The arguments are PacedInterceptor's."""
    client = PacedClient(limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=True, margin=margin)
    channel = PacedChannel(client, idempotent, priority)
    return [UnaryUnary(channel), UnaryStream(channel), StreamUnary(channel), StreamStream(channel)]

"""httpx transports that pace requests and retry them: ``httpx.Client(transport=PacedTransport(limit="10/second"))``.

Options for a single request: ``client.get(url, extensions={"ratekeeper": {"priority": 5, "max_wait": 2.0}})``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx

from ratekeeper.flow.drive import adrive, drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Lost, Reply, Sender, TooLate, deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.outbound.delivery import PacedRequest
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

__all__ = ["AsyncPacedTransport", "PacedTransport", "PacingTimeout"]
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class PacingTimeout(TooLate, httpx.TimeoutException):
    """The turn of a request comes too late: a TooLate that is also a timeout of httpx."""

    def __init__(self, decision: Decision, name: str, request: httpx.Request) -> None:
        TooLate.__init__(self, decision, name)
        self._request = request


class PacedTransport(httpx.BaseTransport):
    """Send each request through ``inner`` when its turn comes, wait as the server asks, and retry where that is safe.

    ``limit`` is a limit, a mapping from hosts and paths to limits, or a function of the request; with None only the
    server's own limits are kept.  ``key`` is a function of the request that returns the key to count under, by default
    the host.  A request waits at most ``max_wait`` seconds in all.  If it would wait longer, it raises PacingTimeout,
    or returns the server's refusal.
    """

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        limit: Limits | Mapping[str, Limits] | Callable[[httpx.Request], Limits | None] | None = None,
        key: Callable[[httpx.Request], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
    ) -> None:
        self._inner = httpx.HTTPTransport() if inner is None else inner
        self._client = PacedClient(limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=False)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        def send() -> Reply:
            try:
                return reply_of(self._inner.handle_request(request))
            except httpx.TransportError as error:
                raise Lost(error, not isinstance(error, NOT_SENT)) from error

        pacer = self._client.pacer
        sender: Any = Sender(pacer.store, send, lambda response: response.close())
        flow = deliver(pacer, paced_request(self._client, request))
        try:
            return drive(flow, sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name, request) from None

    def close(self) -> None:
        self._inner.close()
        self._client.close()

    def __enter__(self) -> PacedTransport:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncPacedTransport(httpx.AsyncBaseTransport):
    """PacedTransport for ``httpx.AsyncClient``."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        limit: Limits | Mapping[str, Limits] | Callable[[httpx.Request], Limits | None] | None = None,
        key: Callable[[httpx.Request], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
    ) -> None:
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner
        self._client = PacedClient(limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=True)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        async def send() -> Reply:
            try:
                return reply_of(await self._inner.handle_async_request(request))
            except httpx.TransportError as error:
                raise Lost(error, not isinstance(error, NOT_SENT)) from error

        pacer = self._client.pacer
        sender: Any = Sender(pacer.store, send, lambda response: response.aclose())
        flow = deliver(pacer, paced_request(self._client, request))
        try:
            return await adrive(flow, sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name, request) from None

    async def aclose(self) -> None:
        await self._inner.aclose()
        await self._client.aclose()

    async def __aenter__(self) -> AsyncPacedTransport:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def paced_request(client: PacedClient, request: httpx.Request) -> PacedRequest:
    url = request.url
    return client.paced_request(
        request,
        request.method,
        url.scheme,
        url.host,
        url.port,
        url.path,
        has_idempotency_key="idempotency-key" in request.headers,
        # Bytes can be sent twice.  An iterator or a file is used up after the first time.
        is_replayable=isinstance(request.stream, httpx.ByteStream),
        options=request.extensions.get("ratekeeper", {}),
    )


def reply_of(response: httpx.Response) -> Reply:
    is_cached = bool(response.extensions.get("from_cache") or response.extensions.get("hishel_from_cache"))
    return Reply(response, response.status_code, response.headers.multi_items(), is_cached)

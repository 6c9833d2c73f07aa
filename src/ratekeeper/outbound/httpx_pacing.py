"""The paced transports of httpx and of httpx2, its successor: one implementation, as both have the same classes.

``ratekeeper.outbound.httpx`` and ``ratekeeper.outbound.httpx2`` bind it to the types of their library.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ratekeeper.errors import InvalidInput
from ratekeeper.flow.drive import adrive, drive
from ratekeeper.outbound.call_options import current_options
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Lost, Reply, Sender, TooLate, deliver
from ratekeeper.outbound.metering import AsyncMeteredCall, Metering, SyncMeteredCall, model_call
from ratekeeper.outbound.retry import REFUSED
from ratekeeper.outbound.teaching import TeachingOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from ratekeeper.clock import Clock
    from ratekeeper.limit import Limit
    from ratekeeper.outbound.budget import AsyncBudget, Budget
    from ratekeeper.outbound.delivery import PacedRequest
    from ratekeeper.outbound.estimate import ModelCall
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.meter import Meter
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

Transport = TypeVar("Transport")
Request = TypeVar("Request")
Response = TypeVar("Response")

# The SDKs of OpenAI and Anthropic number their attempts in the first field, and obey the second.
ATTEMPT = "x-stainless-retry-count"
SHOULD_RETRY = "x-should-retry"


class SyncPacing(TeachingOptions, Generic[Transport, Request, Response]):
    """Send each request through ``inner`` when its turn comes, wait as the server asks, and retry where that is safe.

    ``limit`` is a limit, a mapping from hosts and paths to limits, or a function of the request; with None only the
    server's own limits are kept.  ``key`` is a function of the request that returns the key to count under, by default
    the host.  A request waits at most ``max_wait`` seconds in all.  If it would wait longer, it raises PacingTimeout,
    or returns the server's refusal.

    For language models: ``budget`` is a Budget, or a function from a ModelCall to one; each attempt reserves what
    ``estimate`` says, and the usage in its answer settles it.  ``concurrent`` is the number of calls at a time, and
    ``meter`` counts calls, tokens and money.
    """

    _library: Any
    _timeout: Any

    def __init__(
        self,
        inner: Transport | None = None,
        limit: Limits | Mapping[str, Limits] | Callable[[Request], Limits | None] | None = None,
        key: Callable[[Request], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        budget: Budget | Callable[[ModelCall], Budget | None] | None = None,
        concurrent: int | str | Limit | None = None,
        estimate: Callable[[ModelCall], tuple[int, int]] | None = None,
        meter: Meter | None = None,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        expect_either(limit, budget)
        self._inner: Any = self._library.HTTPTransport() if inner is None else inner
        self._client = PacedClient(
            limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=False, margin=margin
        )
        self._metering: Metering | None = None
        if budget is not None or concurrent is not None or meter is not None:
            store = self._client.pacer.store
            self._metering = Metering(budget, concurrent, estimate, meter, store, name, asynchronous=False)

    __init__.__qualname__ = "PacedTransport.__init__"  # the name in messages about wrong arguments

    def handle_request(self, request: Request) -> Response:
        library, pacer = self._library, self._client.pacer
        paced = paced_request(self._client, library, request)
        metered: SyncMeteredCall | None = None

        def send() -> Reply:
            if metered is not None:
                metered.sending()
            try:
                response = self._inner.handle_request(request)
            except library.TransportError as error:
                was_sent = not isinstance(error, (library.ConnectError, library.ConnectTimeout, library.PoolTimeout))
                if metered is not None and not was_sent:
                    metered.release()
                raise Lost(error, was_sent) from error
            if metered is not None:
                metered.answered(response.status_code, response.headers.multi_items())
            return reply_of(response)

        sender: Any = Sender(pacer.store, send, lambda response: response.close())
        try:
            if self._metering is None:
                return without_further_retry(request, drive(deliver(pacer, paced), sender, pacer.clock, pacer.queue))
            call = model_call(paced.path, content_of(library, request))
            metered = SyncMeteredCall(self._metering, pacer, paced, call, tenant_of(request))
            sender.reserve, sender.release = metered.reserve, metered.release
            metered.start()
            try:
                response = drive(deliver(pacer, paced), sender, pacer.clock, pacer.queue)
                return without_further_retry(request, metered_response(library, response, metered))
            except BaseException:
                metered.end()
                raise
        except TooLate as error:
            raise self._timeout(error.decision, error.name, request) from None

    def close(self) -> None:
        """Close the transport that sends, and the store if this one opened it."""
        self._inner.close()
        self._client.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.close()


class AsyncPacing(TeachingOptions, Generic[Transport, Request, Response]):
    """PacedTransport for an AsyncClient; ``budget`` is an AsyncBudget."""

    _library: Any
    _timeout: Any

    def __init__(
        self,
        inner: Transport | None = None,
        limit: Limits | Mapping[str, Limits] | Callable[[Request], Limits | None] | None = None,
        key: Callable[[Request], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        budget: AsyncBudget | Callable[[ModelCall], AsyncBudget | None] | None = None,
        concurrent: int | str | Limit | None = None,
        estimate: Callable[[ModelCall], tuple[int, int]] | None = None,
        meter: Meter | None = None,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        expect_either(limit, budget)
        self._inner: Any = self._library.AsyncHTTPTransport() if inner is None else inner
        self._client = PacedClient(
            limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=True, margin=margin
        )
        self._metering: Metering | None = None
        if budget is not None or concurrent is not None or meter is not None:
            store = self._client.pacer.store
            self._metering = Metering(budget, concurrent, estimate, meter, store, name, asynchronous=True)

    __init__.__qualname__ = "AsyncPacedTransport.__init__"  # the name in messages about wrong arguments

    async def handle_async_request(self, request: Request) -> Response:
        library, pacer = self._library, self._client.pacer
        paced = paced_request(self._client, library, request)
        metered: AsyncMeteredCall | None = None

        async def send() -> Reply:
            if metered is not None:
                metered.sending()
            try:
                response = await self._inner.handle_async_request(request)
            except library.TransportError as error:
                was_sent = not isinstance(error, (library.ConnectError, library.ConnectTimeout, library.PoolTimeout))
                if metered is not None and not was_sent:
                    await metered.release()
                raise Lost(error, was_sent) from error
            if metered is not None:
                await metered.answered(response.status_code, response.headers.multi_items())
            return reply_of(response)

        sender: Any = Sender(pacer.store, send, lambda response: response.aclose())
        try:
            if self._metering is None:
                response = await adrive(deliver(pacer, paced), sender, pacer.clock, pacer.queue)
                return without_further_retry(request, response)
            call = model_call(paced.path, content_of(library, request))
            metered = AsyncMeteredCall(self._metering, pacer, paced, call, tenant_of(request))
            sender.reserve, sender.release = metered.reserve, metered.release
            await metered.start()
            try:
                response = await adrive(deliver(pacer, paced), sender, pacer.clock, pacer.queue)
                return without_further_retry(request, await ametered_response(library, response, metered))
            except BaseException:
                await metered.end()
                raise
        except TooLate as error:
            raise self._timeout(error.decision, error.name, request) from None

    async def aclose(self) -> None:
        """Close the transport that sends, and the store if this one opened it."""
        await self._inner.aclose()
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.aclose()


def expect_either(limit: object, budget: object) -> None:
    """A request that waited for its turn and then for its budget would be sent later than it was counted."""
    if limit is not None and budget is not None:
        raise InvalidInput(
            "limit: expected none beside budget=. Give the budget that limit: Budget(requests='10/second', ...)."
        )


def tenant_of(request: Any) -> Any:
    options = request.extensions.get("ratekeeper", {})
    return options["tenant"] if "tenant" in options else current_options().get("tenant")


def paced_request(client: PacedClient, library: Any, request: Any) -> PacedRequest:
    url, headers = request.url, request.headers
    # Bytes can be sent twice.  An iterator or a file is used up after the first time.  An attempt that an SDK repeats
    # is not repeated here as well: retries would multiply.
    is_replayable = isinstance(request.stream, library.ByteStream) and headers.get(ATTEMPT, "0") == "0"
    return client.paced_request(
        request,
        request.method,
        url.scheme,
        url.host,
        url.port,
        url.path,
        has_idempotency_key="idempotency-key" in headers,
        is_replayable=is_replayable,
        options=request.extensions.get("ratekeeper", {}),
    )


def content_of(library: Any, request: Any) -> bytes | None:
    """The request's body, unless it can be read only once."""
    return request.read() if isinstance(request.stream, library.ByteStream) else None


def reply_of(response: Any) -> Reply:
    is_cached = bool(response.extensions.get("from_cache") or response.extensions.get("hishel_from_cache"))
    return Reply(response, response.status_code, response.headers.multi_items(), is_cached)


def without_further_retry(request: Any, response: Any) -> Any:
    """The response; a refusal that was retried here tells an SDK not to retry it once more."""
    if response.status_code == REFUSED and ATTEMPT in request.headers:
        response.headers[SHOULD_RETRY] = "false"
    return response


def metered_response(library: Any, response: Any, metered: SyncMeteredCall) -> Any:
    """The response, whose bytes are read on their way to the caller; its end is the end of the call."""
    if read_whole(response, metered):
        metered.end()
    else:
        response.stream = sync_stream(library)(response.stream, metered)
    return response


async def ametered_response(library: Any, response: Any, metered: AsyncMeteredCall) -> Any:
    """``metered_response`` for an event loop."""
    if read_whole(response, metered):
        await metered.end()
    else:
        response.stream = async_stream(library)(response.stream, metered)
    return response


def read_whole(response: Any, metered: SyncMeteredCall | AsyncMeteredCall) -> bool:
    """Prepare to read the usage; reads it at once from a response that is complete, as a cache or a mock returns."""
    headers = response.headers
    encoding = "" if response.is_closed else headers.get("content-encoding", "")
    metered.watch(response.status_code, headers.get("content-type", ""), encoding)
    if response.is_closed and metered.reader is not None:
        metered.reader.feed(response.content)
    return bool(response.is_closed)


class SyncMeteredChunks:
    """Passes the chunks of a body on, unchanged."""

    def __init__(self, stream: Any, metered: SyncMeteredCall) -> None:
        self._stream = stream
        self._metered = metered

    def __iter__(self) -> Iterator[bytes]:
        reader = self._metered.reader
        for chunk in self._stream:
            if reader is not None:
                reader.feed(chunk)
            yield chunk

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._metered.end()


class AsyncMeteredChunks:
    """Passes the chunks of a body on, unchanged, on an event loop."""

    def __init__(self, stream: Any, metered: AsyncMeteredCall) -> None:
        self._stream = stream
        self._metered = metered

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reader = self._metered.reader
        async for chunk in self._stream:
            if reader is not None:
                reader.feed(chunk)
            yield chunk

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._metered.end()


@cache
def sync_stream(library: Any) -> Any:
    """A client takes only streams of its own library's class."""
    return type("MeteredStream", (SyncMeteredChunks, library.SyncByteStream), {})


@cache
def async_stream(library: Any) -> Any:
    return type("AsyncMeteredStream", (AsyncMeteredChunks, library.AsyncByteStream), {})

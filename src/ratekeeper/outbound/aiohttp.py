"""A middleware for aiohttp's client that paces requests and retries them.

``aiohttp.ClientSession(middlewares=[PacedMiddleware(limit="10/second")])``; needs aiohttp 3.12 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    import aiohttp
except ImportError as error:
    error.add_note("Run: pip install 'ratekeeper[aiohttp]'")
    raise

from ratekeeper.errors import InvalidInput
from ratekeeper.flow.drive import adrive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Lost, Reply, Sender, TooLate, deliver
from ratekeeper.outbound.teaching import TeachingOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    Request = aiohttp.ClientRequest
    Handler = Callable[[Request], Awaitable[aiohttp.ClientResponse]]

__all__ = ["PacedMiddleware", "PacingTimeout"]
REPLAYABLE = ("BytesPayload", "StringPayload", "JsonPayload")


class PacingTimeout(TooLate, aiohttp.ServerTimeoutError):
    """The turn of a request comes too late: a TooLate that is also a timeout of aiohttp."""

    def __init__(self, decision: Decision, name: str) -> None:
        TooLate.__init__(self, decision, name)


class PacedMiddleware(TeachingOptions):
    """Send each request when its turn comes, wait as the server asks, and retry where that is safe.

    The arguments are those of ``ratekeeper.outbound.httpx.AsyncPacedTransport``, without ``inner``.
    """

    def __init__(
        self,
        limit: Limits | Mapping[str, Limits] | Callable[[Request], Limits | None] | None = None,
        key: Callable[[Request], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        priority: int = 0,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        if not hasattr(aiohttp, "ClientHandlerType"):
            raise InvalidInput(
                f"aiohttp: expected 3.12 or newer, which has client middlewares, got {aiohttp.__version__}."
            )
        self._options = {"priority": priority}
        self._client = PacedClient(
            limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=True, margin=margin
        )

    async def __call__(self, request: Request, handler: Handler) -> aiohttp.ClientResponse:
        async def send() -> Reply:
            try:
                response = await handler(request)
            except aiohttp.ClientConnectorError as error:
                raise Lost(error, was_sent=False) from error
            except aiohttp.ClientConnectionError as error:
                raise Lost(error, was_sent=True) from error
            return Reply(response, response.status, response.headers.items())

        url = request.url
        paced = self._client.paced_request(
            request,
            request.method,
            url.scheme,
            url.host or "",
            url.port,
            url.path,
            has_idempotency_key="idempotency-key" in request.headers,
            is_replayable=is_replayable(request.body),
            options=self._options,
        )
        pacer = self._client.pacer
        sender: Any = Sender(pacer.store, send, lambda response: response.release())
        try:
            return await adrive(deliver(pacer, paced), sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name) from None

    async def close(self) -> None:
        """Close the store, if this middleware opened it."""
        await self._client.aclose()


def is_replayable(body: Any) -> bool:
    return isinstance(body, (bytes, bytearray)) or type(body).__name__ in REPLAYABLE

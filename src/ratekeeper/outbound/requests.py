"""An adapter for requests that paces requests and retries them: ``session.mount("https://", PacedAdapter(limit=...))``.

Options for all requests of a session: ``adapter.options = {"priority": 5}``.  Sessions whose adapters have the same
``store`` share their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

try:
    import requests
except ImportError as error:
    error.add_note("Run: pip install 'ratekeeper[requests]'")
    raise
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import rewind_body

from ratekeeper.flow.drive import drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Lost, Reply, Sender, TooLate, deliver
from ratekeeper.outbound.teaching import TeachingOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    Prepared = requests.PreparedRequest


__all__ = ["PacedAdapter", "PacingTimeout"]


class PacingTimeout(TooLate, requests.exceptions.Timeout):
    """The turn of a request comes too late: a TooLate that is also a timeout of requests."""

    def __init__(self, decision: Decision, name: str, request: Prepared) -> None:
        TooLate.__init__(self, decision, name)
        self.request = request
        self.response = None


class PacedAdapter(TeachingOptions, BaseAdapter):
    """Send each request through ``inner`` when its turn comes, wait as the server asks, and retry where that is safe.

    The arguments are those of ``ratekeeper.outbound.httpx.PacedTransport``.
    """

    def __init__(
        self,
        inner: BaseAdapter | None = None,
        limit: Limits | Mapping[str, Limits] | Callable[[Prepared], Limits | None] | None = None,
        key: Callable[[Prepared], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        max_retries: int = 3,
        store: str | Store = "memory://",
        *,
        retry: Retry | None = None,
        name: str = "outbound",
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        super().__init__()
        self.options: dict[str, Any] = {}
        self._inner = HTTPAdapter() if inner is None else inner
        self._client = PacedClient(
            limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=False, margin=margin
        )

    def send(self, request: Prepared, *args: Any, **kwargs: Any) -> requests.Response:
        times_sent = 0
        body: Any = request.body
        is_in_memory = isinstance(body, (str, bytes, type(None)))  # else a file or an iterator

        def send() -> Reply:
            nonlocal times_sent
            if times_sent and not is_in_memory:
                rewind_body(request)
            times_sent += 1
            try:
                response = self._inner.send(request, *args, **kwargs)
            except requests.exceptions.RequestException as error:
                was_sent = not isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.ProxyError)
                raise Lost(error, was_sent and not never_connected(error)) from error
            is_cached = getattr(response, "from_cache", False)
            return Reply(response, response.status_code, response.headers.items(), is_cached)

        url = urlsplit(request.url or "")
        position = getattr(request, "_body_position", None)  # where a file was read from, if it can seek
        paced = self._client.paced_request(
            request,
            request.method or "GET",
            url.scheme,
            url.hostname or "",
            url.port,
            url.path,
            has_idempotency_key="idempotency-key" in (request.headers or {}),
            is_replayable=is_in_memory or isinstance(position, int),
            options=self.options,
        )
        pacer = self._client.pacer
        sender: Any = Sender(pacer.store, send, lambda response: response.close())
        try:
            return drive(deliver(pacer, paced), sender, pacer.clock, pacer.queue)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name, request) from None

    def close(self) -> None:
        """Close the adapter that sends, and the store if this one opened it."""
        self._inner.close()
        self._client.close()


def never_connected(error: Exception) -> bool:
    """Whether the server certainly received nothing, by the urllib3 error that is the cause."""
    cause: Any = error.args[0] if error.args else None
    return type(getattr(cause, "reason", cause)).__name__ in ("NewConnectionError", "NameResolutionError")

"""An adapter for requests that paces, waits and sends again: ``session.mount("https://", PacedAdapter(limit=...))``.

All requests of a session may say more: ``adapter.options = {"priority": 5}``; or mount adapters of one ``store``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import requests
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import rewind_body

from ratekeeper.flow.drive import drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import Lost, Reply, Sender, TooLate, deliver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.outbound.retry import Retry
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    Prepared = requests.PreparedRequest


class PacingTimeout(TooLate, requests.exceptions.Timeout):
    """The turn of a request comes too late: a TooLate that requests code knows as a timeout too."""

    def __init__(self, decision: Decision, name: str, request: Prepared) -> None:
        TooLate.__init__(self, decision, name)
        self.request = request
        self.response = None


class PacedAdapter(BaseAdapter):
    """Sends through ``inner`` when it is a request's turn, waits as told, and sends again where that is right.

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
    ) -> None:
        super().__init__()
        self.inner = HTTPAdapter() if inner is None else inner
        self.options: dict[str, Any] = {}
        self.office = PacedClient(limit, key, max_wait, max_retries, store, retry, name, clock, asynchronous=False)

    def send(self, request: Prepared, *args: Any, **kwargs: Any) -> requests.Response:
        sent = 0
        body: Any = request.body  # text, bytes, nothing, a file or an iterator
        is_plain = isinstance(body, (str, bytes, type(None)))

        def send() -> Reply:
            nonlocal sent
            if sent and not is_plain:
                rewind_body(request)
            sent += 1
            try:
                response = self.inner.send(request, *args, **kwargs)
            except requests.exceptions.RequestException as error:
                was_sent = not isinstance(error, requests.exceptions.ConnectTimeout | requests.exceptions.ProxyError)
                raise Lost(error, was_sent and not never_connected(error)) from error
            return Reply(
                response, response.status_code, response.headers.items(), getattr(response, "from_cache", False)
            )

        url = urlsplit(request.url or "")
        position = getattr(request, "_body_position", None)  # where a file stood, if it can be wound back
        errand = self.office.errand(
            request,
            request.method or "GET",
            url.scheme,
            url.hostname or "",
            url.port,
            url.path,
            has_key="idempotency-key" in (request.headers or {}),
            is_replayable=is_plain or isinstance(position, int),
            options=self.options,
        )
        traffic = self.office.traffic
        wire: Any = Sender(traffic.store, send, lambda response: response.close())
        try:
            return drive(deliver(traffic, errand), wire, traffic.clock, traffic.lines)
        except TooLate as error:
            raise PacingTimeout(error.decision, error.name, request) from None

    def close(self) -> None:
        self.inner.close()
        self.office.close()


def never_connected(error: Exception) -> bool:
    """Whether the server certainly got nothing: the cause is told by the library below."""
    cause: Any = error.args[0] if error.args else None
    return type(getattr(cause, "reason", cause)).__name__ in ("NewConnectionError", "NameResolutionError")

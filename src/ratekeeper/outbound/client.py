"""The part that every paced client shares: its settings, checked once, and its requests as PacedRequests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.keys import LONGEST, encode
from ratekeeper.outbound.call_options import current_options
from ratekeeper.outbound.delivery import PacedRequest, Pacer, patience_of
from ratekeeper.outbound.limits import LimitRoutes
from ratekeeper.outbound.outage import open_outbound
from ratekeeper.outbound.retry import Retry
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

PORTS = {"http": 80, "https": 443}


class PacedClient:
    """The settings of one client, and the Pacer that its requests share."""

    def __init__(
        self,
        limit: Limits | Mapping[str, Limits] | Callable[[Any], Limits | None] | None,
        key: Callable[[Any], Any] | None,
        max_wait: Seconds | None,
        max_retries: int,
        store: str | Store,
        retry: Retry | None,
        name: str,
        clock: Clock | None,
        asynchronous: bool,
        margin: Seconds | None = None,
    ) -> None:
        if key is not None and not callable(key):
            raise InvalidInput(f"key: expected a function of the request, got {shown(key)}.")
        self.max_wait = patience_of(max_wait)
        self.key = key
        self.routes = LimitRoutes(limit, name, patience_of(margin, "margin"))
        self.owned_store: Any = None
        if isinstance(store, str):
            store = self.owned_store = open_outbound(store, clock, asynchronous)
        expect_store(store)
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput(f"retry: expected a Retry such as Retry(max_retries=5), got {shown(retry)}.")
        self.pacer = Pacer(store, name, Retry(max_retries) if retry is None else retry)

    def paced_request(
        self,
        request: Any,
        method: str,
        scheme: str,
        host: str,
        port: int | None,
        path: str,
        *,
        has_idempotency_key: bool,
        is_replayable: bool,
        options: Mapping[str, Any],
    ) -> PacedRequest:
        """``options`` are those of one request: ``priority``, ``max_wait``, ``key``; those of its block come second."""
        current = current_options()
        if current:
            options = {**current, **options}
        place = host.lower()
        if port is not None and port != PORTS.get(scheme):
            place = f"{place}:{port}"
        key = options.get("key")
        if key is None:
            key = place if self.key is None else self.key(request)
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        return PacedRequest(
            key,
            place,
            self.routes.plan(request, key, place, path),
            method,
            has_idempotency_key,
            is_replayable,
            patience_of(options["max_wait"]) if "max_wait" in options else self.max_wait,
            options.get("priority", 0),
            path,
        )

    def close(self) -> None:
        """Close the store, if this client opened it."""
        if self.owned_store is not None:
            self.owned_store.close()

    async def aclose(self) -> None:
        """``close`` for an event loop."""
        closing = self.owned_store.close() if self.owned_store is not None else None
        if closing is not None:
            await closing

"""What every paced client is made of: its settings, checked once, and from a request to its errand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.keys import encode
from ratekeeper.outbound.delivery import PacedRequest, Pacer, patience_of
from ratekeeper.outbound.limits import LimitRoutes
from ratekeeper.outbound.retry import Retry, is_idempotent
from ratekeeper.stores import open_store
from ratekeeper.stores.options import expect_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.clock import Clock
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

PORTS = {"http": 80, "https": 443}


class PacedClient:
    """Turns requests into errands, and keeps what they share."""

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
    ) -> None:
        if key is not None and not callable(key):
            raise InvalidInput(f"key: expected a function of the request, got {shown(key)}.")
        self.patience = patience_of(max_wait)
        self.key = key
        self.routes = LimitRoutes(limit, name)
        self.owned: Any = None
        if isinstance(store, str):
            store = self.owned = open_store(store, clock=clock, asynchronous=asynchronous)
        expect_store(store)
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput(f"retry: expected a Retry such as Retry(max_retries=5), got {shown(retry)}.")
        self.traffic = Pacer(store, name, Retry(max_retries) if retry is None else retry)

    def errand(
        self,
        request: Any,
        method: str,
        scheme: str,
        host: str,
        port: int | None,
        path: str,
        *,
        has_key: bool,
        is_replayable: bool,
        options: Mapping[str, Any],
    ) -> PacedRequest:
        """``options`` are those of one request: ``priority``, ``max_wait``, ``key``."""
        place = host.lower()
        if port is not None and port != PORTS.get(scheme):
            place = f"{place}:{port}"
        key = options.get("key")
        if key is None:
            key = place if self.key is None else self.key(request)
        return PacedRequest(
            encode(key),
            place,
            self.routes.plan(request, key, place, path),
            is_idempotent=is_idempotent(method, has_key),
            is_replayable=is_replayable,
            max_wait=patience_of(options["max_wait"]) if "max_wait" in options else self.patience,
            priority=options.get("priority", 0),
        )

    def close(self) -> None:
        """Let go of the store, if it was opened here."""
        if self.owned is not None:
            self.owned.close()

    async def aclose(self) -> None:
        """``close`` for an event loop."""
        closing = self.owned.close() if self.owned is not None else None
        if closing is not None:
            await closing

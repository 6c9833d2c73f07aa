"""Pacing for clients of AWS: ``PacedCalls(limit="50/second").register(boto3.client("dynamodb"))``.

boto3 retries by itself, so this makes no further retries: it gives every attempt its turn, the repeated ones too, and
lets all processes of a fleet pause after AWS has throttled one of them.  Every retry mode of boto3 works.
"""

from __future__ import annotations

from threading import local
from typing import TYPE_CHECKING, Any

from ratekeeper.flow.drive import drive
from ratekeeper.outbound.client import PacedClient
from ratekeeper.outbound.delivery import TooLate, learn, patience_of, take_turn
from ratekeeper.outbound.response_limits import NOTHING, ServerLimits, pairs_of, read
from ratekeeper.outbound.retry import REFUSED
from ratekeeper.outbound.teaching import TeachingOptions
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from ratekeeper.clock import Clock
    from ratekeeper.outbound.delivery import PacedRequest
    from ratekeeper.outbound.limits import Limits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds

    Client = TypeVar("Client")

__all__ = ["AwsCall", "PacedCalls", "TooLate"]

OK = 200
# The error codes that the retry modes of boto3 take as throttling.
THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionInProgressException",
    }
)


class AwsCall:
    """One attempt: ``service`` and ``operation`` as boto3 names them, and boto3's own ``request``."""

    __slots__ = ("operation", "request", "service")

    def __init__(self, service: str, operation: str, request: Any) -> None:
        self.service = service
        self.operation = operation
        self.request = request


class PacedCalls(TeachingOptions):
    """Give every attempt of the registered clients its turn.

    ``limit`` is a limit; a mapping such as ``{"dynamodb": "100/second", "dynamodb/PutItem": "20/second"}``; or a
    function of an AwsCall.  ``key`` is a function of an AwsCall that returns the key to count under, by default the
    service.  After a throttling error all calls of that key pause for ``cooldown`` seconds, or for as long as the
    answer says.  An attempt that would wait longer than ``max_wait`` seconds raises TooLate.
    """

    def __init__(
        self,
        limit: Limits | Mapping[str, Limits] | Callable[[AwsCall], Limits | None] | None = None,
        key: Callable[[AwsCall], Any] | None = None,
        max_wait: Seconds | None = 30.0,
        store: str | Store = "memory://",
        *,
        cooldown: Seconds = 1.0,
        name: str = "outbound",
        clock: Clock | None = None,
        margin: Seconds | None = None,
    ) -> None:
        self._sent = local()  # the attempt of each thread: boto3 sends and receives in one
        self._cooldown = patience_of(cooldown, "cooldown") or 0
        self._client = PacedClient(limit, key, max_wait, 0, store, None, name, clock, asynchronous=False, margin=margin)

    def register(self, client: Client) -> Client:
        """Pace every call of a client; returns it."""
        events: Any = client.meta.events  # type: ignore[attr-defined]  # boto3 makes the classes of its clients at run time
        events.register("before-send", self._before_send, unique_id=f"{id(self)} before")
        events.register("response-received", self._response_received, unique_id=f"{id(self)} after")
        return client

    def close(self) -> None:
        """Close the store, if this object opened it."""
        self._client.close()

    def _before_send(self, request: Any, event_name: str, **_: Any) -> None:
        pacer = self._client.pacer
        paced = self._sent.paced = self._paced(event_name, request)
        store: Any = pacer.store
        drive(take_turn(pacer, paced, pacer.deadline(paced)), store, pacer.clock, pacer.queue)

    def _response_received(self, event_name: str, parsed_response: Any, response_dict: Any = None, **_: Any) -> None:
        pacer = self._client.pacer
        headers = (response_dict or {}).get("headers") or {}
        limits = read(pairs_of(headers), pacer.wall())
        is_throttled = (parsed_response or {}).get("Error", {}).get("Code") in THROTTLED
        if is_throttled and limits.wait is None and self._cooldown:
            limits = ServerLimits(self._cooldown / SECOND, limits.quotas)
        if is_throttled or limits is not NOTHING:
            paced = getattr(self._sent, "paced", None) or self._paced(event_name, None)
            store: Any = pacer.store
            drive(learn(pacer, paced, REFUSED if is_throttled else OK, limits), store, pacer.clock, pacer.queue)

    def _paced(self, event_name: str, request: Any) -> PacedRequest:
        _, service, operation = event_name.split(".")
        call = AwsCall(service, operation, request)
        return self._client.paced_request(
            call,
            "POST",
            "https",
            service,
            None,
            f"/{operation}",
            has_idempotency_key=False,
            is_replayable=False,
            options={},
        )

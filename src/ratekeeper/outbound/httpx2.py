"""httpx2 transports that pace requests and retry them: ``httpx2.Client(transport=PacedTransport(limit="10/second"))``.

Options for a single request: ``client.get(url, extensions={"ratekeeper": {"priority": 5, "max_wait": 2.0}})``, or a
``call_options`` block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    import httpx2
except ImportError as error:
    error.add_note("Run: pip install 'ratekeeper[httpx2]'")
    raise

from ratekeeper.outbound.delivery import TooLate
from ratekeeper.outbound.httpx_pacing import AsyncPacing, SyncPacing

if TYPE_CHECKING:
    from ratekeeper.decision import Decision

__all__ = ["AsyncPacedTransport", "PacedTransport", "PacingTimeout"]


class PacingTimeout(TooLate, httpx2.TimeoutException):
    """The turn of a request comes too late: a TooLate that is also a timeout of httpx2."""

    def __init__(self, decision: Decision, name: str, request: httpx2.Request) -> None:
        TooLate.__init__(self, decision, name)
        self._request = request


class PacedTransport(SyncPacing[httpx2.BaseTransport, httpx2.Request, httpx2.Response], httpx2.BaseTransport):
    __doc__ = SyncPacing.__doc__
    _library = httpx2
    _timeout = PacingTimeout


class AsyncPacedTransport(
    AsyncPacing[httpx2.AsyncBaseTransport, httpx2.Request, httpx2.Response], httpx2.AsyncBaseTransport
):
    __doc__ = AsyncPacing.__doc__
    _library = httpx2
    _timeout = PacingTimeout

"""Whether to send a request again, and after how long.

Full jitter: a pause is drawn evenly from a window that doubles with each retry.  If the server said how long to wait,
the random part comes after that wait.  So no client comes back early, and clients that were refused together do not
come back together.

Law: a pause is never shorter than the server's wait, and never longer than that plus the window.  No clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from random import Random

    from ratekeeper.outbound.response_limits import ServerLimits

REFUSED = 429
FORBIDDEN = 403
UNAVAILABLE = 503
UNCERTAIN = frozenset({502, UNAVAILABLE, 504})  # the server may have carried out the request
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110, section 9.2.2


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry up to ``max_retries`` times; the jitter's first window is ``first`` seconds, its longest ``cap``."""

    max_retries: int = 3
    first: float = 0.5
    cap: float = 30.0

    def __post_init__(self) -> None:
        if self.max_retries.__class__ is not int or self.max_retries < 0:
            raise InvalidInput(f"max_retries: expected a whole number from 0, got {shown(self.max_retries)}.")
        for name in ("first", "cap"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0 <= value <= 86_400):
                raise InvalidInput(f"{name}: expected seconds from 0 to 86,400, got {shown(value)}.")

    def window(self, tries: int) -> float:
        """Seconds from which the pause after ``tries`` retries is drawn."""
        return min(self.cap, self.first * 2.0 ** min(tries, 60))

    def pause(self, tries: int, told: int | None, chance: Random) -> int:
        """Microseconds to wait before the next retry; ``told`` are the microseconds that the server asked for."""
        return (told or 0) + int(chance.random() * self.window(tries) * SECOND)


def is_refusal(status: int, limits: ServerLimits) -> bool:
    """Whether the server refused because of a limit: 429, or 403 or 503 with a wait (GitHub sends 403)."""
    return status == REFUSED or (status in (FORBIDDEN, UNAVAILABLE) and limits.wait is not None)


def may_resend(status: int, limits: ServerLimits, is_idempotent: bool) -> bool:
    """Whether the request may be sent again: a refused one was not carried out, a failed one may have been."""
    if limits.never:
        return False
    if status in UNCERTAIN:
        return is_idempotent
    return is_refusal(status, limits)

"""Whether to send again, and after how long.

Full jitter: a wait is drawn evenly between nothing and a window that doubles with each try; where the server told how
long to wait, that comes first and the drawn part after it.  So nobody is ever earlier than told, and those who were
refused together do not come back together.

Law: never a wait below what was told, never one above it by more than the window.  No clock, no I/O.
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
TROUBLE = frozenset({502, UNAVAILABLE, 504})  # perhaps done, perhaps not
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110, section 9.2.2


@dataclass(frozen=True, slots=True)
class Retry:
    """``max_retries`` after the first try; the window of the first wait is ``first`` seconds, of none above ``cap``."""

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
        """Seconds within which the wait after so many tries is drawn."""
        return min(self.cap, self.first * 2.0 ** min(tries, 60))

    def pause(self, tries: int, told: int | None, chance: Random) -> int:
        """Microseconds to wait before the next try; ``told`` are those that the server asked for."""
        return (told or 0) + int(chance.random() * self.window(tries) * SECOND)


def is_refusal(status: int, told: ServerLimits) -> bool:
    """Whether a server said "not now": 429, or 403 or 503 with a wait (GitHub refuses with either)."""
    return status == REFUSED or (status in (FORBIDDEN, UNAVAILABLE) and told.wait is not None)


def may_resend(status: int, told: ServerLimits, is_idempotent: bool) -> bool:
    """Whether the request may be sent again: what was refused was not done, what failed may have been."""
    if told.never:
        return False
    if status in TROUBLE:
        return is_idempotent
    return is_refusal(status, told)


def is_idempotent(method: str, has_key: bool) -> bool:
    """Whether doing it twice is doing it once: by its method, or because it carries an Idempotency-Key."""
    return has_key or method.upper() in IDEMPOTENT

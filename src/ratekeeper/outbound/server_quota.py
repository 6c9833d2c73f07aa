"""The server's own quotas, learned from its responses: slow down before the server refuses.

While more than half of a quota is left, no request waits.  Below that, the rest is spread over the time until the
quota's reset: the gap between two requests grows from 0 to ``reset / remaining``, at which the quota lasts exactly.
Requests sent since the last response count as used, so that many callers do not all spend the same rest.

If the server also says when to come back (Retry-After), that decides: an empty quota counts as reset then.

Law: a gap is never longer than the time until the quota's reset.  No I/O.
"""

from __future__ import annotations

from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.outbound.response_limits import Quota

EASY = 0.5  # the share of a quota above which no request waits
FEW = 10  # requests that count as half of a quota whose size the server does not send
MOST_KEYS = 10_000


class LearnedQuota:
    """One quota: ``remaining`` requests until ``reset_at``; the next request may leave at ``free_at``."""

    __slots__ = ("free_at", "limit", "remaining", "reset_at")

    def __init__(self) -> None:
        self.free_at = 0

    def update(self, quota: Quota, now: int) -> None:
        self.remaining = quota.remaining
        self.limit = quota.limit if quota.limit else 2 * FEW
        self.reset_at = now + int((quota.reset_after or 0.0) * SECOND)

    def open_at(self, instant: int) -> None:
        """Let the next request leave at ``instant``, as the server asks; what is left after it is spread as before."""
        self.free_at = min(self.free_at, instant)
        if self.remaining <= 0:
            self.reset_at = instant

    def gap(self, now: int) -> int:
        """Microseconds between two requests at present."""
        left = self.reset_at - now
        if left <= 0:
            return 0
        if self.remaining <= 0:
            return left
        share = self.remaining / self.limit
        return 0 if share >= EASY else int(left / self.remaining * (1 - share / EASY))


class ServerQuotas:
    """The quotas of every key, as its server last sent them."""

    def __init__(self) -> None:
        self.by_key: dict[str | bytes, dict[str, LearnedQuota]] = {}

    def observe(
        self,
        key: str | bytes,
        quotas: Iterable[Quota],
        now: int,
        retry_after: int | None = None,
        is_refusal: bool = False,
    ) -> None:
        """Remember the quotas of a response that came at ``now``; only those that count requests are spread.

        ``retry_after``, in microseconds, replaces the reset of an empty quota.  In a refusal it is the server's latest
        word on all quotas of the key: those that an earlier response sent do not delay a request beyond it.
        """
        if is_refusal and retry_after is not None:
            for earlier in list(self.by_key.get(key, {}).values()):
                if earlier.reset_at > now + retry_after:
                    earlier.open_at(now + retry_after)
        for quota in quotas:
            if quota.unit != "requests" or quota.reset_after is None:
                continue
            if key not in self.by_key and len(self.by_key) >= MOST_KEYS:
                del self.by_key[next(iter(self.by_key))]
            learned = self.by_key.setdefault(key, {}).setdefault(quota.name, LearnedQuota())
            learned.update(quota, now)
            if retry_after is not None:
                learned.open_at(now + retry_after)

    def wait(self, key: str | bytes, now: int) -> int:
        """Count one request; microseconds until it may leave."""
        longest = 0
        for quota in list(self.by_key.get(key, {}).values()):
            gap = quota.gap(now)
            quota.remaining -= 1
            if not gap:
                continue
            leaves_at = min(max(now, quota.free_at), max(now, quota.reset_at))
            quota.free_at = leaves_at + gap
            longest = max(longest, leaves_at - now if quota.remaining >= 0 else quota.reset_at - now)
        return longest

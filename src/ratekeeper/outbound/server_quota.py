"""The server's own limits, learned from its fields: slow down before being refused.

While more than half of a quota is left, nobody waits.  Below that the rest is spread over the time it must last, more
and more strictly: the gap between two requests grows from nothing to ``reset / remaining``, where the quota lasts
exactly.  What was sent since the server last spoke is counted, so many callers at once do not all spend the same rest.

Law: a gap is never longer than the time until the quota's reset.  No I/O.
"""

from __future__ import annotations

from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ratekeeper.outbound.response_limits import Quota

EASY = 0.5  # the share of a quota above which nobody waits
FEW = 10  # of a quota whose size was not told, so many are few
MOST_KEYS = 10_000


class KnownQuota:
    """What is known of one quota: ``remaining`` until ``reset_at``; ``free_at`` is when the next may go."""

    __slots__ = ("free_at", "limit", "remaining", "reset_at")

    def __init__(self) -> None:
        self.free_at = 0

    def update(self, quota: Quota, now: int) -> None:
        self.remaining = quota.remaining
        self.limit = quota.limit if quota.limit else 2 * FEW
        self.reset_at = now + int((quota.reset_after or 0.0) * SECOND)

    def gap(self, now: int) -> int:
        """Microseconds between two requests, as things stand."""
        left = self.reset_at - now
        if left <= 0:
            return 0
        if self.remaining <= 0:
            return left
        share = self.remaining / self.limit
        return 0 if share >= EASY else int(left / self.remaining * (1 - share / EASY))


class ServerQuotas:
    """The quotas of every key, as its server last told them."""

    def __init__(self) -> None:
        self.keys: dict[str | bytes, dict[str, KnownQuota]] = {}

    def observe(self, key: str | bytes, quotas: Iterable[Quota], now: int) -> None:
        """Remember what the server said at ``now``; units other than requests are not spread."""
        for quota in quotas:
            if quota.unit != "requests" or quota.reset_after is None:
                continue
            if key not in self.keys and len(self.keys) >= MOST_KEYS:
                del self.keys[next(iter(self.keys))]
            self.keys.setdefault(key, {}).setdefault(quota.name, KnownQuota()).update(quota, now)

    def wait(self, key: str | bytes, now: int) -> int:
        """Take the next place; microseconds until it comes."""
        longest = 0
        for known in list(self.keys.get(key, {}).values()):
            gap = known.gap(now)
            known.remaining -= 1
            if not gap:
                continue
            turn = min(max(now, known.free_at), max(now, known.reset_at))
            known.free_at = turn + gap
            longest = max(longest, turn - now if known.remaining >= 0 else known.reset_at - now)
        return longest

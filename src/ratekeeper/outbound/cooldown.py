"""Who told us to wait, and until when: known to all callers of this process at once, and through the store to a fleet.

In the store a hold is the state of a bucket that drains one unit a millisecond: holding it for n milliseconds takes
of a bucket of that size whatever is there, which leaves the later of the two ends, in one atomic step on any store.
"""

from __future__ import annotations

from ratekeeper.check import Check
from ratekeeper.flow.effects import Ask
from ratekeeper.limit import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.clock import Clock
    from ratekeeper.flow.effects import Flow

LOOK = 100_000  # microseconds for which the store's answer of "no hold" is believed
MOST_KEYS = 10_000
MOST_LIMITS = 1_000
MILLISECOND = 1_000
LONGEST = 3_600  # seconds: after this a host is asked again, whatever it told


class Cooldowns:
    """Until when each key waits, on the clock of this process."""

    def __init__(self, space: str, clock: Clock, look: int) -> None:
        self.space = space
        self.clock = clock
        self.look = look
        self.until: dict[str | bytes, int] = {}
        self.looked: dict[str | bytes, int] = {}
        self.limits: dict[int, Limit] = {}

    def known(self, key: str | bytes) -> int:
        """Microseconds that ``key`` has to wait, as far as this process knows."""
        until = self.until.get(key)
        if until is None:
            return 0
        left = until - self.clock.nanos() // 1000
        if left <= 0:
            self.until.pop(key, None)
            return 0
        return left

    def find(self, key: str | bytes) -> Flow[int]:
        """Microseconds that ``key`` has to wait, as far as anybody who shares the store knows."""
        left = self.known(key)
        now = self.clock.nanos() // 1000
        if left or (self.look and now < self.looked.get(key, 0)):
            return left
        check = Check(self.space, key, self.limit(1), 1)
        there, (state,) = yield Ask("states", (check,))
        self.remember(self.looked, key, now + self.look)
        left = check.limit.rule.reset_after(state, there, self.limit(LONGEST * MILLISECOND))
        if left:
            self.keep(key, left)
        return left

    def tell(self, key: str | bytes, micros: int) -> Flow[None]:
        """Let everybody wait for ``key``; an earlier hold that lasts longer stays."""
        micros = min(micros, LONGEST * 1_000_000)
        if micros > self.known(key):
            self.keep(key, micros)
            size = -(-micros // MILLISECOND)
            yield Ask("take", (Check(self.space, key, self.limit(size), size),))

    def keep(self, key: str | bytes, micros: int) -> None:
        self.remember(self.until, key, self.clock.nanos() // 1000 + micros)

    @staticmethod
    def remember(where: dict[str | bytes, int], key: str | bytes, until: int) -> None:
        if len(where) >= MOST_KEYS and key not in where:
            del where[next(iter(where))]
        where[key] = until

    def limit(self, size: int) -> Limit:
        found = self.limits.get(size)
        if found is None:
            if len(self.limits) >= MOST_LIMITS:
                self.limits.clear()
            found = self.limits[size] = Limit(1000, 1, burst=size)
        return found

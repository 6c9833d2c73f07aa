"""One cached refusal and how long it holds, and the lookup: the reference of native/refusals.c, its C twin.

No clock of its own, no I/O.
"""

from __future__ import annotations

from ratekeeper.check import to_cost
from ratekeeper.decision import Decision, new_decision
from ratekeeper.keys import LONGEST, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet, State


class Refusal:
    """One refusal, answered at ``sent``.  It holds until ``until``, our nanoseconds; the store's clock is ``ahead``."""

    __slots__ = ("ahead", "cost", "evidence", "is_partial", "limit", "sent", "until")

    def __init__(
        self, limit: Limit | LimitSet, cost: int, state: State, now: int, sent: int, until: int, is_partial: bool
    ) -> None:
        self.limit = limit
        self.cost = cost
        self.evidence = (False, limit, state, now, cost)
        self.ahead = now * 1000 - sent
        self.sent = sent
        self.until = until
        self.is_partial = is_partial

    def holds(self, limit: Limit | LimitSet, cost: int, nanos: int) -> bool:
        """Whether the store would refuse ``cost`` at the instant ``nanos``, too."""
        if not self.sent <= nanos < self.until or limit is not self.limit:
            return False
        return cost == self.cost or (cost > self.cost and not self.is_partial)

    def decision(self, cost: int, nanos: int) -> Decision:
        """The refusal with the figures of the instant ``nanos``."""
        allowed, limit, state, _, _ = self.evidence
        return new_decision(Decision, (allowed, limit, state, (nanos + self.ahead) // 1000, cost))


class Recall:
    """Looks up the cached refusals of one limit."""

    __slots__ = ("by_key", "limit", "nanos")

    def __init__(
        self, by_key: Mapping[str | bytes, Refusal], limit: Limit | LimitSet, nanos: Callable[[], int]
    ) -> None:
        self.by_key = by_key
        self.limit = limit
        self.nanos = nanos

    def hit(self, key: Key, cost: int) -> Decision | None:
        """The cached refusal of a caller's ``key`` if it holds now; else None."""
        if not self.by_key:
            return None
        return self.known(key if key.__class__ is str and len(key) <= LONGEST else encode(key), cost)

    def known(self, key: str | bytes, cost: int) -> Decision | None:
        """The same for a key that is encoded already."""
        refusal = self.by_key.get(key)
        if refusal is None:
            return None
        cost, nanos = to_cost(cost), self.nanos()
        return refusal.decision(cost, nanos) if refusal.holds(self.limit, cost, nanos) else None

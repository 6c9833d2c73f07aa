"""Who was refused, and until when nobody need ask again: answered here, without a round trip.

A refusal holds until the earliest moment at which the store could admit the same cost or more: others can only take,
and what they take makes the wait longer.  The time runs from the moment of asking, so it can end early, never late.
What an admission leaves tells as much about the next one.  What gives back ends it: a refund, a reset or another limit
through this store at once; one through another node is seen after ``LONGEST`` at most.
"""

from __future__ import annotations

from ratekeeper.native import core
from ratekeeper.stores.redis.packed_log import is_partial, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet, State

LONGEST = 1_000_000_000  # nanoseconds: the bound for what other nodes give back, and for a server whose clock is set
SHORTEST = 200_000  # nanoseconds: not worth remembering
LONG = 10_000_000  # nanoseconds: longer than an answer takes, so that nothing is missed by waiting for one
MOST = 10_000


if TYPE_CHECKING or core is None:
    from ratekeeper.stores.redis.refusal import Recall as Recall
    from ratekeeper.stores.redis.refusal import Refusal
else:
    Recall, Refusal = core.Recall, core.Refusal


class CachedRefusal(Refusal):
    """A refusal, and who asks whether it is over."""

    __slots__ = ("alone_for", "asking")
    asking: tuple[AbstractEventLoop, list[Future[None]]] | None  # on which loop one asks, and who waits for the answer
    alone_for: int | None  # nanoseconds after its end in which one can be admitted at most; None: not worked out yet

    def is_just_over(self, limit: Limit | LimitSet, cost: int, nanos: int) -> bool:
        """Whether of all who ask now one can be admitted at most, and for so long that an answer comes before that."""
        if nanos < self.until or limit is not self.limit or cost < self.cost:
            return False
        if self.alone_for is None:
            self.alone_for = self.after_it()
        return self.alone_for >= LONG and nanos < self.until + self.alone_for

    def after_it(self) -> int:
        """Nanoseconds from its end until a second one could be admitted."""
        _, limit, state, now, cost = self.evidence
        if is_partial(state):
            return 0
        rule, state = limit.rule, plain(state)
        wait = rule.retry_after(state, now, limit, cost)
        if wait is None:
            return LONGEST
        after, _ = rule.decide(state, now + wait, limit, cost)
        wait += rule.retry_after(after, now + wait, limit, cost) or 0
        return min(wait * 1000, 2 * LONGEST) - (self.until - self.sent)

    def let_go(self, waiting: list[Future[None]]) -> None:
        """Let those go on who wait for an answer; whoever comes now may ask."""
        if self.asking is not None and self.asking[1] is waiting:
            self.asking = None
        for each in waiting:
            if not each.done():
                each.set_result(None)
        waiting.clear()


class RefusalCache:
    """The refusals of one space and layout, by key."""

    __slots__ = ("by_key", "enabled")

    def __init__(self, enabled: bool) -> None:
        self.by_key: dict[str | bytes, CachedRefusal] = {}
        self.enabled = enabled

    def note(self, key: str | bytes, limit: Limit | LimitSet, cost: int, state: State, now: int, sent: int) -> None:
        if not self.enabled or limit.is_leased:  # a lease may be given back at any moment, anywhere
            return
        wait = limit.rule.retry_after(state, now, limit, cost)
        lasts = LONGEST if wait is None else min(wait * 1000, LONGEST)
        if lasts < SHORTEST:
            return
        if len(self.by_key) >= MOST:
            self.by_key.clear()  # a flood of refused keys: each costs one more round trip
        refusal = self.by_key[key] = CachedRefusal(limit, cost, state, now, sent, sent + lasts, is_partial(state))
        refusal.asking = refusal.alone_for = None

    def known(self, key: str | bytes, limit: Limit | LimitSet, cost: int, nanos: int) -> Decision | None:
        """The refusal of ``key`` if one is known to hold then."""
        refusal = self.by_key.get(key)
        return refusal.decision(cost, nanos) if refusal is not None and refusal.holds(limit, cost, nanos) else None

    def admitted(self, key: str | bytes, limit: Limit | LimitSet, cost: int, state: State, now: int, sent: int) -> None:
        """Take note of an admission of a key that was refused: most often the next one would be again."""
        self.forget(key)
        if not is_partial(state):
            self.note(key, limit, cost, state, now, sent)

    def forget(self, key: str | bytes) -> None:
        self.by_key.pop(key, None)

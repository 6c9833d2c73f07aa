"""Cached refusals: a key that was refused is refused here, without a round trip, until the store could admit it.

A refusal holds until the earliest instant at which the store could admit the same cost or more: other clients can only
use up more, which makes the wait longer.  Nobody knows when, between asking and answering, the store decided.  So the
refusal itself ends as if that had been when it was asked: it can end early, never late.  And what callers are told to
wait begins when the answer came: a caller that waits as told is never early.
The state after an admission tells as much about the next check.  A refund, a reset or another limit through this store
ends a cached refusal at once; one through another node is seen after ``LONGEST`` at most.
"""

from __future__ import annotations

from ratekeeper.limit import LimitSet
from ratekeeper.native import core
from ratekeeper.stores.redis.packed_log import is_partial, plain, whole_for

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, State

LONGEST = 1_000_000_000  # nanoseconds: after that a refund by another node, or a change of the server's clock, is seen
SHORTEST = 200_000  # nanoseconds: a shorter refusal is not worth caching
LONG = 10_000_000  # nanoseconds: longer than a reply takes, so that a task that waits for one misses nothing
MOST = 10_000


if TYPE_CHECKING or core is None:
    from ratekeeper.stores.redis.refusal import Recall as Recall
    from ratekeeper.stores.redis.refusal import Refusal
else:
    Recall, Refusal = core.Recall, core.Refusal


class CachedRefusal(Refusal):
    """A refusal, and the check under way that asks whether it is over."""

    __slots__ = ("alone_for", "asking", "lasts")
    lasts: int  # nanoseconds from asking to ``until``
    asking: tuple[AbstractEventLoop, list[Future[None]]] | None  # the loop of that check, and tasks that wait for it
    alone_for: int | None  # nanoseconds after its end in which one check at most can be admitted; None: not known yet

    def is_just_over(self, limit: Limit | LimitSet, cost: int, nanos: int) -> bool:
        """Whether one check at most can be admitted now, and until its reply has come."""
        if nanos < self.until or limit is not self.limit or cost < self.cost:
            return False
        if self.alone_for is None:
            self.alone_for = self.after_it()
        return self.alone_for >= LONG and nanos < self.until + self.alone_for

    def after_it(self) -> int:
        """Nanoseconds from its end until a second check could be admitted."""
        _, limit, state, now, cost = self.evidence
        if is_partial(state):
            return 0
        rule, state = limit.rule, plain(state)
        wait = rule.retry_after(state, now, limit, cost)
        if wait is None:
            return LONGEST
        after, _ = rule.decide(state, now + wait, limit, cost)
        wait += rule.retry_after(after, now + wait, limit, cost) or 0
        return min(wait * 1000, 2 * LONGEST) - self.lasts

    def let_go(self, waiting: list[Future[None]]) -> None:
        """Wake the tasks that wait for an answer; the next check may ask the store."""
        if self.asking is not None and self.asking[1] is waiting:
            self.asking = None
        for each in waiting:
            if not each.done():
                each.set_result(None)
        waiting.clear()


def is_ahead(states: State, now: int, limits: Any) -> bool:
    """Whether a later refusal may have to mend one of these states, so that the store must be asked."""
    return any(
        part.rule.decide(state, now, part, part.capacity + 1)[0] is not state
        for part, state in zip(limits.limits, states, strict=True)
    )


class RefusalCache:
    """The refusals of one space and layout, by key."""

    __slots__ = ("by_key", "enabled", "nanos")

    def __init__(self, enabled: bool, nanos: Callable[[], int] | None = None) -> None:
        self.by_key: dict[str | bytes, CachedRefusal] = {}
        self.enabled = enabled
        self.nanos = nanos  # of our clock; None: an answer comes at the instant of asking

    def note(self, key: str | bytes, limit: Limit | LimitSet, cost: int, state: State, now: int, sent: int) -> None:
        if not self.enabled or limit.is_leased:  # any process may give a lease back at any time
            return
        if limit.__class__ is LimitSet and is_ahead(state, now, limit):
            self.forget(key)
            return
        wait = limit.rule.retry_after(state, now, limit, cost)
        lasts = LONGEST if wait is None else min(wait * 1000, LONGEST)
        partial = is_partial(state)
        if partial:
            lasts = min(lasts, whole_for(state, now, limit) * 1000)
        if lasts < SHORTEST:
            self.forget(key)  # an earlier one knew another state
            return
        received = sent if self.nanos is None else max(sent, self.nanos())
        if received >= sent + lasts:  # it was over before its answer came
            self.forget(key)
            return
        if len(self.by_key) >= MOST:
            self.by_key.clear()  # a flood of refused keys: each costs one more round trip
        refusal = CachedRefusal(limit, cost, state, now, received, sent + lasts, partial)
        refusal.asking = refusal.alone_for = None
        refusal.lasts = lasts
        self.by_key[key] = refusal

    def known(self, key: str | bytes, limit: Limit | LimitSet, cost: int, nanos: int) -> Decision | None:
        """The cached refusal of ``key`` if it holds at the instant ``nanos``."""
        refusal = self.by_key.get(key)
        return refusal.decision(cost, nanos) if refusal is not None and refusal.holds(limit, cost, nanos) else None

    def admitted(self, key: str | bytes, limit: Limit | LimitSet, cost: int, state: State, now: int, sent: int) -> None:
        """Note the admission of a key that was refused before: most often the next check would be refused again."""
        self.forget(key)
        if not is_partial(state):
            self.note(key, limit, cost, state, now, sent)

    def forget(self, key: str | bytes) -> None:
        self.by_key.pop(key, None)

"""Who was refused, and until when nobody need ask again: answered here, without a round trip.

A refusal holds until the earliest moment at which the store could admit the same cost or more: others can only take,
and what they take makes the wait longer.  The time runs from the moment of asking, so it can end early, never late.
What an admission leaves tells as much about the next one.  What gives back ends it: a refund, a reset or another limit
through this store at once; one through another node is seen after ``LONGEST`` at most.
"""

from __future__ import annotations

from ratekeeper.model import Decision, decided
from ratekeeper.native import core
from ratekeeper.stores.logs import is_partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from typing import Any

    from ratekeeper.model import Limit, Several, State

LONGEST = 1_000_000_000  # nanoseconds: the bound for what other nodes give back, and for a server whose clock is set
SHORTEST = 200_000  # nanoseconds: not worth remembering
LONG = 10_000_000  # nanoseconds: longer than an answer takes, so that nothing is missed by waiting for one
MOMENT = 50_000_000
MOST = 10_000


def decided_at(evidence: tuple[Any, ...], nanos: int, ahead: int) -> Decision:
    """The decision of that evidence, but for its instant: that of a clock which is ``ahead`` of ``nanos``."""
    allowed, limit, state, _, cost = evidence
    return decided(Decision, (allowed, limit, state, (nanos + ahead) // 1000, cost))


if core is not None:
    decided_at = core.decided_at


class Denial:
    """One refusal: asked at ``sent`` and known until ``until``, our nanoseconds; the store's are ``ahead`` of them."""

    __slots__ = ("ahead", "asking", "cost", "evidence", "is_partial", "limit", "sent", "until")

    def __init__(self, limit: Limit | Several, cost: int, state: State, now: int, sent: int, until: int) -> None:
        self.limit = limit
        self.cost = cost
        self.evidence = (False, limit, state, now, cost)
        self.ahead = now * 1000 - sent
        self.sent = sent
        self.until = until
        self.is_partial = is_partial(state)
        # On which loop one asks whether it is over, and who waits for the answer.
        self.asking: tuple[AbstractEventLoop, list[Future[None]]] | None = None

    def holds(self, limit: Limit | Several, cost: int, nanos: int) -> bool:
        if not self.sent <= nanos < self.until or limit is not self.limit:
            return False
        return cost == self.cost or (cost > self.cost and not self.is_partial)

    def is_just_over(self, limit: Limit | Several, cost: int, nanos: int) -> bool:
        """Whether most who ask now will be refused again: it was long, and has ended within as much again."""
        lasted = self.until - self.sent
        if lasted < LONG or limit is not self.limit or cost < self.cost:
            return False
        return self.until <= nanos < self.until + min(lasted, MOMENT)

    def let_go(self, waiting: list[Future[None]]) -> None:
        """Let those go on who wait for an answer; whoever comes now may ask."""
        if self.asking is not None and self.asking[1] is waiting:
            self.asking = None
        for each in waiting:
            if not each.done():
                each.set_result(None)
        waiting.clear()

    def decision(self, cost: int, nanos: int) -> Decision:
        evidence = self.evidence if cost == self.cost else (*self.evidence[:4], cost)
        return decided_at(evidence, nanos, self.ahead)


class Denials:
    """The refusals of one space and layout, by key."""

    __slots__ = ("by_key", "enabled")

    def __init__(self, enabled: bool) -> None:
        self.by_key: dict[str | bytes, Denial] = {}
        self.enabled = enabled

    def note(self, key: str | bytes, limit: Limit | Several, cost: int, state: State, now: int, sent: int) -> None:
        if not self.enabled or limit.is_leased:  # a lease may be given back at any moment, anywhere
            return
        wait = limit.rule.retry_after(state, now, limit, cost)
        lasts = LONGEST if wait is None else min(wait * 1000, LONGEST)
        if lasts < SHORTEST:
            return
        if len(self.by_key) >= MOST:
            self.by_key.clear()  # a flood of refused keys: each costs one more round trip
        self.by_key[key] = Denial(limit, cost, state, now, sent, sent + lasts)

    def admitted(self, key: str | bytes, limit: Limit | Several, cost: int, state: State, now: int, sent: int) -> None:
        """Take note of an admission of a key that was refused: most often the next one would be again."""
        self.forget(key)
        if not is_partial(state):
            self.note(key, limit, cost, state, now, sent)

    def forget(self, key: str | bytes) -> None:
        self.by_key.pop(key, None)

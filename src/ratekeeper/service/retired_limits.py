"""What a reload leaves behind: the states of limits that no rule and no caller asks for any more.

They are kept until the last of them has recovered, as the limit may come back, and then let go of: a table in shared
memory takes megabytes.  Of many at once the oldest go earlier.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.limit import LimitSet
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.limit import Limit
    from ratekeeper.service.decider import Decider

    Place = tuple[str, str]  # a space, and the layout of its states

log = logging.getLogger("ratekeeper")
MOST_LEFT = 16


class RetiredLimits:
    """What is left of limits that are gone, of one worker."""

    def __init__(self, keeper: Decider) -> None:
        self.keeper = keeper
        self.users: list[Callable[[], Iterator[tuple[str, Limit | LimitSet]]]] = [keeper.places]
        self.left: dict[Place, tuple[Limit | LimitSet, float]] = {}  # until when each is kept, those left first first

    def keep(self, space: str, limit: Limit | LimitSet) -> None:
        """Somebody asks for it again."""
        if self.left:
            self.left.pop((space, limit.layout), None)

    def used(self) -> dict[Place, Limit | LimitSet]:
        return {(space, limit.layout): limit for user in self.users for space, limit in user()}

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Note what is in use before and no more after the block."""
        before = self.used()
        yield
        after, now = self.used(), monotonic()
        for place in after:
            self.left.pop(place, None)
        for place, limit in before.items():
            if place not in after:
                self.left[place] = limit, now + limit.recovery / SECOND + 1
        collect()  # rules are rings of objects, which hold their tables

    def tidy(self) -> None:
        """Let go of what has recovered."""
        now = monotonic()
        for place, (limit, until) in list(self.left.items()):
            if (now >= until or len(self.left) > MOST_LEFT) and self.is_gone(place[0], limit):
                del self.left[place]

    def is_gone(self, space: str, limit: Limit | LimitSet) -> bool:
        """Let go of one limit's states, unless another worker still has them in memory."""
        policy = self.keeper.policy
        stores: set[Any] = {policy.async_store, policy.instance}
        try:
            return all(store.release(space, limit) for store in stores)
        except InvalidStore as error:  # somebody else wrote there
            log.warning("what %s left behind stays: %s", shown(space), error)
            return True


def collect(*, freeze: bool = False) -> None:
    """Collect garbage, of what was frozen too; with ``freeze``, never look at the rest again.

    All that a service consists of is there for good, and to look at it takes 10 to 20 ms, which callers would wait for.
    """
    freeze = freeze or gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if freeze:
        gc.freeze()

"""Limits that a reload has removed: their states are kept until they have recovered, then released.

A removed limit may come back with the next reload, and must not start afresh then.  But a table in shared memory takes
megabytes, so no state is kept for longer than it matters, and the oldest go early if there are many.
"""

from __future__ import annotations

import gc
import logging
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.limit import LimitSet
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.limit import Limit
    from ratekeeper.rules.policy import Policy

    Place = tuple[str, str]  # a space, and the layout of its states

log = logging.getLogger("ratekeeper")
MOST_RETIRED = 16
MOST_RELEASED = 64  # at once
COLLECT_AFTER = 2.0  # seconds after a reload: collecting takes callers' time, and reloads may come in a series
YOUNG_OBJECTS = 10_000  # new objects between two collections: 1 to 3 MB


class RetiredLimits:
    """The removed limits of one worker whose states are still kept."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.users: list[Callable[[], dict[Place, Limit | LimitSet]]] = []  # each tells its limits in use
        self.release_hooks: list[Callable[[str, Limit | LimitSet], object]] = []  # told when states are gone
        self.collect_at = inf
        self.kept: dict[Place, tuple[Limit | LimitSet, float]] = {}  # until when, oldest first

    def revive(self, space: str, limit: Limit | LimitSet) -> None:
        """Note that a limit is in use again."""
        if self.kept:
            self.kept.pop((space, limit.layout), None)

    def in_use(self) -> dict[Place, Limit | LimitSet]:
        return {place: limit for user in self.users for place, limit in user().items()}

    @contextmanager
    def during_reload(self) -> Iterator[None]:
        """Retire the limits that are in use before the block and not after it."""
        before = self.in_use()
        yield
        after, now = self.in_use(), monotonic()
        for place in after:
            self.kept.pop(place, None)
        for place, limit in before.items():
            if place not in after:
                self.kept[place] = limit, now + limit.recovery / SECOND + 1
        self.collect_at = now + COLLECT_AFTER  # compiled rules are cycles of objects, and keep their tables alive

    def retire(self, space: str, limit: Limit | LimitSet) -> None:
        """Release the states of a limit that has recovered, now or when no other worker uses them any more."""
        if not self.release(space, limit):
            self.kept[space, limit.layout] = limit, 0.0

    def tidy(self) -> None:
        """Release the states of limits that have recovered, and collect garbage once after a series of reloads."""
        now = monotonic()
        if now >= self.collect_at:
            self.collect_at = inf
            collect()
        over = len(self.kept) - MOST_RETIRED
        released = 0
        for place, (limit, until) in list(self.kept.items()):
            if released >= MOST_RELEASED:
                break  # the rest has time: requests wait for this loop
            if now >= until or released < over:
                released += 1
                if self.release(place[0], limit):
                    del self.kept[place]

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Release the states of one limit; False if another worker still uses them in shared memory."""
        stores: set[Any] = {self.policy.async_store, self.policy.instance}
        try:
            if not all(store.release(space, limit) for store in stores):
                return False
        except InvalidStore as error:  # another program has written there
            log.warning("cannot release the retired limit %s, so its memory stays: %s", shown(space), error)
        for hook in self.release_hooks:
            hook(space, limit)
        return True


def collect(*, freeze: bool = False) -> None:
    """Collect garbage, also among frozen objects; with ``freeze``, exempt all that is left from later collections.

    The objects that make up a service live as long as it does.  Scanning them takes 10 to 20 ms of callers' time.
    Requests that wait for the store are no garbage either, so that few collections are worth their time.
    """
    freeze = freeze or gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if freeze:
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)

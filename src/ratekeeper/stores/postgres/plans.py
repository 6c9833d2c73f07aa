"""The row layouts of one store, and plans as requests on them, for threads and event loops alike.  No I/O."""

from __future__ import annotations

from ratekeeper.stores.postgres.layout import RowLayout
from ratekeeper.stores.postgres.request import RowsRequest
from ratekeeper.stores.redis.plans import MOST_LAYOUTS, cached_refusal
from ratekeeper.stores.redis.refusal_cache import RefusalCache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.postgres.url import PostgresSettings


class RowTranslator:
    """The row layouts of one store, and plans as requests on them."""

    def __init__(self, settings: PostgresSettings, gives_time: bool, nanos: Callable[[], int]) -> None:
        self.store = settings.shown  # as errors name it
        self.secret = settings.secret.encode()
        self.gives_time = gives_time
        self.nanos = nanos
        self.caches_refusals = settings.deny_cache
        self.layouts: dict[tuple[str, Limit | LimitSet], RowLayout] = {}
        self.by_identity: dict[tuple[str, int], tuple[Limit | LimitSet, RowLayout]] = {}
        self.refusals: dict[tuple[str, str], RefusalCache] = {}

    def layout(self, space: str, limit: Limit | LimitSet) -> RowLayout:
        """How ``limit`` is kept in ``space``: the same for equal limits, so that a reload forgets nothing."""
        cached = self.by_identity.get((space, id(limit)))  # hashing a limit takes longer than all the rest
        if cached is not None and cached[0] is limit:
            return cached[1]
        layout = self.layouts.get((space, limit))
        if layout is None:
            if len(self.layouts) >= MOST_LAYOUTS:  # the application makes limits at run time
                self.layouts.clear()
                self.refusals.clear()
            # Shared by all limits that read the same states: a refund under one ends the refusals of the others.
            refusals = self.refusals.setdefault((space, limit.layout), RefusalCache(self.caches_refusals, self.nanos))
            layout = RowLayout(space, limit, self.secret, self.gives_time, refusals, self.nanos)
            self.layouts[space, limit] = layout
        if len(self.by_identity) >= MOST_LAYOUTS:
            self.by_identity.clear()
        # The limit lives as long as this entry, so that no other object gets its identity.
        self.by_identity[space, id(limit)] = limit, layout
        return layout

    def release(self, space: str, limit: Limit | LimitSet) -> None:
        """Forget what is cached of the states that ``limit`` reads."""
        for place in [place for place in self.layouts if place[0] == space and place[1].layout == limit.layout]:
            del self.layouts[place]
        self.refusals.pop((space, limit.layout), None)
        self.by_identity.clear()

    def request(self, operation: str, plan: Plan, at: int | None = None) -> RowsRequest:
        """The request that answers ``operation`` on ``plan``."""
        return RowsRequest(operation, plan, [self.layout(check.space, check.limit) for check in plan], at)

    def cached_refusal(self, plan: Plan) -> tuple[Decision, ...] | None:
        """The refusal of a plan if it is cached."""
        checks: Any = [(self.layout(check.space, check.limit), check.key, check.cost) for check in plan]
        return cached_refusal(checks, self.nanos())

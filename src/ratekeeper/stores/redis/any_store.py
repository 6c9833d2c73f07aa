"""What RedisStore and AsyncRedisStore have in common: everything but how a server is asked.  No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.clock import MONOTONIC
from ratekeeper.stores.fallback import Fallback, NoFallback
from ratekeeper.stores.redis.handshake import runs, warned
from ratekeeper.stores.redis.plans import MOST_LAYOUTS, PlanTranslator
from ratekeeper.stores.redis.prefetch import PrefetchedQuotas, can_prefetch, validate
from ratekeeper.stores.redis.request import ChargeRequest
from ratekeeper.stores.redis.resp import MOST_REQUESTS
from ratekeeper.stores.redis.script import compose
from ratekeeper.stores.redis.url import RedisSettings

if TYPE_CHECKING:
    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.errors import StoreUnavailable
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.protocol import Row
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.plans import PlanFlow


MOST_CHARGES = 10 * MOST_REQUESTS  # keys that are charged at once


class AnyRedisStore:
    """State on Redis or Valkey.  The options are those of the URL (see ``url.py``).

    A ``clock`` that is given rules in the place of the server's: for tests.  Without a ``fallback`` a store that cannot
    answer raises StoreUnavailable: for experiments.
    """

    blocking = True
    is_async = False
    # What a store hands out, of its own kind: a table, a table with prefetched quotas, a prepared plan.
    table_type: Any
    prefetch_type: Any
    plan_type: Any

    def __init__(self, url: str, *, clock: Clock | None = None, fallback: bool = True, **options: Any) -> None:
        self.settings = RedisSettings(url, **options)
        self.url, self.options = url, options
        self.clock = MONOTONIC if clock is None else clock
        self.gives_time = clock is not None
        self.needs_heartbeats = not self.gives_time  # a test's clock has no heartbeats
        self.renewer: Any = None  # renews the leases of this process
        self.script = compose(given_time=self.gives_time)
        self.translator = PlanTranslator(self.settings, self.gives_time, self.clock.nanos)
        self.prefetching: dict[tuple[str, Limit, str | int], PrefetchedQuotas] = {}
        make_fallback = Fallback if fallback else NoFallback
        settings = self.settings
        settings.has_fallback = fallback
        self.fallback = make_fallback(settings.on_store_error, settings.local_share, self.translator, self.clock)

    @property
    def evicts_keys(self) -> bool:
        """Whether a server has said that it may evict keys, and so forget which clients are at their limit."""
        return self.settings.shown in warned

    @property
    def server_run(self) -> str | None:
        """Names the run of the server that was connected to last: a server that restarts may have lost its counts."""
        return None if self.settings.is_cluster else runs.get(self.settings.shown)

    def run(self, flow: PlanFlow) -> Any:
        """Send what ``flow`` asks for; its answer, or something to await."""
        raise NotImplementedError

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        prefetch: str | int | None = None,
        strict: bool = False,
    ) -> Any:
        """The states of one limit: its ``check`` is the hot path.  ``prefetch`` is how much quota it prefetches."""
        if prefetch is not None:
            validate(prefetch, limit)
        elif self.settings.prefetch is not None and can_prefetch(limit):
            prefetch = self.settings.prefetch
        if prefetch is None:
            return self.table_type(self, space, limit, on_store_error)
        return self.prefetch_type(self, space, limit, on_store_error, prefetch)

    def prefetched(self, space: str, limit: Limit, size: str | int) -> PrefetchedQuotas:
        """The prefetched quotas of a limit.  The store keeps them, as it must give back what is left of them."""
        quotas = self.prefetching.get((space, limit, size))
        if quotas is None:
            if len(self.prefetching) >= MOST_LAYOUTS:  # the application makes limits at run time
                self.prefetching.clear()  # what was debited for them recovers by itself
            quotas = self.prefetching[space, limit, size] = PrefetchedQuotas(limit, size, self.settings.deadline)
        return quotas

    def quotas_and_layouts(self) -> list[tuple[PrefetchedQuotas, RecordLayout]]:
        """All prefetched quotas, and where they were debited."""
        return [
            (quotas, self.translator.layout(space, quotas.limit))
            for (space, _, _), quotas in list(self.prefetching.items())
        ]

    def prepare(self, rows: tuple[Row, ...]) -> Any:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return self.plan_type(self, rows)

    def fall_back(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.fallback.answer(operation, error, plan, at)

    def charges(self) -> list[ChargeRequest]:
        """Requests that charge for what the fallback admitted: the next ones of many."""
        owe = self.fallback.owe
        return [ChargeRequest(layout, key, costs, owe) for layout, key, costs in self.fallback.collect(MOST_CHARGES)]

    def peek(self, plan: Plan) -> Any:
        """Say what ``check`` would, and take nothing."""
        return self.run(self.translator.flow("peek", plan))

    def take(self, plan: Plan) -> Any:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(self.translator.flow("take", plan))

    def debit(self, plan: Plan) -> Any:
        """Take all of each cost, though less is left: the key is in debt, and recovers in time."""
        return self.run(self.translator.flow("debit", plan))

    def refund(self, plan: Plan, at: int | None = None) -> Any:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(self.translator.flow("refund", plan, at))

    def renew(self, plan: Plan) -> Any:
        """Hold each lease of the plan, by itself, from now on: whether it is held; None: that is not known."""
        return self.run(self.translator.flow("renew", plan))

    def end_leases(self, plan: Plan) -> Any:
        """Let each lease of the plan keep only ``cost`` places; decisions if the plan has one check."""
        return self.run(self.translator.flow("end_leases", plan))

    def reset(self, plan: Plan) -> Any:
        """Forget what the plan's keys used."""
        return self.run(self.translator.flow("reset", plan))

    def states(self, plan: Plan) -> Any:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(self.translator.flow("states", plan))

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the server expire."""
        self.translator.release(space, limit)
        self.fallback.release(space, limit)
        return True

"""What PostgresStore and AsyncPostgresStore have in common: everything but how the server is asked.  No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import InvalidStore
from ratekeeper.stores.fallback import Fallback, NoFallback
from ratekeeper.stores.postgres.connection import expect_readable
from ratekeeper.stores.postgres.plans import RowTranslator
from ratekeeper.stores.postgres.request import MOST_REQUESTS, ChargedRows
from ratekeeper.stores.postgres.url import PostgresSettings

if TYPE_CHECKING:
    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.errors import StoreUnavailable
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.postgres.request import RowsRequest
    from ratekeeper.stores.protocol import Row

MOST_CHARGES = 10 * MOST_REQUESTS  # keys that are charged at once
MOST_LEASES_AT_ONCE = 100  # in one statement


class AnyPostgresStore:
    """State on Postgres.  The options are those of the URL (see ``url.py``).

    A ``clock`` that is given rules in the place of the server's: for tests.  Without a ``fallback`` a store that cannot
    answer raises StoreUnavailable: for experiments.
    """

    blocking = True
    is_async = False
    table_type: Any
    plan_type: Any

    def __init__(self, url: str, *, clock: Clock | None = None, fallback: bool = True, **options: Any) -> None:
        self.settings = PostgresSettings(url, **options)
        expect_readable(self.settings)
        self.url, self.options = url, options
        self.clock = MONOTONIC if clock is None else clock
        self.gives_time = clock is not None
        self.needs_heartbeats = not self.gives_time  # a test's clock has no heartbeats
        self.renewer: Any = None  # renews the leases of this process
        self.translator = RowTranslator(self.settings, self.gives_time, self.clock.nanos)
        make_fallback = Fallback if fallback else NoFallback
        settings = self.settings
        settings.has_fallback = fallback
        self.fallback = make_fallback(
            settings.on_store_error, settings.local_share, cast("Any", self.translator), self.clock
        )

    def run(self, request: RowsRequest) -> Any:
        """Send ``request``; its answer, or something to await."""
        raise NotImplementedError

    def away(self) -> str:
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
        """The states of one limit: its ``check`` is the hot path."""
        if prefetch is not None:
            raise InvalidStore(
                "store postgresql://: expected no prefetch, as only Redis stores take quota in advance, "
                f"got prefetch={prefetch!r}."
            )
        return self.table_type(self, space, limit, on_store_error)

    def prepare(self, rows: tuple[Row, ...]) -> Any:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return self.plan_type(self, rows)

    def fall_back(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.fallback.answer(operation, error, plan, at)

    def charges(self) -> list[ChargedRows]:
        """Requests that charge for what the fallback admitted: the next ones of many."""
        owe = self.fallback.owe
        return [
            ChargedRows(cast("Any", layout), key, costs, owe)
            for layout, key, costs in self.fallback.collect(MOST_CHARGES)
        ]

    def peek(self, plan: Plan) -> Any:
        """Say what ``check`` would, and take nothing."""
        return self.run(self.translator.request("peek", plan))

    def take(self, plan: Plan) -> Any:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(self.translator.request("take", plan))

    def debit(self, plan: Plan) -> Any:
        """Take all of each cost, though less is left: the key is in debt, and recovers in time."""
        return self.run(self.translator.request("debit", plan))

    def refund(self, plan: Plan, at: int | None = None) -> Any:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(self.translator.request("refund", plan, at))

    def reset(self, plan: Plan) -> Any:
        """Forget what the plan's keys used."""
        return self.run(self.translator.request("reset", plan))

    def states(self, plan: Plan) -> Any:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(self.translator.request("states", plan))

    def lease_requests(self, operation: str, plan: Plan) -> list[RowsRequest]:
        """Requests of a bounded size for any number of leases."""
        return [
            self.translator.request(operation, plan[at : at + MOST_LEASES_AT_ONCE])
            for at in range(0, len(plan), MOST_LEASES_AT_ONCE)
        ]

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the server expire."""
        self.translator.release(space, limit)
        self.fallback.release(space, limit)
        return True

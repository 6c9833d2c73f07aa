"""One limit, or a prepared plan of several, on Postgres: with the least work between the caller and the connection.

Cached refusals are answered here; if the store cannot answer, its fallback does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.stores.fallback import FallbackPlan
from ratekeeper.stores.postgres.request import RowsRequest
from ratekeeper.stores.redis.plans import cached_refusal
from ratekeeper.stores.redis.refusal_cache import Recall

if TYPE_CHECKING:
    from ratekeeper.check import Plan
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.postgres.any_store import AnyPostgresStore
    from ratekeeper.stores.protocol import Answer, Row

    EncodedKeys = tuple[str | bytes, ...]


class PostgresTable:
    """The states of one limit in one space, for threads."""

    def __init__(
        self, store: AnyPostgresStore, space: str, limit: Limit | LimitSet, on_store_error: str | None
    ) -> None:
        self.store = store
        self.space = space
        self.on_store_error = on_store_error
        self.layout = store.translator.layout(space, limit)
        self.layouts = (self.layout,)
        self.limit = self.layout.limit  # an equal one, for which refusals are cached
        self.hit = Recall(self.layout.refusals.by_key, self.limit, store.clock.nanos).hit
        self.fallback = store.fallback.table_for(cast("Any", self.layout), on_store_error)

    def check_now(self, key: Key, cost: int = 1) -> Decision | None:
        """Answer a cached refusal, and the fallback while the server is away; None: the server must be asked."""
        refusal = self.hit(key, cost)
        if refusal is not None:
            return refusal
        if not self.layout.parts:
            return self.request(encode(key), to_cost(cost)).without_server()[0]
        why = self.store.away()
        return self.fall_back(encode(key), to_cost(cost), why) if why else None

    def check(self, key: Key, cost: int = 1) -> Any:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        refusal = self.hit(key, cost)
        if refusal is not None:
            return refusal
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        try:
            return self.store.run(self.request(key, cost))[0]
        except StoreUnavailable as error:
            return self.fall_back(key, cost, error.why, error.charged)

    def request(self, key: str | bytes, cost: int) -> RowsRequest:
        return RowsRequest("check", (Check(self.space, key, self.limit, cost),), self.layouts)

    def fall_back(self, key: str | bytes, cost: int, why: str, charged: bool | None = False) -> Decision:
        """Answer in this process, as ``on_store_error`` says; ``charged``: None if the store may have counted it."""
        if self.fallback is not None:
            return self.fallback.check(key, cost, why, charged is False)
        check = Check(self.space, key, self.limit, cost, self.on_store_error)
        return self.store.fall_back("check", StoreUnavailable(self.store.settings.shown, why, charged), (check,))[0]


class AsyncPostgresTable(PostgresTable):
    """The states of one limit in one space, for event loops."""

    async def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        decision = self.check_now(key, cost)
        if decision is not None:
            return decision
        encoded, cost = encode(key), to_cost(cost)
        try:
            return (await self.store.run(self.request(encoded, cost)))[0]
        except StoreUnavailable as error:
            return self.fall_back(encoded, cost, error.why, error.charged)


class PostgresPlan:
    """Several limits, decided all or nothing, that only wait for a key each.  For threads."""

    def __init__(self, store: AnyPostgresStore, rows: tuple[Row, ...]) -> None:
        self.store = store
        self.rows = [
            (store.translator.layout(space, limit), to_cost(cost), on_store_error)
            for space, limit, cost, on_store_error in rows
        ]
        self.layouts = [layout for layout, _, _ in self.rows]
        self.refusals = tuple([layout.refusals.by_key for layout in self.layouts])
        self.is_unlimited = not any(layout.parts for layout in self.layouts)
        self.fallback: FallbackPlan | None = None

    def check_now(self, keys: tuple[Key, ...]) -> Answer | None:
        """Answer a cached refusal, and the fallback while the server is away; None: the server must be asked."""
        return self.known(self.encode(keys))

    def known(self, encoded: EncodedKeys) -> Answer | None:
        if self.is_unlimited:
            return True, self.request(encoded).without_server()
        if any(self.refusals):  # most of the time none is cached
            checks: Any = [(layout, key, cost) for (layout, cost, _), key in zip(self.rows, encoded, strict=True)]
            decisions = cached_refusal(checks, self.store.clock.nanos())
            if decisions is not None:
                return False, decisions
        why = self.store.away()
        return self.fall_back(encoded, why) if why else None

    def check(self, keys: tuple[Any, ...]) -> Any:
        """Take every cost for its key, or none.  Where the server cannot answer, the fallback does."""
        encoded = self.encode(keys)
        answer = self.known(encoded)
        if answer is not None:
            return answer
        try:
            decisions = self.store.run(self.request(encoded))
        except StoreUnavailable as error:
            return self.fall_back(encoded, error.why, error.charged)
        return all(decision.allowed for decision in decisions), decisions

    def encode(self, keys: tuple[Key, ...]) -> EncodedKeys:
        """The encoded keys; raises InvalidKey for an empty one."""
        if len(keys) != len(self.rows):
            raise TypeError(f"check: expected a tuple of {len(self.rows)} keys, got {keys!r}")
        return tuple([encode(key) for key in keys])

    def request(self, keys: EncodedKeys) -> RowsRequest:
        return RowsRequest("check", self.plan(keys), self.layouts)

    def plan(self, keys: EncodedKeys) -> Plan:
        return tuple(
            [
                Check(layout.space, key, layout.limit, cost, on_store_error)
                for (layout, cost, on_store_error), key in zip(self.rows, keys, strict=True)
            ]
        )

    def fall_back(self, keys: EncodedKeys, why: str, charged: bool | None = False) -> Answer:
        if self.fallback is None:
            self.fallback = FallbackPlan(self.store.fallback, cast("Any", self.rows))
        return self.fallback.check(keys, why, charged is False)


class AsyncPostgresPlan(PostgresPlan):
    """Several limits, decided all or nothing, that only wait for a key each.  For event loops."""

    def check(self, keys: tuple[Any, ...]) -> Any:
        """Take every cost for its key, or none: the answer if it is known here, else an awaitable of it."""
        encoded = self.encode(keys)
        answer = self.known(encoded)
        return self.asked(encoded) if answer is None else answer

    async def asked(self, encoded: EncodedKeys) -> Answer:
        try:
            decisions = await self.store.run(self.request(encoded))
        except StoreUnavailable as error:
            return self.fall_back(encoded, error.why, error.charged)
        return all(decision.allowed for decision in decisions), decisions

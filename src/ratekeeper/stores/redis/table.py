"""One limit on a remote store: ``check(key, cost)`` with the least work between the caller and the connection.

Cached refusals are answered here; if the store cannot answer, its fallback does.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import trio_loop
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.native import core
from ratekeeper.stores.redis.layout import MOST_NAMES
from ratekeeper.stores.redis.refusal_cache import Recall
from ratekeeper.stores.redis.request import TAKEN_SIZE, CheckRequest, without_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.redis.aio_connection import AsyncRedisServer
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.refusal_cache import CachedRefusal
    from ratekeeper.stores.redis.store import RedisStore


PATIENCE = 0.1  # of the deadline, to wait for an in-flight check: after that there must be time to send another


class RedisTable:
    """The states of one limit in one space, for threads."""

    def __init__(self, store: RedisStore, space: str, limit: Limit | LimitSet, on_store_error: str | None) -> None:
        self.store = store
        self.space = space
        self.on_store_error = on_store_error
        self.layout = store.translator.layout(space, limit)
        self.limit = self.layout.limit  # an equal one, for which refusals are cached
        self.refusals = self.layout.refusals
        self.nanos = store.clock.nanos
        self.recall = Recall(self.refusals.by_key, self.limit, self.nanos)
        self.hit = self.recall.hit
        self.is_direct = self.layout.is_single and not store.settings.is_cluster
        self.fallback = store.fallback.table_for(self.layout, on_store_error)

    def check_now(self, key: Key, cost: int = 1) -> Decision | None:
        """Answer a cached refusal, and the fallback while the server is away; None: the server must be asked."""
        refusal = self.hit(key, cost)
        if refusal is not None:
            return refusal
        if self.layout.subjects:
            why = self.store.away(b"" if self.is_direct else self.layout.keys(encode(key)))
            return self.fall_back(encode(key), to_cost(cost), why) if why else None
        return without_server("check", (Check(self.space, encode(key), self.limit, to_cost(cost)),))[0]

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        refusal = self.hit(key, cost)
        if refusal is not None:
            return refusal
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        try:
            if self.layout.is_single:
                if self.is_direct:
                    server = self.store.server
                    if server.breaker.is_open and (why := server.away()):
                        return self.fall_back(key, cost, why)
                return self.store.ask(CheckRequest(self.layout, key, cost))[0]
            return self.store.check((Check(self.space, key, self.limit, cost),))[0]
        except StoreUnavailable as error:
            return self.fall_back(key, cost, error.why, error.charged)

    def fall_back(self, key: str | bytes, cost: int, why: str, charged: bool | None = False) -> Decision:
        """Answer in this process, as ``on_store_error`` says; ``charged``: None if the store may have counted it."""
        if self.fallback is not None:
            return self.fallback.check(key, cost, why, charged is False)
        check = Check(self.space, key, self.limit, cost, self.on_store_error)
        return self.store.fall_back("check", StoreUnavailable(self.store.settings.shown, why, charged), (check,))[0]


class AsyncRedisTable(RedisTable):
    """The states of one limit in one space, for event loops."""

    store: AsyncRedisStore  # type: ignore[assignment]

    def __init__(self, store: AsyncRedisStore, space: str, limit: Limit | LimitSet, on_store_error: str | None) -> None:
        super().__init__(store, space, limit, on_store_error)  # type: ignore[arg-type]
        # What the C core reads by itself: one bucket, and a cost of 1.
        layout = self.layout
        self.bucket_rows: tuple[Any, ...] = ()
        if core is not None and layout.record_size == TAKEN_SIZE:
            self.bucket_rows = ((layout, core.terms(layout.limit), 1, layout.refusals.by_key),)

    async def check(self, key: Key, cost: int = 1) -> Decision:  # type: ignore[override]
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        refusal = self.hit(key, cost)
        if refusal is not None:
            return refusal
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        try:
            server = self.store.server() if self.is_direct else None
            cached = self.refusals.by_key.get(key)
            if cached is not None and cost >= cached.cost:
                refusal = await self.learn(cached, server, key, cost)
                if refusal is not None:
                    return refusal
            if server is not None and server.breaker.is_open and (why := server.away()):
                return self.fall_back(key, cost, why)
            return (await self.ask(server, key, cost))[0]
        except StoreUnavailable as error:
            return self.fall_back(key, cost, error.why, error.charged)

    def send(self, key: Key, cost: int = 1) -> Future[Decision] | None:
        """``check``, sent at once instead of when it is awaited; None: only ``check`` can answer this one.

        If the server cannot answer, the fallback settles the future.
        """
        if not self.is_direct or not self.layout.is_single:
            return None
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            return None
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            return None
        if key in self.refusals.by_key:  # other tasks may wait for the same answer
            return None
        try:
            return self.store.server().ask(SentCheck(self, key, cost))
        except StoreUnavailable:  # the fallback answers
            return None

    async def learn(
        self, refusal: CachedRefusal, server: AsyncRedisServer | None, key: str | bytes, cost: int
    ) -> Decision | None:
        """Wait for an in-flight check of the same key instead of sending another; None: send one."""
        asking = refusal.asking
        try:
            loop = get_running_loop()
        except RuntimeError:
            loop = trio_loop()
        if asking is None:
            is_over = refusal.is_just_over(self.limit, cost, self.nanos())
            return await self.ask_for_all(refusal, loop, server, key, cost) if is_over else None
        if asking[0] is not loop:
            return None
        if server is not None:
            server.glance()  # the reply may have arrived, and a turn of a busy loop is long
        decision = self.recall.known(key, cost)
        if decision is None:
            answered: Future[None] = loop.create_future()
            asking[1].append(answered)
            await answered
            decision = self.recall.known(key, cost)
        return decision

    async def ask_for_all(
        self,
        refusal: CachedRefusal,
        loop: AbstractEventLoop,
        server: AsyncRedisServer | None,
        key: str | bytes,
        cost: int,
    ) -> Decision:
        """Send a check for whose answer other tasks may wait.  They go on in any case, and soon."""
        waiting: list[Future[None]] = []
        refusal.asking = loop, waiting
        timer = loop.call_later(self.store.settings.deadline * PATIENCE, refusal.let_go, waiting)
        try:
            answer = self.ask(server, key, cost)
            if server is not None:
                server.hurry()
            return (await answer)[0]
        finally:
            timer.cancel()
            refusal.let_go(waiting)

    def ask(self, server: AsyncRedisServer | None, key: str | bytes, cost: int) -> Awaitable[tuple[Decision, ...]]:
        """The answer of the store, whatever is cached."""
        if server is None:
            return self.store.ask((Check(self.space, key, self.limit, cost),))
        return server.ask(CheckRequest(self.layout, key, cost))


class SentCheck(CheckRequest):
    """A check that was sent before anything awaits it."""

    __slots__ = ("table",)
    future: Future[Decision]

    def __init__(self, table: AsyncRedisTable, key: str | bytes, cost: int) -> None:
        layout = table.layout  # as CheckRequest has it, without the call
        self.table = table
        self.layout = layout
        self.key = key
        self.cost = cost
        self.keys = layout.names.get(key) or layout.keys(key)  # type: ignore[arg-type]
        self.words = (layout.once if cost == 1 else b"") or layout.check_words(cost)

    def read(self, reply: bytes, sent: int) -> Decision:
        rows = self.table.bucket_rows
        if rows and self.cost == 1 and len(reply) == TAKEN_SIZE:
            return core.read_buckets(reply, rows, (self.key,), sent, MOST_NAMES)[0]  # type: ignore[union-attr]
        return super().read(reply, sent)[0]

    def fail(self, error: BaseException) -> None:
        try:
            if not isinstance(error, StoreUnavailable):
                raise error
            decision = self.table.fall_back(self.key, self.cost, error.why, error.charged)
        except BaseException as problem:
            self.future.set_exception(problem)
        else:
            self.future.set_result(decision)

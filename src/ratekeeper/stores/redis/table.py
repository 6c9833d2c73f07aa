"""One limit on a remote store: ``check(key, cost)`` with the least work between a caller and the wire.

Refusals that are known to hold are answered here; where the store cannot answer, its standby does.
"""

from __future__ import annotations

from asyncio import Future, get_running_loop

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED
from ratekeeper.stores.redis.refusal_cache import Recall
from ratekeeper.stores.redis.request import CheckRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable

    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.stores.redis.aio_connection import AsyncRedisServer
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.refusal_cache import CachedRefusal
    from ratekeeper.stores.redis.store import RedisStore


PATIENCE = 0.1  # of the deadline, for the answer to another: after that there must be time for one's own


class RedisTable:
    """The states of one limit in one space, for threads."""

    def __init__(self, store: RedisStore, space: str, limit: Limit | LimitSet, on_store_error: str | None) -> None:
        self.store = store
        self.space = space
        self.on_store_error = on_store_error
        self.ledger = store.books.ledger(space, limit)
        self.limit = self.ledger.limit  # equal, and the one that refusals are known by
        self.denials = self.ledger.denials
        self.nanos = store.clock.nanos
        self.recall = Recall(self.denials.by_key, self.limit, self.nanos)
        self.hit = self.recall.hit
        self.is_plain = self.ledger.first and not store.settings.is_cluster
        # Where it is counted while a single server is away: at once, with nothing raised on the way.
        self.desk = store.standby.desk_for(self.ledger, on_store_error) if self.is_plain else None

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        known = self.hit(key, cost)
        if known is not None:
            return known
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        if self.desk is not None:
            link = self.store.home[0]
            if link.breaker.is_open and (why := link.away()):
                return self.desk.check(key, cost, why)
        try:
            if self.ledger.first:
                return self.store.ask(CheckRequest(self.ledger, key, cost))[0]
            return self.store.check((Check(self.space, key, self.limit, cost),))[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)

    def stand_in(self, key: str | bytes, cost: int, error: StoreUnavailable) -> Decision:
        check = Check(self.space, key, self.limit, cost, self.on_store_error)
        return self.store.stand_in("check", error, (check,))[0]


class AsyncRedisTable(RedisTable):
    """The states of one limit in one space, for event loops."""

    store: AsyncRedisStore  # type: ignore[assignment]

    def __init__(self, store: AsyncRedisStore, space: str, limit: Limit | LimitSet, on_store_error: str | None) -> None:
        super().__init__(store, space, limit, on_store_error)  # type: ignore[arg-type]
        self.near: tuple[AbstractEventLoop, AsyncRedisServer] = (None, None)  # type: ignore[assignment]

    async def check(self, key: Key, cost: int = 1) -> Decision:  # type: ignore[override]
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        known = self.hit(key, cost)
        if known is not None:
            return known
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        link, denial = self.nearest(), self.denials.by_key.get(key)
        if denial is not None and cost >= denial.cost:
            known = await self.learn(denial, link, key, cost)
            if known is not None:
                return known
        if link is not None and link.breaker.is_open and self.desk is not None and (why := link.away()):
            return self.desk.check(key, cost, why)
        try:
            return (await self.ask(link, key, cost))[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)

    async def learn(
        self, denial: CachedRefusal, link: AsyncRedisServer | None, key: str | bytes, cost: int
    ) -> Decision | None:
        """Ask whether a refusal is over, for all who come meanwhile, or learn from one who does; None: ask oneself."""
        loop, asking = get_running_loop(), denial.asking
        if asking is None:
            is_over = denial.is_just_over(self.limit, cost, self.nanos())
            return await self.ask_for_all(denial, loop, link, key, cost) if is_over else None
        if asking[0] is not loop:
            return None
        if link is not None:
            link.glance()  # the answer may be there, and the loop's turn not over for long
        known = self.recall.known(key, cost)
        if known is None:
            answered: Future[None] = Future(loop=loop)
            asking[1].append(answered)
            await answered
            known = self.recall.known(key, cost)
        return known

    async def ask_for_all(
        self, denial: CachedRefusal, loop: AbstractEventLoop, link: AsyncRedisServer | None, key: str | bytes, cost: int
    ) -> Decision:
        """Ask, and let those go on who wait for the answer: in any case, and soon."""
        waiting: list[Future[None]] = []
        denial.asking = loop, waiting
        timer = loop.call_later(self.store.settings.deadline * PATIENCE, denial.let_go, waiting)
        try:
            answer = self.ask(link, key, cost)
            if link is not None:
                link.hurry()
            return (await answer)[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)
        finally:
            timer.cancel()
            denial.let_go(waiting)

    def ask(self, link: AsyncRedisServer | None, key: str | bytes, cost: int) -> Awaitable[tuple[Decision, ...]]:
        """The answer of the store, whatever is remembered."""
        if link is None:
            return self.store.ask((Check(self.space, key, self.limit, cost),))
        return link.ask(CheckRequest(self.ledger, key, cost))

    def nearest(self) -> AsyncRedisServer | None:
        """The link of the running loop, which is nearly always the same one; None: the store must choose."""
        if not self.is_plain:
            return None
        loop, link = self.near
        running = get_running_loop()
        if running is not loop or link.is_closed:
            link = self.store.office().home
            self.near = running, link  # in one step: other threads may have loops of their own
        return link

"""One limit on a remote store: ``check(key, cost)`` with the least work between a caller and the wire.

Refusals that are known to hold are answered here; where the store cannot answer, its standby does.
"""

from __future__ import annotations

from asyncio import get_running_loop

from ratekeeper.errors import StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.model import UNLIMITED, Check, whole_cost
from ratekeeper.stores.codec import CheckOne
from ratekeeper.stores.denials import decided_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

    from ratekeeper.keys import Key
    from ratekeeper.model import Decision, Limit, Several
    from ratekeeper.stores.aio import AsyncLink
    from ratekeeper.stores.aredis import AsyncRedisStore
    from ratekeeper.stores.denials import Denial
    from ratekeeper.stores.redis import RedisStore


PATIENCE = 0.1  # of the deadline, for the answer to another: after that there must be time for one's own


class RedisTable:
    """The states of one limit in one space, for threads."""

    def __init__(self, store: RedisStore, space: str, limit: Limit | Several, on_store_error: str | None) -> None:
        self.store = store
        self.space = space
        self.limit = limit
        self.on_store_error = on_store_error
        self.ledger = store.books.ledger(space, limit)
        self.denied = self.ledger.denials.by_key
        self.nanos = store.clock.nanos
        self.is_plain = self.ledger.first and not store.settings.is_cluster
        # Where it is counted while a single server is away: at once, with nothing raised on the way.
        self.desk = store.standby.desk_for(self.ledger, on_store_error) if self.is_plain else None

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        if key.__class__ is str:
            denial = self.denied.get(key)
            if denial is not None and cost is denial.cost:  # the same small number, so nothing else need be looked at
                nanos = self.nanos()
                if denial.sent <= nanos < denial.until and denial.limit is self.limit:
                    return decided_at(denial.evidence, nanos, denial.ahead)
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        if self.desk is not None and (why := self.store.home[0].away()):
            return self.desk.check(key, cost, why)
        known = self.known(key, cost)
        if known is not None:
            return known
        try:
            if self.ledger.first:
                return self.store.ask(CheckOne(self.ledger, key, cost))[0]
            return self.store.check((Check(self.space, key, self.limit, cost),))[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)

    def known(self, key: str | bytes, cost: int) -> Decision | None:
        """The refusal of ``key`` if one is known to hold."""
        denial = self.denied.get(key)
        if denial is None:
            return None
        nanos = self.nanos()
        return denial.decision(cost, nanos) if denial.holds(self.limit, cost, nanos) else None

    def stand_in(self, key: str | bytes, cost: int, error: StoreUnavailable) -> Decision:
        check = Check(self.space, key, self.limit, cost, self.on_store_error)
        return self.store.stand_in("check", error, (check,))[0]


class AsyncRedisTable(RedisTable):
    """The states of one limit in one space, for event loops."""

    store: AsyncRedisStore  # type: ignore[assignment]

    def __init__(self, store: AsyncRedisStore, space: str, limit: Limit | Several, on_store_error: str | None) -> None:
        super().__init__(store, space, limit, on_store_error)  # type: ignore[arg-type]
        self.loop: AbstractEventLoop | None = None
        self.link: AsyncLink = None  # type: ignore[assignment]  # of that loop

    async def check(self, key: Key, cost: int = 1) -> Decision:  # type: ignore[override]
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        if key.__class__ is str:
            denial = self.denied.get(key)
            if denial is not None and cost is denial.cost:
                nanos = self.nanos()
                if denial.sent <= nanos < denial.until and denial.limit is self.limit:
                    return decided_at(denial.evidence, nanos, denial.ahead)
        if key.__class__ is not str or not 0 < len(key) <= LONGEST:
            key = encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        if self.is_plain:
            link = self.link
            if get_running_loop() is not self.loop or link.is_closed:
                link = self.settle_in()
            if link.breaker.is_open and self.desk is not None and (why := link.away()):
                return self.desk.check(key, cost, why)
        denial = self.denied.get(key)
        if denial is not None:
            return await self.ask_after(denial, key, cost)
        try:
            if self.is_plain:
                return (await link.ask(CheckOne(self.ledger, key, cost)))[0]
            return (await self.store.check((Check(self.space, key, self.limit, cost),)))[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)

    async def ask_after(self, denial: Denial, key: str | bytes, cost: int) -> Decision:
        """The answer for a key that was refused before."""
        nanos = self.nanos()
        if denial.holds(self.limit, cost, nanos):
            return denial.decision(cost, nanos)
        if not denial.is_just_over(self.limit, cost, nanos):
            return await self.ask(key, cost)
        # One asks whether it is over; the others that come in the same moment learn from its answer, or ask then.
        loop = get_running_loop()
        if denial.asking is None:
            waiting: list[Future[None]] = []
            denial.asking = loop, waiting
            timer = loop.call_later(self.store.settings.deadline * PATIENCE, denial.let_go, waiting)
            try:
                return await self.ask(key, cost)
            finally:
                timer.cancel()
                denial.let_go(waiting)
        if denial.asking[0] is loop:
            answered: Future[None] = loop.create_future()
            denial.asking[1].append(answered)
            await answered
        known = self.known(key, cost)
        return known if known is not None else await self.ask(key, cost)

    async def ask(self, key: str | bytes, cost: int) -> Decision:
        try:
            return (await self.store.ask((Check(self.space, key, self.limit, cost),)))[0]
        except StoreUnavailable as error:
            return self.stand_in(key, cost, error)

    def settle_in(self) -> AsyncLink:
        """Find the link of the running loop, which is nearly always the same one."""
        self.loop, self.link = get_running_loop(), self.store.office().home
        return self.link

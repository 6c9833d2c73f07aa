"""Leases: a node debits a chunk of a hot key at the store, and serves it without further round trips.

Debit first, serve later, so nobody is ever served what was not debited, whatever crashes.  A lease ends ``LASTS`` after
it was asked for.  While it is out, the store's bucket goes on refilling: what the store and all leases hold together
may pass the store's burst by what refills in that time, and by no more, as what is left of a lease is given back only
while it lasts, and is lost after that.  So the store is told a burst that is smaller by just that, and the limit's own
promise, ``burst + rate * time``, holds exactly.  A window's lease ends with its window.

A node that dies loses its leases, at most a quarter of what remained, and, if sized ``auto``, half of what it takes
while one lasts; a bucket recovers that as it recovers everything.

Only for one gcra, token_bucket or fixed_window limit: logs and sliding windows would need slack in their windows.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from contextlib import suppress

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED, Limit
from ratekeeper.stores.options import expect_options
from ratekeeper.stores.redis.request import decision
from ratekeeper.stores.redis.table import AsyncRedisTable, RedisTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import LimitSet, State
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.store import RedisStore

LASTS = 200_000  # microseconds
SHARE = 4  # a lease takes at most one part in so many of what remains
MOST = 10_000  # leases held at once
KINDS = ("gcra", "token_bucket", "fixed_window")


class PrefetchedQuota:
    """What a node holds of one key."""

    __slots__ = ("asking", "began", "left", "lock", "now", "sent", "state", "until", "used")

    def __init__(self) -> None:
        self.left = 0
        self.until = 0  # our nanoseconds
        self.began = 0
        self.used = 0  # since it began: how fast this node takes
        self.state: State = None
        self.now = 0
        self.sent = 0
        self.lock = allocate_lock()
        self.asking: asyncio.Future[None] | None = None


class PrefetchedQuotas:
    """The leases of one limit.  No I/O: says what to ask for, and is told what was given."""

    def __init__(self, limit: Limit, size: str | int) -> None:
        self.size = size
        self.lasts = LASTS
        self.limit = limit  # as the store is told
        if limit.algorithm != "fixed_window":
            recovery = limit.full // limit.drain
            self.lasts = min(LASTS, recovery // 2)  # half of a burst at most is kept back
            refilled = -(-self.lasts * limit.drain // limit.unit)
            made = Limit.__new__(Limit)
            made._build(str(limit), limit.count, limit.micros, limit.burst - refilled, limit.algorithm, 1)
            self.limit = made
        self.margin = self.lasts * 250  # nanoseconds: a quarter of its time for a refund to arrive
        self.held: dict[str | bytes, PrefetchedQuota] = {}

    def lease(self, key: str | bytes) -> PrefetchedQuota:
        found = self.held.get(key)
        if found is None:
            if len(self.held) >= MOST:
                self.held.clear()  # what they hold recovers by itself
            found = self.held.setdefault(key, PrefetchedQuota())
        return found

    def serve(self, lease: PrefetchedQuota, cost: int, nanos: int) -> Decision | None:
        """Out of the lease, if enough is left of it in time."""
        if lease.left < cost or nanos >= lease.until:
            return None
        lease.left -= cost
        lease.used += cost
        return decision(True, self.limit, lease.state, lease.now + (nanos - lease.sent) // 1000, cost)

    def wanted(self, lease: PrefetchedQuota, cost: int, nanos: int) -> int:
        """How much to debit for a call of ``cost``: itself, and what this node is likely to need."""
        if lease.state is None:
            return cost
        now = lease.now + (nanos - lease.sent) // 1000
        remaining = self.limit.rule.remaining(lease.state, now, self.limit)
        extra = remaining // SHARE
        if self.size == "auto":
            passed = max(nanos - lease.began, 1)
            extra = min(extra, lease.used * self.lasts * 1000 // (2 * passed))
        else:
            extra = min(extra, int(self.size))
        return cost + max(0, extra)

    def granted(self, lease: PrefetchedQuota, answer: Decision, taken: int, cost: int, state: State, sent: int) -> None:
        """Take note of an answer: ``taken`` was debited at the store, ``cost`` of it is served at once."""
        lease.state, lease.now, lease.sent = state, answer.at, sent
        lease.began, lease.used = sent, cost if answer.allowed else 0
        lease.left = taken - cost if answer.allowed else 0
        lease.until = sent + self.lasts * 1000
        if self.limit.algorithm == "fixed_window":
            ends = self.limit.micros - answer.at % self.limit.micros
            lease.until = min(lease.until, sent + ends * 1000)

    def leftover(self, lease: PrefetchedQuota, nanos: int) -> int:
        """What is left, to be given back if that will arrive in time; nobody will be served it any more."""
        left, lease.left = lease.left, 0
        return left if nanos + self.margin < lease.until else 0


def can_lease(limit: Limit | LimitSet) -> bool:
    if not isinstance(limit, Limit) or limit.algorithm not in KINDS:
        return False
    return limit.algorithm == "fixed_window" or limit.full // limit.drain >= 20_000  # a burst of 20 ms at least


def validate(lease: object, limit: Limit | LimitSet) -> None:
    expect_options("store", lease=lease)
    if not can_lease(limit):
        raise InvalidStore(
            f"lease: expected one limit of {', '.join(KINDS)} whose burst takes 20 ms or more to recover, "
            f"got {str(limit)!r}."
        )


class PrefetchTable:
    """RedisTable with leases, for threads."""

    def __init__(
        self, store: RedisStore, space: str, limit: Limit, on_store_error: str | None, size: str | int
    ) -> None:
        self.leases = PrefetchedQuotas(limit, size)
        self.inner = RedisTable(store, space, self.leases.limit, on_store_error)
        self.nanos = store.clock.nanos
        store.leased.add(self)

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits: out of a lease, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        leases = self.leases
        lease = leases.held.get(name) or leases.lease(name)
        with lease.lock:  # one asks, the others are served of what it gets
            found = leases.serve(lease, cost, self.nanos())
            return found if found is not None else self.renew(lease, key, name, cost)

    def renew(self, lease: PrefetchedQuota, key: Key, name: str | bytes, cost: int) -> Decision:
        leases, inner = self.leases, self.inner
        self.give_back(lease, name)
        sent = self.nanos()
        taken = leases.wanted(lease, cost, sent)
        answer = inner.check(key, taken)
        if not answer.allowed and taken > cost and not answer.reason:
            taken = cost  # there is not that much: exact again
            sent = self.nanos()
            answer = inner.check(key, cost)
        if not answer.reason:
            leases.granted(lease, answer, taken, cost, inner.ledger.recall(name), sent)
        return answer

    def give_back(self, lease: PrefetchedQuota, key: str | bytes) -> None:
        at, left = lease.now, self.leases.leftover(lease, self.nanos())
        if left:
            with suppress(StoreUnavailable):
                self.inner.store.refund((Check(self.inner.space, key, self.leases.limit, left),), at)

    def close(self) -> None:
        for key, lease in list(self.leases.held.items()):
            with lease.lock:
                self.give_back(lease, key)


class AsyncPrefetchTable:
    """RedisTable with leases, for event loops."""

    def __init__(
        self, store: AsyncRedisStore, space: str, limit: Limit, on_store_error: str | None, size: str | int
    ) -> None:
        self.leases = PrefetchedQuotas(limit, size)
        self.inner = AsyncRedisTable(store, space, self.leases.limit, on_store_error)
        self.nanos = store.clock.nanos
        store.leased.add(self)

    async def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits: out of a lease, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = whole_cost(cost)
        leases = self.leases
        lease = leases.held.get(name) or leases.lease(name)
        while True:
            found = leases.serve(lease, cost, self.nanos())
            if found is not None:
                return found
            known = self.inner.hit(key, cost)
            if known is not None:
                return known
            if lease.asking is None:
                break
            await asyncio.shield(lease.asking)
        lease.asking = asyncio.get_running_loop().create_future()
        try:
            return await self.renew(lease, key, name, cost)
        finally:
            lease.asking.set_result(None)
            lease.asking = None

    async def renew(self, lease: PrefetchedQuota, key: Key, name: str | bytes, cost: int) -> Decision:
        leases, inner = self.leases, self.inner
        await self.give_back(lease, name)
        sent = self.nanos()
        taken = leases.wanted(lease, cost, sent)
        answer = await inner.check(key, taken)
        if not answer.allowed and taken > cost and not answer.reason:
            taken = cost
            sent = self.nanos()
            answer = await inner.check(key, cost)
        if not answer.reason:
            leases.granted(lease, answer, taken, cost, inner.ledger.recall(name), sent)
        return answer

    async def give_back(self, lease: PrefetchedQuota, key: str | bytes) -> None:
        at, left = lease.now, self.leases.leftover(lease, self.nanos())
        if left:
            with suppress(StoreUnavailable):
                await self.inner.store.refund((Check(self.inner.space, key, self.leases.limit, left),), at)

    async def close(self) -> None:
        for key, lease in list(self.leases.held.items()):
            await self.give_back(lease, key)

"""Prefetch: debit a chunk of a hot key's quota at the store, and serve it here without further round trips.

Debit first, serve later, so no call is ever served what was not debited, whatever crashes.  A prefetched quota ends
``LASTS`` after it was asked for.  Meanwhile the store's bucket goes on refilling: the store and all prefetched quotas
together may pass the store's burst by what refills in that time, and by no more, as what is left of a quota is refunded
only while it lasts, and is lost after that.  So the store is given a burst that is smaller by just that, and the
limit's own promise, ``burst + rate * time``, holds exactly.  A window's quota ends with its window.

A process that dies loses its quotas: at most a quarter of what remained, and, if sized ``auto``, half of what it takes
while one lasts.  A bucket recovers that as it recovers everything.

Only for one gcra, token_bucket or fixed_window limit: logs and sliding windows would need slack in their windows.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from contextlib import suppress

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED, Limit
from ratekeeper.stores.options import expect_options
from ratekeeper.stores.redis.request import decision
from ratekeeper.stores.redis.steps import adrive, drive
from ratekeeper.stores.redis.table import AsyncRedisTable, RedisTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import LimitSet, State
    from ratekeeper.stores.redis.steps import Steps
    from ratekeeper.stores.redis.store import RedisStore


LASTS = 200_000  # microseconds
SHARE = 4  # a quota takes at most one part in so many of what remains
MOST = 10_000  # quotas at once
KINDS = ("gcra", "token_bucket", "fixed_window")


class PrefetchedQuota:
    """What this process has debited for one key and not served yet."""

    __slots__ = ("asking", "began", "left", "lock", "now", "sent", "state", "until", "used")

    def __init__(self) -> None:
        self.left = 0
        self.until = 0  # our nanoseconds
        self.began = 0
        self.used = 0  # since it began: how fast this process takes
        self.state: State = None
        self.now = 0
        self.sent = 0
        self.lock = allocate_lock()
        self.asking: asyncio.Future[None] | None = None


class PrefetchedQuotas:
    """The prefetched quotas of one limit.  No I/O: says how much to debit, and takes note of what was granted."""

    def __init__(self, limit: Limit, size: str | int) -> None:
        self.size = size
        self.lasts = LASTS
        self.limit = limit  # as the store knows it
        if limit.algorithm != "fixed_window":
            recovery = limit.full // limit.drain
            self.lasts = min(LASTS, recovery // 2)  # half of a burst at most is kept back
            refilled = -(-self.lasts * limit.drain // limit.unit)
            smaller = Limit.__new__(Limit)
            smaller._build(str(limit), limit.count, limit.micros, limit.burst - refilled, limit.algorithm, 1)
            self.limit = smaller
        self.margin = self.lasts * 250  # nanoseconds: a quarter of its time for a refund to arrive
        self.by_key: dict[str | bytes, PrefetchedQuota] = {}

    def quota(self, key: str | bytes) -> PrefetchedQuota:
        quota = self.by_key.get(key)
        if quota is None:
            if len(self.by_key) >= MOST:
                self.by_key.clear()  # what was debited for them recovers by itself
            quota = self.by_key.setdefault(key, PrefetchedQuota())
        return quota

    def serve(self, quota: PrefetchedQuota, cost: int, nanos: int) -> Decision | None:
        """Take ``cost`` out of the quota, if enough is left of it in time."""
        if quota.left < cost or nanos >= quota.until:
            return None
        quota.left -= cost
        quota.used += cost
        return decision(True, self.limit, quota.state, quota.now + (nanos - quota.sent) // 1000, cost)

    def wanted(self, quota: PrefetchedQuota, cost: int, nanos: int) -> int:
        """How much to debit for a call of ``cost``: itself, and what this process is likely to need."""
        if quota.state is None:
            return cost
        now = quota.now + (nanos - quota.sent) // 1000
        remaining = self.limit.rule.remaining(quota.state, now, self.limit)
        extra = remaining // SHARE
        if self.size == "auto":
            passed = max(nanos - quota.began, 1)
            extra = min(extra, quota.used * self.lasts * 1000 // (2 * passed))
        else:
            extra = min(extra, int(self.size))
        return cost + max(0, extra)

    def granted(self, quota: PrefetchedQuota, answer: Decision, taken: int, cost: int, state: State, sent: int) -> None:
        """Take note of an answer: ``taken`` was debited at the store, ``cost`` of it is served at once."""
        quota.state, quota.now, quota.sent = state, answer.at, sent
        quota.began, quota.used = sent, cost if answer.allowed else 0
        quota.left = taken - cost if answer.allowed else 0
        quota.until = sent + self.lasts * 1000
        if self.limit.algorithm == "fixed_window":
            ends = self.limit.micros - answer.at % self.limit.micros
            quota.until = min(quota.until, sent + ends * 1000)

    def leftover(self, quota: PrefetchedQuota, nanos: int) -> int:
        """What is left, to be refunded if that will arrive in time; it is served to nobody any more."""
        left, quota.left = quota.left, 0
        return left if nanos + self.margin < quota.until else 0


def can_prefetch(limit: Limit | LimitSet) -> bool:
    if not isinstance(limit, Limit) or limit.algorithm not in KINDS:
        return False
    return limit.algorithm == "fixed_window" or limit.full // limit.drain >= 20_000  # a burst of 20 ms at least


def validate(lease: object, limit: Limit | LimitSet) -> None:
    expect_options("store", lease=lease)
    if not can_prefetch(limit):
        raise InvalidStore(
            f"lease: expected one limit of {', '.join(KINDS)} whose burst takes 20 ms or more to recover, "
            f"got {str(limit)!r}."
        )


class PrefetchTable:
    """RedisTable with prefetched quotas, for threads."""

    def __init__(
        self, store: RedisStore, space: str, limit: Limit, on_store_error: str | None, size: str | int
    ) -> None:
        self.quotas = PrefetchedQuotas(limit, size)
        self.inner = self.open_inner(store, space, self.quotas.limit, on_store_error)
        self.nanos = store.clock.nanos
        store.prefetching.add(self)

    @staticmethod
    def open_inner(store: Any, space: str, limit: Limit, on_store_error: str | None) -> RedisTable:
        return RedisTable(store, space, limit, on_store_error)

    def check_now(self, key: Key, cost: int = 1) -> Decision | None:
        """Take ``cost`` out of a prefetched quota, or answer as RedisTable does; None: the server must be asked."""
        name = encode(key)
        cost = to_cost(cost)
        quota = self.quotas.by_key.get(name)
        if quota is not None and quota.lock.acquire(False):  # else a thread asks for more of it
            try:
                decision = self.quotas.serve(quota, cost, self.nanos())
            finally:
                quota.lock.release()
            if decision is not None:
                return decision
        return self.inner.check_now(key, cost)

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits: out of a prefetched quota, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        quotas = self.quotas
        quota = quotas.by_key.get(name) or quotas.quota(name)
        with quota.lock:  # one thread asks, and the others are served of what it gets
            decision = quotas.serve(quota, cost, self.nanos())
            return decision if decision is not None else drive(self.renew(quota, key, name, cost))

    def renew(self, quota: PrefetchedQuota, key: Key, name: str | bytes, cost: int) -> Steps[Decision]:
        """Debit a new quota, of which ``cost`` is served at once.  Yields what the store must do."""
        quotas, inner = self.quotas, self.inner
        yield from self.give_back(quota, name)
        sent = self.nanos()
        taken = quotas.wanted(quota, cost, sent)
        answer: Decision = yield inner.check, (key, taken)
        if not answer.allowed and taken > cost and not answer.reason:
            taken = cost  # there is not that much: exact again
            sent = self.nanos()
            answer = yield inner.check, (key, cost)
        if not answer.reason:
            quotas.granted(quota, answer, taken, cost, inner.layout.recall(name), sent)
        return answer

    def give_back(self, quota: PrefetchedQuota, key: str | bytes) -> Steps[None]:
        """Refund what is left of a quota, if that arrives in time."""
        at, left = quota.now, self.quotas.leftover(quota, self.nanos())
        if left:
            with suppress(StoreUnavailable):
                yield self.inner.store.refund, ((Check(self.inner.space, key, self.quotas.limit, left),), at)

    def close(self) -> None:
        for key, quota in list(self.quotas.by_key.items()):
            with quota.lock:
                drive(self.give_back(quota, key))


class AsyncPrefetchTable(PrefetchTable):
    """RedisTable with prefetched quotas, for event loops."""

    inner: AsyncRedisTable

    @staticmethod
    def open_inner(store: Any, space: str, limit: Limit, on_store_error: str | None) -> AsyncRedisTable:
        return AsyncRedisTable(store, space, limit, on_store_error)

    async def check(self, key: Key, cost: int = 1) -> Decision:  # type: ignore[override]
        """Take ``cost`` for ``key`` if it fits: out of a prefetched quota, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        quotas = self.quotas
        quota = quotas.by_key.get(name) or quotas.quota(name)
        while True:
            decision = quotas.serve(quota, cost, self.nanos())
            if decision is not None:
                return decision
            refusal = self.inner.hit(key, cost)
            if refusal is not None:
                return refusal
            if quota.asking is None:
                break
            await asyncio.shield(quota.asking)
        quota.asking = asyncio.get_running_loop().create_future()
        try:
            return await adrive(self.renew(quota, key, name, cost))
        finally:
            quota.asking.set_result(None)
            quota.asking = None

    async def close(self) -> None:  # type: ignore[override]
        for key, quota in list(self.quotas.by_key.items()):
            await adrive(self.give_back(quota, key))

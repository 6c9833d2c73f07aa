"""Prefetch: debit a chunk of a hot key's quota at the store, and serve it here without further round trips.

Debit first, serve later, so no call is ever served what was not debited, whatever crashes.  A prefetched quota is
served for ``LASTS`` after it was asked for, so what is admitted in any interval was debited in it, or at most ``LASTS``
before.  The store is given a burst that is smaller by what refills in that time, so the limit's own promise,
``burst + rate * time``, holds exactly.  A window's quota ends with its window.

What is left of a quota is given back with the next request for its key, or on close, however late that arrives.  The
store gives a bucket only what cannot have refilled since it was debited (``returned``): with that the bucket is never
better off than if the quota had not been debited, so a quota that is given back changes nothing about the promise.

One caller at a time asks for a quota of a key, in one request that also decides its own call.  The others do not wait
for it: each asks the store for its own cost, in the same batch if it can.  So no caller waits longer than the store's
deadline.

A process that dies loses its quotas: at most a quarter of what remained, and, if sized ``auto``, half of what it takes
while one lasts.  A bucket recovers that as it recovers everything.

Only for one gcra, token_bucket or fixed_window limit: logs and sliding windows would need slack in their windows.
"""

from __future__ import annotations

import asyncio
import os
from _thread import allocate_lock
from weakref import WeakSet

from ratekeeper.algorithms.gcra import MARK, instant
from ratekeeper.check import to_cost
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import UNLIMITED, Limit
from ratekeeper.stores.options import expect_options
from ratekeeper.stores.redis.request import PrefetchRequest, decision
from ratekeeper.stores.redis.table import AsyncRedisTable, RedisTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.limit import LimitSet, State
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.store import RedisStore


LASTS = 200_000  # microseconds
SHARE = 4  # a quota takes at most one part in so many of what remains
SHORTEST = 10_000_000  # nanoseconds: over less than that nobody knows how fast a process takes
MOST = 10_000  # quotas at once
KINDS = ("gcra", "token_bucket", "fixed_window")


class PrefetchedQuota:
    """What this process has debited for one key and not served yet."""

    __slots__ = ("asking_until", "began", "left", "lock", "now", "sent", "state", "until", "used")

    def __init__(self, nanos: int) -> None:
        self.left = 0
        self.until = 0  # our nanoseconds
        self.began = nanos
        self.used = 0  # since it began: how fast this process takes
        self.state: State = None
        self.now = 0  # of the store, when it was debited
        self.sent = 0
        self.asking_until = 0  # our nanoseconds: a caller asks for more, and must have its answer by then
        self.lock = allocate_lock()  # held for a few steps, never while the store is asked


class PrefetchedQuotas:
    """The prefetched quotas of one limit, shared by threads and event loops.

    No I/O: says how much to debit, and takes note of what was granted.
    """

    def __init__(self, limit: Limit, size: str | int, deadline: float) -> None:
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
        self.asks_for = int(2e9 * deadline)  # nanoseconds: an answer that has not come by then never will
        self.by_key: dict[str | bytes, PrefetchedQuota] = {}
        self.in_flight: set[QuotaRequest] = set()
        self.swept_at = 0
        self.is_closing = False
        in_this_process.add(self)

    def quota(self, key: str | bytes, nanos: int) -> PrefetchedQuota | None:
        """The quota of a key; None: too many other keys have one."""
        quota = self.by_key.get(key)
        if quota is None:
            if len(self.by_key) >= MOST:
                if nanos - self.swept_at < self.lasts * 1000:
                    return None
                self.swept_at = nanos
                for name, other in list(self.by_key.items()):  # those out of use, with nothing to give back
                    if not other.left and nanos >= max(other.until, other.asking_until):
                        self.by_key.pop(name, None)
            quota = self.by_key.setdefault(key, PrefetchedQuota(nanos))
        return quota

    def serve(self, quota: PrefetchedQuota, cost: int, nanos: int) -> Decision | None:
        """Take ``cost`` out of the quota, if enough is left of it in time."""
        with quota.lock:
            if quota.left < cost or nanos >= quota.until:
                return None
            quota.left -= cost
            quota.used += cost
            return decision(True, self.limit, quota.state, quota.now + (nanos - quota.sent) // 1000, cost)

    def extra(self, quota: PrefetchedQuota, layout: RecordLayout, key: str | bytes, nanos: int) -> int:
        """How much to debit beyond the cost of a call: what this process is likely to need."""
        state = layout.recall(key)
        if state is None:
            return 0
        now = layout.seen[0] + (nanos - layout.seen[1]) // 1000
        extra: int = self.limit.rule.remaining(state, now, self.limit) // SHARE
        if self.size == "auto":
            passed = max(nanos - quota.began, SHORTEST)
            return max(0, min(extra, quota.used * self.lasts * 1000 // (2 * passed)))
        return max(0, min(extra, int(self.size)))

    def request(
        self, quota: PrefetchedQuota, layout: RecordLayout, key: str | bytes, cost: int, nanos: int
    ) -> QuotaRequest | None:
        """A request for ``cost`` and more, which also gives back what is left; None: ask for the cost alone."""
        if key in layout.refusals.by_key or self.is_closing:
            return None
        with quota.lock:
            if nanos < quota.asking_until:
                return None
            extra = self.extra(quota, layout, key, nanos)
            unused, at = quota.left, quota.now
            if not extra and not unused:
                return None
            quota.left = 0
            quota.asking_until = nanos + self.asks_for
        return QuotaRequest(self, quota, layout, key, cost, cost + extra, unused, at)

    def used_alone(self, quota: PrefetchedQuota, cost: int, nanos: int) -> None:
        """Take note of a call that was admitted without a quota."""
        with quota.lock:
            if nanos - quota.began > self.lasts * 1000:
                quota.began, quota.used = nanos, 0
            quota.used += cost

    def granted(self, quota: PrefetchedQuota, unserved: int, cost: int, state: State, now: int, sent: int) -> None:
        """Take note of an answer: ``cost`` was served at once, and ``unserved`` is left."""
        with quota.lock:
            quota.state, quota.now, quota.sent = state, now, sent
            quota.began, quota.used = sent, cost
            quota.left = unserved
            quota.until = sent + self.lasts * 1000
            if self.limit.algorithm == "fixed_window":
                ends = self.limit.micros - now % self.limit.micros
                quota.until = min(quota.until, sent + ends * 1000)

    def leftovers(self, layout: RecordLayout) -> list[QuotaRequest]:
        """Requests that give back what is left of every quota; it is served to nobody any more."""
        requests = []
        for key, quota in list(self.by_key.items()):
            with quota.lock:
                left, quota.left = quota.left, 0
            if left:
                requests.append(QuotaRequest(self, quota, layout, key, 0, 0, left, quota.now))
        return requests


class QuotaRequest(PrefetchRequest):
    """A request for a quota.  Its answer is noted even if the caller has left meanwhile."""

    __slots__ = ("is_abandoned", "is_done", "landed", "quota", "quotas", "sent", "served")

    def __init__(
        self,
        quotas: PrefetchedQuotas,
        quota: PrefetchedQuota,
        layout: RecordLayout,
        key: str | bytes,
        least: int,
        cost: int,
        unused: int,
        at: int,
    ) -> None:
        super().__init__(layout, key, least, cost, unused, at)
        self.quotas = quotas
        self.quota = quota
        self.is_abandoned = False
        self.is_done = False
        self.sent = self.served = 0
        self.landed = allocate_lock()  # free once the request is over: a thread that closes the store waits for it
        self.landed.acquire()
        if least:
            quotas.in_flight.add(self)

    def read(self, reply: bytes, sent: int) -> Decision:
        answer, taken, state = self.answer(reply, sent)
        if self.least:
            self.sent, self.served = sent, 0 if self.is_abandoned else min(taken, self.least)
            self.quotas.granted(self.quota, taken - self.served, self.served, state, answer.at, sent)
        self.finish()
        return answer

    def abandon(self) -> None:
        """Keep for other callers what the caller, which has left, asked for itself."""
        self.is_abandoned = True
        with self.quota.lock:
            if self.quota.sent == self.sent:  # of the quota that was granted with it
                self.quota.left += self.served
                self.served = 0

    def finish(self) -> None:
        """Let another caller ask; only the first call counts."""
        if self.is_done:
            return
        self.is_done = True
        self.landed.release()
        self.quotas.in_flight.discard(self)
        if self.least:
            self.quota.asking_until = 0

    def fail(self, error: BaseException) -> None:
        self.missed(error)
        super().fail(error)

    def missed(self, error: BaseException) -> None:
        """Note that there is no answer.  What was to be given back is kept if the store cannot have it."""
        if not self.is_done and isinstance(error, StoreUnavailable) and error.charged is False:
            with self.quota.lock:
                if not self.quota.left:
                    self.quota.left = self.unused  # its time has not changed
        self.finish()


def returned(state: Any, now: int, limit: Limit, unused: int, at: int) -> Any:
    """The state after ``unused`` was given back, taken at the instant ``at``: twin of `returned` in upkeep.lua.

    A bucket gets no more than it would have without that debit: since then it refilled by ``now - at`` at most.
    """
    if limit.algorithm == "fixed_window":
        return limit.rule.refund(state, now, limit, unused, at)
    if state >= MARK:  # in debt: nothing is left to be given back
        return state
    owed = limit.rule.backlog(state, now, limit)
    back = unused * limit.unit - max(0, now - at) * limit.drain
    return instant(max(0, owed - back), now, limit) if owed and back > 0 else state


def can_prefetch(limit: Limit | LimitSet) -> bool:
    if not isinstance(limit, Limit) or limit.algorithm not in KINDS:
        return False
    return limit.algorithm == "fixed_window" or limit.full // limit.drain >= 20_000  # a burst of 20 ms at least


def validate(prefetch: object, limit: Limit | LimitSet) -> None:
    expect_options("store", prefetch=prefetch)
    if not can_prefetch(limit):
        raise InvalidStore(
            f"prefetch: expected one limit of {', '.join(KINDS)} whose burst takes 20 ms or more to recover, "
            f"got {str(limit)!r}."
        )


class PrefetchTable:
    """RedisTable with prefetched quotas, for threads."""

    inner_type: Any = RedisTable

    def __init__(self, store: Any, space: str, limit: Limit, on_store_error: str | None, size: str | int) -> None:
        self.store: RedisStore = store
        self.quotas: PrefetchedQuotas = store.prefetched(space, limit, size)
        self.inner = self.inner_type(store, space, self.quotas.limit, on_store_error)
        self.layout: RecordLayout = self.inner.layout
        self.nanos = store.clock.nanos

    def check_now(self, key: Key, cost: int = 1) -> Decision | None:
        """Take ``cost`` out of a prefetched quota, or answer as RedisTable does; None: the server must be asked."""
        name = encode(key)
        cost = to_cost(cost)
        quota = self.quotas.by_key.get(name)
        decision = None if quota is None else self.quotas.serve(quota, cost, self.nanos())
        return self.inner.check_now(key, cost) if decision is None else decision

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits: out of a prefetched quota, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        quotas, nanos = self.quotas, self.nanos()
        quota = quotas.by_key.get(name) or quotas.quota(name, nanos)
        if quota is None:
            return self.inner.check(key, cost)
        decision = quotas.serve(quota, cost, nanos)
        if decision is not None:
            return decision
        request = quotas.request(quota, self.layout, name, cost, nanos)
        if request is None:
            decision = self.inner.check(key, cost)
            if decision.allowed:
                quotas.used_alone(quota, cost, nanos)
            return decision
        try:
            return self.store.ask(request)
        except StoreUnavailable as error:
            request.missed(error)
            return self.inner.fall_back(name, cost, error.why, error.charged)
        finally:
            request.finish()

    def close(self) -> None:
        """Give back what is left of every quota."""
        self.store.give_back(self.quotas, self.layout)


class AsyncPrefetchTable(PrefetchTable):
    """RedisTable with prefetched quotas, for event loops."""

    inner_type = AsyncRedisTable
    store: AsyncRedisStore  # type: ignore[assignment]

    async def check(self, key: Key, cost: int = 1) -> Decision:  # type: ignore[override]
        """Take ``cost`` for ``key`` if it fits: out of a prefetched quota, or of a new one."""
        name = key if key.__class__ is str and 0 < len(key) <= LONGEST else encode(key)
        if cost.__class__ is not int or not 0 < cost <= UNLIMITED:
            cost = to_cost(cost)
        quotas, nanos = self.quotas, self.nanos()
        quota = quotas.by_key.get(name) or quotas.quota(name, nanos)
        if quota is None:
            return await self.inner.check(key, cost)
        decision = quotas.serve(quota, cost, nanos)
        if decision is not None:
            return decision
        request = quotas.request(quota, self.layout, name, cost, nanos)
        if request is None:
            decision = await self.inner.check(key, cost)
            if decision.allowed:
                quotas.used_alone(quota, cost, nanos)
            return decision
        try:
            return await asyncio.shield(self.store.send(request))  # if this caller leaves, the answer is still noted
        except StoreUnavailable as error:
            request.missed(error)
            return self.inner.fall_back(name, cost, error.why, error.charged)
        except BaseException:  # cancelled: the exception of asyncio, or that of trio
            request.abandon()
            raise

    def send(self, key: Key, cost: int = 1) -> None:
        """Only ``check`` knows what was prefetched."""

    async def close(self) -> None:  # type: ignore[override]
        """Give back what is left of every quota."""
        await self.store.give_back(self.quotas, self.layout)


# What a process prefetched is its own: a copy in a forked child would be served twice.
in_this_process: WeakSet[PrefetchedQuotas] = WeakSet()


def after_fork() -> None:
    for quotas in list(in_this_process):
        quotas.by_key.clear()
        quotas.in_flight.clear()


os.register_at_fork(after_in_child=after_fork)

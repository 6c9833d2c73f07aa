"""Prepared plans on Redis: the words of the script are packed once, and a check only looks up the names of its keys.

A plan is one request, which is batched with all others.  Some plans take the general path: on a cluster, where a plan
may need several servers; with the same key twice; and with unlimited rows, about which the server is not asked.
"""

from __future__ import annotations

from asyncio import Future
from struct import Struct

from ratekeeper.algorithms.gcra import FRACTION
from ratekeeper.check import Check, to_cost
from ratekeeper.decision import Decision, new_decision
from ratekeeper.errors import StoreUnavailable
from ratekeeper.keys import LONGEST, encode
from ratekeeper.native import core
from ratekeeper.stores.fallback import FallbackPlan
from ratekeeper.stores.redis.layout import MOST_NAMES
from ratekeeper.stores.redis.plans import cached_refusal
from ratekeeper.stores.redis.request import TAKEN_SIZE, PlanWords, without_server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.keys import Key
    from ratekeeper.stores.protocol import Answer, Row
    from ratekeeper.stores.redis.aio_store import AsyncRedisStore
    from ratekeeper.stores.redis.request import Future as AnyFuture
    from ratekeeper.stores.redis.store import RedisStore

    EncodedKeys = tuple[str | bytes, ...]


class PreparedRequest:
    """A request of a prepared plan."""

    __slots__ = ("encoded", "future", "keys", "keys_count", "plan", "words", "words_count")
    future: AnyFuture
    operation = "check"

    def __init__(self, plan: RedisPlan, encoded: EncodedKeys, keys: bytes) -> None:
        self.plan = plan
        self.encoded = encoded
        self.keys = keys
        words = plan.words
        self.keys_count, self.words, self.words_count = words.keys_count, words.words, words.words_count

    def read(self, reply: bytes, sent: int) -> Answer:
        plan = self.plan
        if reply[0] >= 128 or len(reply) != plan.taken_size:
            return self.read_any(reply, sent)
        if plan.bucket_rows:
            return True, plan.read_buckets(reply, plan.bucket_rows, self.encoded, sent, MOST_NAMES)
        # Taken, and every record has its fixed size: by far the most common reply.
        now, decisions = int.from_bytes(reply[plan.instant], "big"), []
        numbers, at = plan.unpack(reply) if plan.is_buckets else (), 1
        for key, (layout, cost, start, end, refusals) in zip(self.encoded, plan.records, strict=True):
            if numbers:
                state = numbers[at] << FRACTION | numbers[at + 1]
                at += 3
            else:
                state = layout.read_record(reply[start:end])
            limit = layout.limit
            layout.recent[key] = state
            layout.seen = now, sent
            if len(layout.recent) >= MOST_NAMES:
                layout.age()
            if key in refusals:
                layout.refusals.admitted(key, limit, cost, state, now, sent)
            decisions.append(new_decision(Decision, (True, limit, state, now, cost)))
        return True, tuple(decisions)

    def read_any(self, reply: bytes, sent: int) -> Answer:
        """``read`` for every other shape, and for refusals."""
        checks = [(layout, key, cost) for (layout, cost, _), key in zip(self.plan.rows, self.encoded, strict=True)]
        answers, now = self.plan.words.answers(reply, checks, sent)
        taken = all(fits for fits, _ in answers)
        decisions = [
            new_decision(Decision, (fits, layout.limit, state, now, cost if taken or not fits else 0))
            for (layout, _, cost), (fits, state) in zip(checks, answers, strict=True)
        ]
        return taken, tuple(decisions)

    def fail(self, error: BaseException) -> None:
        self.future.set_exception(error)


class AsyncPreparedRequest(PreparedRequest):
    """The same for an event loop: where the store cannot answer, the fallback settles the future."""

    __slots__ = ()
    future: Future[Answer]

    def fail(self, error: BaseException) -> None:
        try:
            if not isinstance(error, StoreUnavailable):
                raise error
            answer = self.plan.fall_back(self.encoded, error.why, error.charged)
        except BaseException as problem:
            self.future.set_exception(problem)
        else:
            self.future.set_result(answer)


class RedisPlan:
    """Several limits, decided all or nothing, that only wait for a key each.  For threads."""

    def __init__(self, store: RedisStore, rows: tuple[Row, ...]) -> None:
        self.store = store
        self.nanos = store.clock.nanos
        self.rows = [
            (store.translator.layout(space, limit), to_cost(cost), on_store_error)
            for space, limit, cost, on_store_error in rows
        ]
        layouts = [layout for layout, _, _ in self.rows]
        self.names = tuple([layout.names for layout in layouts])
        self.refusals = tuple([layout.refusals.by_key for layout in layouts])
        self.states = [(layout.space, layout.limit.layout) for layout in layouts]  # the states that each row reads
        self.may_repeat = len(set(self.states)) < len(self.states)
        self.is_unlimited = not any(layout.subjects for layout in layouts)
        self.is_direct = not store.settings.is_cluster and all(layout.subjects for layout in layouts) and bool(rows)
        if any(layout.calendars for layout in layouts):  # its words change with the time: they are made for each call
            self.is_direct = False
        limited = [(layout, cost) for layout, cost, _ in self.rows if layout.subjects]
        self.words = PlanWords("check", [layout for layout, _ in limited], [cost for _, cost in limited])
        # Where each row is one record of a fixed size: the size of a reply that says "taken", and how to cut it up.
        subjects = self.words.subjects
        is_fixed = self.is_direct and len(subjects) == len(layouts) and all(subject.size for subject in subjects)
        self.taken_size = sum([subject.size for subject in subjects]) if is_fixed else -1
        self.instant = subjects[0].instant if is_fixed else slice(0)
        self.is_buckets = is_fixed and all(layout.record_size == TAKEN_SIZE for layout in layouts)
        self.unpack = Struct(">" + "QQI" * len(layouts)).unpack
        self.records = []
        end = 0
        for layout, cost, _ in self.rows if is_fixed else ():
            start, end = end, end + layout.subjects[0].size
            self.records.append((layout, cost, start, end, layout.refusals.by_key))
        # What the C core reads by itself; empty: the loop in Python does.
        self.bucket_rows: tuple[Any, ...] = ()
        if core is not None and self.is_buckets:
            self.read_buckets = core.read_buckets
            self.bucket_rows = tuple(
                [(layout, core.terms(layout.limit), cost, refusals) for layout, cost, _, _, refusals in self.records]
            )
        self.fallback: FallbackPlan | None = None

    def check_now(self, keys: tuple[Key, ...]) -> Answer | None:
        """Answer a cached refusal, and the fallback while the server is away; None: the server must be asked."""
        encoded = self.encode(keys)
        if self.is_unlimited:
            decisions = without_server("check", self.plan(encoded))
            return True, decisions
        if any(self.refusals):  # most of the time none is cached
            for refusals, key in zip(self.refusals, encoded, strict=True):
                if key in refusals:
                    refusal = self.cached(encoded)
                    if refusal is not None:
                        return refusal
                    break
        why = self.away(encoded)
        return self.fall_back(encoded, why) if why else None

    def check(self, keys: tuple[Any, ...]) -> Answer:
        """Take every cost for its key, or none.  Where the server cannot answer, the fallback does."""
        try:
            names = b"".join([names[key] for names, key in zip(self.names, keys, strict=True)])
        except (KeyError, TypeError, ValueError):  # a key that is not in the cache of names, or not encoded
            keys = self.encode(keys)
            names = b"".join([layout.keys(key) for (layout, _, _), key in zip(self.rows, keys, strict=True)])
        if any(self.refusals):  # most of the time none is cached
            for refusals, key in zip(self.refusals, keys, strict=True):
                if key in refusals:
                    refusal = self.cached(keys)
                    if refusal is not None:
                        return refusal
                    break
        try:
            if not self.is_direct or (self.may_repeat and self.has_repeats(keys)):
                decisions = self.store.run(self.store.translator.flow("check", self.plan(keys)))
                return all(decision.allowed for decision in decisions), decisions
            server = self.store.server
            if server.breaker.is_open and (why := server.away()):
                return self.fall_back(keys, why)
            return self.store.ask(PreparedRequest(self, keys, names))
        except StoreUnavailable as error:
            return self.fall_back(keys, error.why, error.charged)

    def encode(self, keys: tuple[Key, ...]) -> EncodedKeys:
        """The encoded keys; raises InvalidKey for an empty one."""
        if len(keys) != len(self.rows):
            raise TypeError(f"check: expected a tuple of {len(self.rows)} keys, got {keys!r}")
        for key in keys:
            if key.__class__ is not str or not 0 < len(key) <= LONGEST:
                return tuple([encode(each) for each in keys])
        return keys  # type: ignore[return-value]

    def has_repeats(self, keys: EncodedKeys) -> bool:
        return len(set(zip(self.states, keys, strict=True))) < len(keys)

    def plan(self, keys: EncodedKeys) -> Plan:
        return tuple(
            [
                Check(layout.space, key, layout.limit, cost, on_store_error)
                for (layout, cost, on_store_error), key in zip(self.rows, keys, strict=True)
            ]
        )

    def cached(self, keys: EncodedKeys) -> Answer | None:
        """The refusal of the plan if it is cached."""
        checks = [(layout, key, cost) for (layout, cost, _), key in zip(self.rows, keys, strict=True)]
        decisions = cached_refusal(checks, self.nanos())
        return None if decisions is None else (False, decisions)

    def away(self, keys: EncodedKeys) -> str:
        """Why the server cannot be asked at this moment; "" if it may be asked."""
        if self.is_direct:
            return self.store.away()
        reasons = [self.store.away(layout.keys(key)) for (layout, _, _), key in zip(self.rows, keys, strict=True)]
        return next(filter(None, reasons), "")

    def fall_back(self, keys: EncodedKeys, why: str, charged: bool | None = False) -> Answer:
        if self.fallback is None:
            self.fallback = FallbackPlan(self.store.fallback, self.rows)
        return self.fallback.check(keys, why, charged is False)


class AsyncRedisPlan(RedisPlan):
    """Several limits, decided all or nothing, that only wait for a key each.  For event loops."""

    store: AsyncRedisStore  # type: ignore[assignment]

    def __init__(self, store: AsyncRedisStore, rows: tuple[Row, ...]) -> None:
        super().__init__(store, rows)  # type: ignore[arg-type]

    def check(self, keys: tuple[Any, ...]) -> Answer | Awaitable[Answer]:  # type: ignore[override]
        """Take every cost for its key, or none: the answer if it is known here, else a future of it."""
        try:
            names = b"".join([names[key] for names, key in zip(self.names, keys, strict=True)])
        except (KeyError, TypeError, ValueError):
            keys = self.encode(keys)
            names = b"".join([layout.keys(key) for (layout, _, _), key in zip(self.rows, keys, strict=True)])
        if any(self.refusals):  # most of the time none is cached
            for refusals, key in zip(self.refusals, keys, strict=True):
                if key in refusals:
                    refusal = self.cached(keys)
                    if refusal is not None:
                        return refusal
                    break
        if not self.is_direct or (self.may_repeat and self.has_repeats(keys)):
            return self.check_any(keys)
        server = self.store.server()
        if server.breaker.is_open and (why := server.away()):
            return self.fall_back(keys, why)
        return server.ask(AsyncPreparedRequest(self, keys, names))

    async def check_any(self, keys: EncodedKeys) -> Answer:
        """``check`` by the general path."""
        try:
            decisions = await self.store.run(self.store.translator.flow("check", self.plan(keys)))
        except StoreUnavailable as error:
            return self.fall_back(keys, error.why, error.charged)
        return all(decision.allowed for decision in decisions), decisions

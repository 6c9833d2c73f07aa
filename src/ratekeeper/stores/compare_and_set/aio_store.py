"""CompareAndSetStore for event loops: on an asynchronous client, or on a store for threads.

Tasks that ask for the same record wait for one task, which decides for all with one compare-and-set.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import monotonic

from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import run_on_loop
from ratekeeper.stores.compare_and_set.any_store import (
    AnyCompareAndSetStore,
    AnyRecordPlan,
    AnyRecordTable,
    expect_own_names,
    joined,
)
from ratekeeper.stores.compare_and_set.flow import Pause, Read, Write, decide_batch, decide_several
from ratekeeper.stores.compare_and_set.request import READS
from ratekeeper.stores.fork import keep_through_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Awaitable, Coroutine, Generator, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.stores.compare_and_set.flow import Change, Record
    from ratekeeper.stores.compare_and_set.request import RecordRequest
    from ratekeeper.stores.compare_and_set.store import CompareAndSetStore
    from ratekeeper.stores.protocol import Answer

LEAST_TIME = 0.001  # seconds for what must be given back, whatever the deadline says
MOST_REQUESTS = 256  # in one batch
MOST_THREADS = 16  # of a store for threads that serves event loops


class AsyncRecordTable(AnyRecordTable):
    """One limit in one space, for event loops."""

    async def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        plan = self.plan(key, cost)
        try:
            decisions = await self.store.check(plan)
        except StoreUnavailable as error:
            decisions = self.store.fall_back("check", error, plan)
        decision: Decision = decisions[0]
        return decision


class AsyncRecordPlan(AnyRecordPlan):
    """Several limits, decided all or nothing, that only wait for a key each.  For event loops."""

    def check(self, keys: tuple[Key, ...]) -> Awaitable[Answer]:
        """Take every cost for its key, or none."""
        return self.checked(self.plan(keys))

    async def checked(self, plan: Plan) -> Answer:
        try:
            return joined(await self.store.check(plan))
        except StoreUnavailable as error:
            return joined(self.store.fall_back("check", error, plan))


class AsyncLane:
    """The tasks of one loop that ask for the same records, and the task that asks for them."""

    __slots__ = ("queue", "task")

    def __init__(self) -> None:
        self.queue: list[RecordRequest] = []
        self.task: asyncio.Task[None] | None = None


class LoopedStore(AnyCompareAndSetStore):
    """What both stores for event loops have in common: how tasks wait for their answers."""

    is_async = True
    is_exclusive = False
    is_transactional = False
    table_type, plan_type = AsyncRecordTable, AsyncRecordPlan
    lanes: dict[tuple[int, tuple[str, ...]], AsyncLane]
    tasks: set[asyncio.Task[Any]]

    async def carry_out(self, flow: Generator[Any, Any, list[Any]], until: float) -> list[Any]:
        """Run a flow on the backend; raises StoreUnavailable."""
        raise NotImplementedError

    def run(self, request: RecordRequest) -> Awaitable[Any]:
        """Answer a request, once it is awaited; raises StoreUnavailable."""
        return run_on_loop(self.answered(request))

    async def answered(self, request: RecordRequest) -> Any:
        request.until = monotonic() + self.deadline
        records = request.records
        if not records:
            return self.without_backend(request)
        self.expect_present()
        if len(records) == 1 or self.is_exclusive or self.is_transactional or request.operation in READS:
            return await self.ask(request)
        # Not cancelled halfway: what was taken of several records must be settled.
        return await asyncio.shield(self.start(self.answer_several(request)))

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)  # a loop keeps no reference to its tasks
        task.add_done_callback(self.tasks.discard)
        return task

    async def answer_several(self, request: RecordRequest) -> Any:
        flow = decide_several(request, self.limits)
        outcome: Any = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as done:
                return done.value
            step.until = max(request.until, monotonic() + LEAST_TIME)
            if step.operation in ("refund", "end_leases"):  # what was taken is given back, however late it is
                step.until = monotonic() + self.deadline
            try:
                outcome = await self.ask(step)
            except StoreUnavailable as error:
                outcome = error

    async def ask(self, request: RecordRequest) -> Any:
        """Answer a request on records that are decided together, in one batch with other tasks."""
        if not request.records:
            return self.without_backend(request)
        loop = asyncio.get_running_loop()
        place = id(loop), () if self.is_exclusive else request.records
        lane = self.lanes.get(place)
        if lane is None or (lane.task is not None and lane.task.get_loop() is not loop):
            lane = self.lanes[place] = AsyncLane()
        future: Future[Any] = loop.create_future()
        request.future = future
        lane.queue.append(request)
        if lane.task is None:
            lane.task = self.start(self.serve(place, lane))
        try:
            await asyncio.wait([future], timeout=max(LEAST_TIME, request.until - monotonic()))
        finally:
            if not future.done():
                future.cancel()
                if request in lane.queue:
                    lane.queue.remove(request)
        if not future.cancelled():
            return future.result()
        charged = None if request.is_sent else False
        raise StoreUnavailable(self.name, f"gave no answer in {self.deadline * 1000:g} ms", charged)

    async def serve(self, place: tuple[int, tuple[str, ...]], lane: AsyncLane) -> None:
        """Answer the requests of a lane, batch after batch, until there are none."""
        try:
            while lane.queue:
                batch, lane.queue = lane.queue[:MOST_REQUESTS], lane.queue[MOST_REQUESTS:]
                await self.deliver(batch)
        finally:
            lane.task = None
            if self.lanes.get(place) is lane and not lane.queue:
                del self.lanes[place]

    async def deliver(self, batch: list[RecordRequest]) -> None:
        flow = decide_batch(batch, self.limits, self.now, is_exclusive=self.is_exclusive, least_life=self.least_life)
        answers: list[Any]
        try:
            answers = await self.carry_out(flow, max([request.until for request in batch]))
        except Exception as error:
            answers = [error] * len(batch)
        else:
            if self.note_answer():
                self.start(self.settle())
        for request, answer in zip(batch, answers, strict=True):
            if request.future.done():  # the caller has given up
                continue
            if isinstance(answer, Exception):
                request.future.set_exception(answer)
            else:
                request.future.set_result(answer)

    async def settle(self) -> None:
        """Charge what the fallback admitted, as far as the backend can be asked."""
        for request, owed in self.charges():
            request.until = monotonic() + self.deadline
            try:
                self.expect_present()
                await self.ask(request)
            except StoreUnavailable as error:
                if error.charged is False:
                    self.fallback.owe(*owed)

    def for_threads(self) -> Any:
        """What a thread asks to renew leases, and to give them back."""
        raise NotImplementedError

    async def close(self) -> None:
        """Charge what is owed, and close the connections."""
        await run_on_loop(self.close_on_loop())

    async def close_on_loop(self) -> None:
        if self.fallback.owing and not self.away():
            await self.settle()
        if self.renewer is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.renewer.close)
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close what the store has opened."""


class AsyncCompareAndSetStore(LoopedStore):
    """A store on a backend of your own with an asynchronous client: see CompareAndSetStore."""

    async def get(self, name: str) -> Record:
        """The value of a record, None if there is none, and the version that ``compare_and_set`` compares."""
        raise NotImplementedError

    async def compare_and_set(self, name: str, version: Any, value: bytes, seconds: int) -> bool:
        """Write ``value`` if the record still has the ``version`` that ``get`` returned with it; whether it did.

        The backend may forget the record after ``seconds``, not before.
        """
        raise NotImplementedError

    async def get_all(self, names: Sequence[str]) -> tuple[Sequence[Record], int | None]:
        """The records of ``names``, and the server's time in microseconds since 1970; None: the host's clock decides.

        Override it for a backend that reads several records in one round trip, or tells the time with them.
        """
        return [await self.get(name) for name in names], None

    async def compare_and_set_all(self, changes: Sequence[Change]) -> bool:
        """Write all ``changes`` (name, version, value, seconds) if all versions are unchanged, else none of them.

        Override it for a backend with transactions.  Without it, several records are written one after the other.
        """
        raise NotImplementedError

    # The rest is not to be overridden.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        expect_own_names(cls, AsyncCompareAndSetStore, LoopedStore, AnyCompareAndSetStore)

    def __init__(self, name: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(name, clock=clock, **options)
        self.is_transactional = type(self).compare_and_set_all is not AsyncCompareAndSetStore.compare_and_set_all
        self.failures: tuple[type[Exception], ...] = (TimeoutError, *self.errors)
        self.lanes, self.tasks = {}, set()
        self.loop: AbstractEventLoop | None = None  # the one that used the store last
        keep_through_fork(self)

    def in_child(self) -> None:
        """Start anew in a forked child: what the fallback owes is charged by the parent."""
        self.lanes, self.tasks = {}, set()
        self.fallback.forget_owed()

    async def carry_out(self, flow: Generator[Any, Any, list[Any]], until: float) -> list[Any]:
        self.loop = asyncio.get_running_loop()
        outcome: Any = None
        has_written = False
        try:
            while True:
                try:
                    effect = flow.send(outcome)
                except StopIteration as done:
                    answers: list[Any] = done.value
                    return answers
                async with asyncio.timeout(max(LEAST_TIME, until - monotonic())):
                    if effect.__class__ is Read:
                        outcome = await self.get_all(effect.names)
                    elif effect.__class__ is Write:
                        has_written = True
                        outcome = await self.write(effect.changes)
                        has_written = False
                    else:
                        assert effect.__class__ is Pause
                        await asyncio.sleep(effect.seconds)
                        outcome = None
        except self.failures as error:
            raise self.unavailable(error, is_write=has_written) from error

    async def write(self, changes: Sequence[Change]) -> bool:
        if self.is_transactional and len(changes) > 1:
            return await self.compare_and_set_all(changes)
        (change,) = changes
        return await self.compare_and_set(*change)

    def for_threads(self) -> ThroughLoop:
        """What a thread asks: the loop that used the store last.  While that loop is busy, the thread waits."""
        return ThroughLoop(self)


class ThroughLoop:
    """Lets a thread ask a store that lives on an event loop."""

    def __init__(self, store: AsyncCompareAndSetStore) -> None:
        self.store = store

    def asked(self, operation: str, plan: Plan) -> Any:
        loop = self.store.loop
        if loop is None or loop.is_closed() or not loop.is_running():
            raise StoreUnavailable(self.store.name, "cannot be asked, as its event loop has ended")
        future = asyncio.run_coroutine_threadsafe(self.coroutine(operation, plan), loop)
        try:
            return future.result(1.0 + 2 * self.store.deadline)
        except TimeoutError:
            raise StoreUnavailable(self.store.name, "gave no answer, as its event loop is busy", charged=None) from None

    async def coroutine(self, operation: str, plan: Plan) -> Any:
        return await getattr(self.store, operation)(plan)

    def renew(self, plan: Plan) -> Any:
        return self.asked("renew", plan)

    def end_leases(self, plan: Plan) -> Any:
        return self.asked("end_leases", plan)

    def close(self) -> None:
        """The store is closed by its owner."""


class ThreadedStore(LoopedStore):
    """A CompareAndSetStore for event loops: a batch is carried out in a thread, so the loop goes on meanwhile."""

    def __init__(self, store: CompareAndSetStore) -> None:
        self.store = store
        self.errors = store.errors
        # The same limits, fallback and breaker: both are one store.
        for name in (
            "name", "deadline", "clock", "gives_time", "needs_heartbeats", "least_life", "renewer", "limits",
            "fallback", "on_store_error", "local_share", "breaker", "proofs", "settle_at",
            "is_exclusive", "is_transactional",
        ):  # fmt: skip
            setattr(self, name, getattr(store, name))
        self.lock = allocate_lock()  # its own: a fork takes the locks of both
        self.lanes, self.tasks = {}, set()
        self.threads = ThreadPoolExecutor(MOST_THREADS, "ratekeeper-records")
        keep_through_fork(self)

    def in_child(self) -> None:
        """Start anew in a forked child, without the parent's threads."""
        self.lanes, self.tasks = {}, set()
        self.threads = ThreadPoolExecutor(MOST_THREADS, "ratekeeper-records")

    async def carry_out(self, flow: Generator[Any, Any, list[Any]], until: float) -> list[Any]:
        carry_out = partial(self.store.carry_out, flow)
        return await asyncio.get_running_loop().run_in_executor(self.threads, carry_out)

    def now(self) -> int:
        """The microseconds that decide if the backend has no clock."""
        return self.store.now()

    def for_threads(self) -> Any:
        """What a thread asks: the store for threads."""
        return Unclosed(self.store)

    async def disconnect(self) -> None:
        """Close what the store has opened."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self.threads.shutdown)
        self.store.close()


class Unclosed:
    """A store whose owner closes it."""

    def __init__(self, store: CompareAndSetStore) -> None:
        self.renew, self.end_leases = store.renew, store.end_leases

    def close(self) -> None:
        """Do nothing."""

"""CompareAndSetStore: state on any backend with ``get`` and ``compare_and_set``, for threads.

Threads that ask for the same record wait for one of them, which decides for all with one compare-and-set.  So the
threads of a process never compete with each other, and a hot key costs as many writes as there are processes.
"""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from time import monotonic, sleep

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.compare_and_set.any_store import (
    AnyCompareAndSetStore,
    AnyRecordPlan,
    AnyRecordTable,
    expect_own_names,
    joined,
)
from ratekeeper.stores.compare_and_set.flow import Hold, Pause, Read, Write, decide_batch, decide_several
from ratekeeper.stores.compare_and_set.request import READS
from ratekeeper.stores.fork import keep_through_fork
from ratekeeper.stores.redis.combiner import Combiner
from ratekeeper.stores.redis.workers import Workers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.keys import Key
    from ratekeeper.stores.compare_and_set.flow import Change, Record
    from ratekeeper.stores.compare_and_set.request import RecordRequest
    from ratekeeper.stores.protocol import Answer

LEAST_TIME = 0.001  # seconds for what must be given back, whatever the deadline says


class RecordTable(AnyRecordTable):
    """One limit in one space, for threads."""

    def check(self, key: Key, cost: int = 1) -> Decision:
        """Take ``cost`` for ``key`` if it fits.  A refusal takes nothing."""
        plan = self.plan(key, cost)
        try:
            decisions = self.store.check(plan)
        except StoreUnavailable as error:
            decisions = self.store.fall_back("check", error, plan)
        decision: Decision = decisions[0]
        return decision


class RecordPlan(AnyRecordPlan):
    """Several limits, decided all or nothing, that only wait for a key each.  For threads."""

    def check(self, keys: tuple[Key, ...]) -> Answer:
        """Take every cost for its key, or none."""
        plan = self.plan(keys)
        try:
            return joined(self.store.check(plan))
        except StoreUnavailable as error:
            return joined(self.store.fall_back("check", error, plan))


class ThreadLane:
    """The threads that ask for the same records."""

    __slots__ = ("combiner", "users")

    def __init__(self, store: CompareAndSetStore) -> None:
        self.combiner = Combiner(store.deliver, store.speak, store.name)  # type: ignore[arg-type]
        self.users = 0


class CompareAndSetStore(AnyCompareAndSetStore):
    """A store on a backend of your own: subclass it, and write ``get`` and ``compare_and_set``.

    Every algorithm, several limits, reservations and leases work on these two methods.  Set ``errors`` to what the
    client of the backend raises, and give the client ``self.deadline`` as its timeout.  The other methods in the first
    part of this class are optional.
    """

    table_type, plan_type = RecordTable, RecordPlan

    def get(self, name: str) -> Record:
        """The value of a record, None if there is none, and the version that ``compare_and_set`` compares."""
        raise NotImplementedError

    def compare_and_set(self, name: str, version: Any, value: bytes, seconds: int) -> bool:
        """Write ``value`` if the record still has the ``version`` that ``get`` returned with it; whether it did.

        The backend may forget the record after ``seconds``, not before.
        """
        raise NotImplementedError

    def get_all(self, names: Sequence[str]) -> tuple[Sequence[Record], int | None]:
        """The records of ``names``, and the server's time in microseconds since 1970; None: the host's clock decides.

        Override it for a backend that reads several records in one round trip, or tells the time with them.
        """
        return [self.get(name) for name in names], None

    def compare_and_set_all(self, changes: Sequence[Change]) -> bool:
        """Write all ``changes`` (name, version, value, seconds) if all versions are unchanged, else none of them.

        Override it for a backend with transactions.  Without it, several records are written one after the other.
        """
        raise NotImplementedError

    def exclusive(self) -> AbstractContextManager[Any]:
        """Keep other writers away: a context manager, in which ``get_all`` and ``compare_and_set_all`` are called.

        Override it for a backend with locks.  Its end commits, and an exception rolls back.
        """
        return nullcontext()

    def disconnect(self) -> None:
        """Close what the store has opened."""

    def after_fork(self) -> None:
        """Drop connections of the parent process: called in a forked child."""

    # The rest is not to be overridden.

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        expect_own_names(cls, CompareAndSetStore, AnyCompareAndSetStore)

    def __init__(self, name: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(name, clock=clock, **options)
        kind = type(self)
        self.is_exclusive = kind.exclusive is not CompareAndSetStore.exclusive
        self.is_transactional = kind.compare_and_set_all is not CompareAndSetStore.compare_and_set_all
        self.lanes: dict[tuple[str, ...], ThreadLane] = {}
        self.workers = Workers("ratekeeper-records")
        self.is_closed = False
        keep_through_fork(self)

    def in_child(self) -> None:
        """Start anew in a forked child: what the fallback owes is charged by the parent."""
        self.lanes = {}
        self.workers = Workers("ratekeeper-records")
        self.fallback.forget_owed()
        self.after_fork()

    def run(self, request: RecordRequest) -> Any:
        """Answer a request; raises StoreUnavailable."""
        request.until = monotonic() + self.deadline
        records = request.records
        if not records:
            return self.without_backend(request)
        self.expect_present()
        if len(records) == 1 or self.is_exclusive or self.is_transactional or request.operation in READS:
            return self.ask(request)
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
                outcome = self.ask(step)
            except StoreUnavailable as error:
                outcome = error

    def ask(self, request: RecordRequest) -> Any:
        """Answer a request on records that are decided together, in one batch with other threads."""
        if not request.records:
            return self.without_backend(request)
        names = () if self.is_exclusive else request.records
        with self.lock:
            lane = self.lanes.get(names)
            if lane is None:
                lane = self.lanes[names] = ThreadLane(self)
            lane.users += 1
        try:
            answer = lane.combiner.ask(request, max(LEAST_TIME, request.until - monotonic()))  # type: ignore[arg-type]
        finally:
            with self.lock:
                lane.users -= 1
                if not lane.users and self.lanes.get(names) is lane:
                    del self.lanes[names]
        if self.note_answer():
            self.workers.start(self.settle)
        return answer

    def speak(self, request: RecordRequest, since: float) -> Any:
        """Answer one request."""
        (answer,) = self.carry_out(self.flow([request]))
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer

    def deliver(self, batch: list[RecordRequest], since: float) -> None:
        """Answer a batch, whose callers wait."""
        try:
            answers = self.carry_out(self.flow(batch))
        except Exception as error:
            for request in batch:
                request.future.set_exception(error)
            return
        for request, answer in zip(batch, answers, strict=True):
            if isinstance(answer, StoreUnavailable):
                request.future.set_exception(answer)
            else:
                request.future.set_result(answer)

    def flow(self, batch: Sequence[RecordRequest]) -> Generator[Any, Any, list[Any]]:
        return decide_batch(batch, self.limits, self.now, is_exclusive=self.is_exclusive, least_life=self.least_life)

    def carry_out(self, flow: Generator[Any, Any, list[Any]]) -> list[Any]:
        """Run a flow on the backend; raises StoreUnavailable."""
        outcome: Any = None
        has_written = False
        try:
            with ExitStack() as held:
                while True:
                    try:
                        effect = flow.send(outcome)
                    except StopIteration as done:
                        answers: list[Any] = done.value
                        break
                    if effect.__class__ is Read:
                        outcome = self.get_all(effect.names)
                    elif effect.__class__ is Write:
                        has_written = True
                        outcome = self.write(effect.changes)
                        has_written = bool(outcome) and self.is_exclusive  # not before the end of the block
                    elif effect.__class__ is Pause:
                        sleep(effect.seconds)
                        outcome = None
                    else:
                        assert effect.__class__ is Hold
                        held.enter_context(self.exclusive())
                        outcome = None
        except self.errors as error:
            raise self.unavailable(error, is_write=has_written) from error
        return answers

    def write(self, changes: Sequence[Change]) -> bool:
        if self.is_transactional and (self.is_exclusive or len(changes) > 1):
            return self.compare_and_set_all(changes)
        (change,) = changes
        return self.compare_and_set(*change)

    def settle(self) -> None:
        """Charge what the fallback admitted, as far as the backend can be asked."""
        for request, owed in self.charges():
            request.until = monotonic() + self.deadline
            try:
                self.expect_present()
                self.ask(request)
            except StoreUnavailable as error:
                if error.charged is False:
                    self.fallback.owe(*owed)

    def close(self) -> None:
        """Charge what is owed, and close the connections."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.fallback.owing and not self.away():
            self.settle()
        if self.renewer is not None:
            self.renewer.close()
        self.disconnect()

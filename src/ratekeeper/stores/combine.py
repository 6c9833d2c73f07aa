"""Many threads, few round trips: whoever comes first speaks for all who come while it waits.

A thread that finds nobody speaking becomes the leader and sends at once: alone, it waits for nobody.  Those who come
meanwhile line up; when the leader is done, the first of them leads all of them.
"""

from __future__ import annotations

from _thread import allocate_lock
from time import monotonic

from ratekeeper.errors import StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.stores.codec import AnyRequest

TURNS = 8
LEADS_FOR = 0.1  # of the deadline: a leader that has its answer may have to wait a deadline more for the others'
MOST = 128  # requests of one command: well below a millisecond of the server's time


class Waiter:
    """Where one thread waits for its answer, or for its turn to lead."""

    __slots__ = ("error", "finished", "gate", "leads", "result")

    def __init__(self) -> None:
        self.finished = False
        self.leads = False
        self.gate: LockType | None = None  # only those who wait for another need one
        self.result: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.finished

    def set_result(self, result: Any) -> None:
        self.result = result
        self.finish()

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.finish()

    def finish(self) -> None:
        self.finished = True
        if self.gate is not None:
            self.gate.release()

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


class Combiner:
    """Gathers requests for one server; ``deliver`` settles a list of them and never raises."""

    def __init__(self, deliver: Callable[[list[AnyRequest], float], None], name: str) -> None:
        self.deliver = deliver
        self.name = name
        self.lock = allocate_lock()
        self.pending: list[AnyRequest] = []
        self.is_led = False

    def ask(self, request: AnyRequest, deadline: float) -> Any:
        """The answer to ``request``, or StoreUnavailable after ``deadline`` seconds."""
        since = monotonic()
        waiter = Waiter()
        request.future = waiter
        with self.lock:
            self.pending.append(request)
            leads = not self.is_led
            if leads:
                self.is_led = True
            else:
                waiter.gate = gate = allocate_lock()
                gate.acquire()
        if not leads:
            if not gate.acquire(True, deadline) and not self.give_up(request, waiter):
                raise StoreUnavailable(self.name, f"gave no answer in {deadline * 1000:g} ms", charged=None)
            if waiter.finished:
                return waiter.answer()
            waiter.gate = None
        self.lead(since, since + deadline * LEADS_FOR)
        return waiter.answer()

    def give_up(self, request: AnyRequest, waiter: Waiter) -> bool:
        """Leave the line after the deadline; True if just then the answer came, or the turn to lead."""
        with self.lock:
            if waiter.finished or waiter.leads:
                return True
            if request in self.pending:
                self.pending.remove(request)
                raise StoreUnavailable(self.name, "other threads waited for it until the deadline")
            waiter.finished = True  # on its way: its answer goes nowhere
            waiter.gate = None
            return False

    def lead(self, since: float, until: float) -> None:
        """Speak for all who wait, a few times over: each change of leader costs two switches of threads."""
        heir: Any = None
        for turn in range(TURNS):
            with self.lock:
                batch = self.pending[:MOST]
                del self.pending[:MOST]
            try:
                self.deliver(batch, since if turn == 0 else monotonic())
            except BaseException:
                self.abandon(batch)
                raise
            with self.lock:
                if not self.pending:
                    self.is_led = False
                    return
            if monotonic() >= until:
                break
        with self.lock:
            if self.pending:
                heir = self.pending[0].future
                heir.leads = True
            else:
                self.is_led = False
                return
        heir.gate.release()

    def abandon(self, batch: list[AnyRequest]) -> None:
        """A leader that was interrupted must leave nobody waiting."""
        for request in batch:
            if not request.future.done():
                request.future.set_exception(StoreUnavailable(self.name, "was interrupted", charged=None))
        with self.lock:
            left, self.pending = self.pending, []
            self.is_led = False
        for request in left:
            request.future.set_exception(StoreUnavailable(self.name, "was interrupted"))

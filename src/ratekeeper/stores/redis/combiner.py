"""Few round trips for many threads, without the C core: one thread sends the requests of all that wait.

A thread that finds no leader sends its own request at once: it waits for nobody, and needs no lock to wait with.
Requests that come meanwhile are queued.  When the leader has its answer, it sends all of them as a batch, a few times.

A signal handler may raise between any two steps of the main thread.  So what must be undone then is read from the
shared state itself, not from a variable that is set a step later, and each cleanup may run twice.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from time import monotonic

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.resp import MOST_REQUESTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _thread import LockType
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.stores.redis.request import AnyRequest

TURNS = 8
LEADS_FOR = 0.1  # of the deadline: a leader that has its answer may wait up to another deadline for the last batch
LEADER = 0


class WaitingThread:
    """Where one thread waits for its answer, or for the lead."""

    __slots__ = ("called", "error", "finished", "gate", "has_left", "is_gone", "next", "result")

    def __init__(self, gate: LockType | None = None) -> None:
        self.finished = False
        self.called = False  # woken by the thread that was answered before it
        self.has_left = False
        self.is_gone = False  # has left, and the cleanup is done
        self.gate = gate  # a lock to wait at; None: a leader, which does not wait
        self.next: WaitingThread | None = None  # the waiter that this one wakes
        self.result: Any = None
        self.error: BaseException | None = None

    def done(self) -> bool:
        return self.finished

    def set_result(self, result: Any) -> None:
        self.result = result
        self.finished = True

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.finished = True

    def answer(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result


def open_gate(waiter: Any) -> None:
    try:  # noqa: SIM105 - a context manager would cost as much as all the rest
        waiter.gate.release()
    except RuntimeError:  # the gate is open already
        pass


def pass_on(waiter: WaitingThread) -> None:
    """Wake the next waiter that was answered and still waits.

    A departing waiter sets has_left, then reads called; here called is set first, then has_left is read.  So one of the
    two always sees the other.  If both do, a waiter is woken twice, which does no harm.
    """
    following = waiter.next
    while following is not None:
        following.called = True
        open_gate(following)
        if not following.has_left:
            return
        following = following.next


class Combiner:
    """Batches the requests of threads for one server.

    ``deliver`` settles a list of requests, made at that instant, and raises nothing but interruptions; ``speak``
    answers a single request with less work, or raises StoreUnavailable.
    """

    def __init__(
        self,
        deliver: Callable[[list[AnyRequest], float], None],
        speak: Callable[[AnyRequest, float], Any],
        name: str,
    ) -> None:
        self.deliver = deliver
        self.speak = speak
        self.name = name
        self.seat: dict[int, AnyRequest] = {}  # the leader's request: setdefault takes or reads it in one step
        self.line: deque[AnyRequest] = deque()
        self.leaving = allocate_lock()  # guards leaving the queue, and handing on the lead

    def ask(self, request: AnyRequest, deadline: float) -> Any:
        """The answer to ``request``, or StoreUnavailable after ``deadline`` seconds."""
        since = monotonic()
        try:
            if self.seat.setdefault(LEADER, request) is not request:
                answer = self.wait(request, since, deadline)
            else:
                answer = self.speak(request, since)
                if self.line:
                    self.lead([], monotonic(), since + deadline * LEADS_FOR)
        finally:
            try:
                self.rise(request)
            finally:
                self.rise(request)
        return answer

    def wait(self, request: AnyRequest, since: float, deadline: float) -> Any:
        """Wait in the queue for an answer, or for the lead."""
        gate = allocate_lock()
        gate.acquire()
        waiter = request.future = WaitingThread(gate)
        try:
            self.line.append(request)
            self.seat.setdefault(LEADER, request)  # the last leader may have left before it could see this request
            while not waiter.finished:
                with self.leaving:  # so that a leader that hands on the lead has finished
                    leads = self.seat.get(LEADER) is request
                if leads and self.leave(request):
                    waiter.gate = None
                    self.lead([request], since, since + deadline * LEADS_FOR)
                    break
                if leads:  # this request was sent, or even answered, by the last leader
                    self.rise(request)
                elif not gate.acquire(True, max(0.0, since + deadline - monotonic())):
                    self.give_up(request, waiter, deadline)
        finally:
            try:
                self.depart(request, waiter)
            finally:
                if not waiter.is_gone:
                    self.depart(request, waiter)
        return waiter.answer()

    def give_up(self, request: AnyRequest, waiter: WaitingThread, deadline: float) -> None:
        """Raise at the deadline, unless the answer or the lead came at the same instant."""
        with self.leaving:
            if waiter.finished or self.seat.get(LEADER) is request:
                return
            if self.leave(request):
                raise StoreUnavailable(self.name, "other threads waited for it until the deadline")
        raise StoreUnavailable(self.name, f"gave no answer in {deadline * 1000:g} ms", charged=None)

    def depart(self, request: AnyRequest, waiter: WaitingThread) -> None:
        """Leave the queue, with an answer or without one, and wake the next waiter."""
        waiter.has_left = True
        if not waiter.finished:
            with self.leaving:
                self.leave(request)
            waiter.finished = True  # if the request was sent, its answer is dropped
        if waiter.called:
            pass_on(waiter)
        waiter.is_gone = True

    def leave(self, request: AnyRequest) -> bool:
        try:
            self.line.remove(request)
        except ValueError:
            return False
        return True

    def lead(self, batch: list[AnyRequest], since: float, until: float) -> None:
        """Send the requests of all that wait, a few times: each change of leader costs two switches of threads."""
        for _ in range(TURNS):
            if not batch and (not self.line or since >= until):
                return
            try:
                self.gather(batch)
                self.deliver(batch, since)
                self.wake(batch)
            except BaseException:
                self.abandon(batch)
                raise
            batch, since = [], monotonic()

    def gather(self, batch: list[AnyRequest]) -> None:
        with self.leaving:
            while self.line and len(batch) < MOST_REQUESTS:
                batch.append(self.line[0])
                self.line.popleft()

    def wake(self, batch: list[AnyRequest]) -> None:
        """Wake the first waiter that was answered; each wakes the next.

        If all were woken at once they would only wait for the interpreter, and each would sleep again.
        """
        first = last = WaitingThread()
        for request in batch:
            waiter: Any = request.future
            if waiter.gate is not None:
                last.next = last = waiter
        pass_on(first)

    def rise(self, request: AnyRequest) -> None:
        """If ``request`` leads, give the lead to the first in the queue; if it is empty, the next one takes it."""
        while self.seat.get(LEADER) is request:
            with self.leaving:
                if self.line:
                    heir = self.line[0]
                    open_gate(heir.future)
                    self.seat[LEADER] = heir
                    return
            del self.seat[LEADER]
            if self.line:  # a request that was queued before saw a leader, and waits
                self.seat.setdefault(LEADER, request)

    def abandon(self, batch: list[AnyRequest]) -> None:
        """Fail the batch of a leader that was interrupted.  Queued requests get another leader: see ``rise``."""
        for request in batch:
            with self.leaving:
                self.leave(request)  # it may still be queued
            if not request.future.done():
                request.future.set_exception(StoreUnavailable(self.name, "was interrupted", charged=None))
        self.wake(batch)

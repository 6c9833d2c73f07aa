"""Many threads, few round trips: whoever comes first speaks for all who come while it waits.

A thread that finds nobody speaking speaks at once: alone, it waits for nobody, and nothing is made for it to wait with.
Those who come meanwhile line up; when the speaker is done, it speaks for all of them, a few times over.

The handler of a signal may raise between any two steps of the main thread.  Whatever must be undone then is told by the
shared state itself, not by a variable that is set a step later, and each way out may be gone twice.
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
LEADS_FOR = 0.1  # of the deadline: a leader that has its answer may have to wait a deadline more for the others'
LEADER = 0


class Waiter:
    """Where one thread waits for its answer, or for its turn to lead."""

    __slots__ = ("called", "error", "finished", "gate", "has_left", "is_gone", "next", "result")

    def __init__(self, gate: LockType | None = None) -> None:
        self.finished = False
        self.called = False  # by whoever was answered before it
        self.has_left = False
        self.is_gone = False  # and has left nothing undone
        self.gate = gate  # only those who wait for another have one
        self.next: Waiter | None = None  # to be woken once this one's owner is awake
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
    except RuntimeError:  # it is open
        pass


def pass_on(waiter: Waiter) -> None:
    """Wake the next who was answered and still waits.

    Who leaves says so, then looks whether it was called; here it is called first, and looked at then: one of the two
    sees the other, and if both do, somebody is called twice, which does no harm.
    """
    following = waiter.next
    while following is not None:
        following.called = True
        open_gate(following)
        if not following.has_left:
            return
        following = following.next


class Combiner:
    """Gathers requests for one server.

    ``deliver`` settles a list of requests, asked at that instant, and raises nothing but interruptions; ``speak``
    answers a single one with less work, or raises StoreUnavailable.
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
        self.seat: dict[int, AnyRequest] = {}  # whose thread leads: to take it is one step, and to see who has it
        self.line: deque[AnyRequest] = deque()
        self.leaving = allocate_lock()  # around leaving the line, and around taking over from a leader

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
        """Stand in line for an answer, or for the turn to lead."""
        gate = allocate_lock()
        gate.acquire()
        waiter = request.future = Waiter(gate)
        try:
            self.line.append(request)
            self.seat.setdefault(LEADER, request)  # who led may have left before it could see us
            while not waiter.finished:
                with self.leaving:  # whoever hands on the lead has done so
                    leads = self.seat.get(LEADER) is request
                if leads and self.leave(request):
                    waiter.gate = None
                    self.lead([request], since, since + deadline * LEADS_FOR)
                    break
                if leads:  # it was sent, or even answered, before
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

    def give_up(self, request: AnyRequest, waiter: Waiter, deadline: float) -> None:
        """Raise after the deadline, unless just then the answer came, or the turn to lead."""
        with self.leaving:
            if waiter.finished or self.seat.get(LEADER) is request:
                return
            if self.leave(request):
                raise StoreUnavailable(self.name, "other threads waited for it until the deadline")
        raise StoreUnavailable(self.name, f"gave no answer in {deadline * 1000:g} ms", charged=None)

    def depart(self, request: AnyRequest, waiter: Waiter) -> None:
        """Leave nobody waiting, whether with an answer or without one."""
        waiter.has_left = True
        if not waiter.finished:
            with self.leaving:
                self.leave(request)
            waiter.finished = True  # if it is on its way, its answer goes nowhere
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
        """Speak for all who wait, a few times over: each change of leader costs two switches of threads."""
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
        """Open the gate of the first who was answered; each opens the next one's.

        All at once would only queue up for the interpreter, and each would be put to sleep again.
        """
        first = last = Waiter()
        for request in batch:
            waiter: Any = request.future
            if waiter.gate is not None:
                last.next = last = waiter
        pass_on(first)

    def rise(self, request: AnyRequest) -> None:
        """If ``request`` leads, let the first in line lead; with nobody there, whoever comes next."""
        while self.seat.get(LEADER) is request:
            with self.leaving:
                if self.line:
                    heir = self.line[0]
                    open_gate(heir.future)
                    self.seat[LEADER] = heir
                    return
            del self.seat[LEADER]
            if self.line:  # whoever lined up before that saw somebody leading, and waits
                self.seat.setdefault(LEADER, request)

    def abandon(self, batch: list[AnyRequest]) -> None:
        """A leader that was interrupted must leave nobody waiting: those in line have an heir."""
        for request in batch:
            with self.leaving:
                self.leave(request)  # it may stand there still
            if not request.future.done():
                request.future.set_exception(StoreUnavailable(self.name, "was interrupted", charged=None))
        self.wake(batch)

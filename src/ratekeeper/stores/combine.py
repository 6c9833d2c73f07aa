"""Many threads, few round trips: whoever comes first speaks for all who come while it waits.

A thread that finds nobody speaking speaks at once: alone, it waits for nobody, and nothing is made for it to wait with.
Those who come meanwhile line up; when the speaker is done, it speaks for all of them, a few times over.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from contextlib import suppress
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
MOST = 64  # requests of one command: well below a millisecond of the server's time


class Waiter:
    """Where one thread waits for its answer, or for its turn to lead."""

    __slots__ = ("error", "finished", "gate", "has_left", "leads", "next", "result")

    def __init__(self, gate: LockType | None = None) -> None:
        self.finished = False
        self.has_left = False
        self.leads = False
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


def pass_on(waiter: Waiter) -> None:
    """Wake the next who was answered and still waits.

    Who left says so and then tries its own gate; here it is opened first, and looked at then: one of the two finds out.
    """
    following: Any = waiter.next
    while following is not None:
        following.gate.release()
        if not following.has_left or not following.gate.acquire(False):
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
        self.speaking = allocate_lock()  # held by the thread that leads; handed on with the lead
        self.line: deque[AnyRequest] = deque()
        self.leaving = allocate_lock()  # around leaving the line other than to be sent

    def ask(self, request: AnyRequest, deadline: float) -> Any:
        """The answer to ``request``, or StoreUnavailable after ``deadline`` seconds."""
        since = monotonic()
        if not self.speaking.acquire(False):
            return self.wait(request, since, deadline)
        try:
            return self.speak(request, since)
        finally:
            if self.line:
                self.lead([], monotonic(), since + deadline * LEADS_FOR)
            else:
                self.fall_silent()

    def wait(self, request: AnyRequest, since: float, deadline: float) -> Any:
        """Stand in line for an answer, or for the turn to lead."""
        gate = allocate_lock()
        gate.acquire()
        waiter = request.future = Waiter(gate)
        leads = False
        try:
            self.line.append(request)
            leads = self.speaking.acquire(False)  # who spoke left, before it could see us or just after it answered
            if leads and not self.leave(request):
                leads = False
                self.fall_silent()
            opened = leads or gate.acquire(True, deadline)
        except BaseException:  # raised by the handler of a signal: others must not wait for this one
            with suppress(StoreUnavailable):
                leads = (self.give_up(request, waiter) and not waiter.finished) or leads
            if leads:
                self.fall_silent()
            raise
        if not leads:
            if opened:
                pass_on(waiter)
            elif not self.give_up(request, waiter):
                raise StoreUnavailable(self.name, f"gave no answer in {deadline * 1000:g} ms", charged=None)
        if not waiter.finished:
            waiter.gate = None
            self.lead([request], since, since + deadline * LEADS_FOR)
        return waiter.answer()

    def give_up(self, request: AnyRequest, waiter: Waiter) -> bool:
        """Leave the line after the deadline; True if just then the answer came, or the turn to lead."""
        with self.leaving:
            if waiter.leads:
                return True
            if not waiter.finished:
                if self.leave(request):
                    raise StoreUnavailable(self.name, "other threads waited for it until the deadline")
                waiter.finished = waiter.has_left = True  # on its way: its answer goes nowhere
                return False
        waiter.has_left = True
        if waiter.gate.acquire(False):  # type: ignore[union-attr]  # just now: the next is ours to wake
            pass_on(waiter)
        return True

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
                break
            self.gather(batch)
            try:
                self.deliver(batch, since)
            except BaseException:
                self.abandon(batch)
                raise
            self.wake(batch)
            batch, since = [], monotonic()
        self.fall_silent()

    def gather(self, batch: list[AnyRequest]) -> None:
        with suppress(IndexError):
            while len(batch) < MOST:
                batch.append(self.line.popleft())

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

    def fall_silent(self) -> None:
        """Let the first in line lead; with nobody there, whoever comes next."""
        while True:
            with self.leaving:
                if self.line:
                    heir: Any = self.line.popleft().future
                    heir.leads = True
                    heir.gate.release()
                    return
            self.speaking.release()
            # Whoever lined up before the release saw somebody speaking, and waits.
            if not self.line or not self.speaking.acquire(False):
                return

    def abandon(self, batch: list[AnyRequest]) -> None:
        """A leader that was interrupted must leave nobody waiting: those in line have an heir."""
        for request in batch:
            if not request.future.done():
                request.future.set_exception(StoreUnavailable(self.name, "was interrupted", charged=None))
        self.wake(batch)
        self.fall_silent()

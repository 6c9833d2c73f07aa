"""Calls that wait for their turn, in order, and when each turn will come.  No I/O."""

from __future__ import annotations

from _collections import deque  # type: ignore[import-not-found]  # collections is slow to import
from _thread import allocate_lock

from ratekeeper.stores.fork import keep_through_fork

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratekeeper.check import Plan
    from ratekeeper.limit import Limit, LimitSet, State


class Waiter:
    """A call that waits in the queue of ``key``.

    ``predicted`` is the instant of its turn and the states that its call will leave; None while not worked out.
    """

    __slots__ = ("costs", "key", "predicted", "priority", "wake")

    def __init__(self, key: Hashable, costs: tuple[int, ...], priority: int) -> None:
        self.key = key
        self.costs = costs
        self.priority = priority
        self.predicted: tuple[int, tuple[State, ...]] | None = None
        self.wake: Callable[[], object] = wake_nothing

    def take_wake(self) -> Callable[[], object]:
        """Remove and return the wake-up callback; call it without holding the lock."""
        wake, self.wake = self.wake, wake_nothing
        return wake


def wake_nothing() -> None:
    """Default wake-up callback, of a waiter that is not asleep: does nothing."""


class WaitQueue:
    """The waiting calls of one limiter: a queue for each key, by priority, then first come first served.

    The key of a queue is the key of a check, or a tuple of all keys of a plan.
    """

    def __init__(self) -> None:
        self.waiting: dict[Hashable, deque[Waiter]] = {}
        self.lock = allocate_lock()
        self.closed = ""
        keep_through_fork(self)

    def in_child(self) -> None:
        """Empty the queues of a forked child: it has none of the threads that wait in them."""
        self.waiting = {}

    def close(self, why: str) -> None:
        """Wake every waiter; each then raises Closed with the text ``why``."""
        with self.lock:
            self.closed = why
            wakes = [waiter.take_wake() for queue in self.waiting.values() for waiter in queue]
        for wake in wakes:
            wake()

    def join(self, key: Hashable, costs: tuple[int, ...], priority: int = 0) -> Waiter:
        """Wait behind all of this priority or a higher one; the first is being served, and stays first."""
        waiter = Waiter(key, costs, priority)
        with self.lock:
            queue = self.waiting.setdefault(key, deque())
            if len(queue) < 2 or queue[-1].priority >= priority:
                queue.append(waiter)
                return waiter
            place = 1
            while queue[place].priority >= priority:
                place += 1
            queue.insert(place, waiter)
            for index in range(place + 1, len(queue)):
                queue[index].predicted = None  # overtaken
        return waiter

    def ahead(self, waiter: Waiter) -> list[Waiter]:
        """The waiters before ``waiter``, back to the last one with a prediction, which covers all before it."""
        with self.lock:
            ahead: list[Waiter] = []
            is_before = False
            for other in reversed(self.waiting[waiter.key]):  # from the end, where newcomers are
                if is_before:
                    ahead.append(other)
                    if other.predicted is not None:
                        break
                is_before = is_before or other is waiter
            ahead.reverse()
            return ahead

    def when_first(self, waiter: Waiter, wake: Callable[[], object]) -> None:
        """Call ``wake`` as soon as ``waiter`` is first in its queue, which may be now."""
        with self.lock:
            if self.waiting[waiter.key][0] is not waiter:
                waiter.wake = wake
                return
        wake()

    def is_first(self, waiter: Waiter) -> bool:
        with self.lock:
            return self.waiting[waiter.key][0] is waiter

    def leave(self, waiter: Waiter, served: bool) -> None:
        """Remove ``waiter`` from its queue, wherever it is, and wake the waiter that becomes first."""
        with self.lock:
            queue = self.waiting.get(waiter.key, ())
            if waiter not in queue:  # await_turn removed it: its event loop was closed
                return
            if not served:  # all behind come earlier than predicted
                for other in queue:
                    other.predicted = None
            was_first = queue[0] is waiter
            queue.remove(waiter)
            if not queue:
                del self.waiting[waiter.key]
                return
            wake = queue[0].take_wake() if was_first else wake_nothing
        wake()


def predict_wait(
    plan: Plan, states: tuple[State, ...], instants: tuple[int, ...], ahead: list[Waiter], waiter: Waiter
) -> int:
    """Microseconds until the turn of ``waiter``, if all ahead of it are served as soon as their limits allow.

    Every cost of ``plan`` must be possible: see ``acquire.is_possible``.
    """
    limits = [check.limit for check in plan]
    now = instant = instants[0]
    apart = [each - now for each in instants]  # some limits follow the time of day, some the monotonic clock
    for other in [*ahead, waiter]:
        if other.predicted is not None:
            instant, states = max(now, other.predicted[0]), other.predicted[1]
            continue
        while True:
            answers = [
                limit.rule.decide(state, instant + ahead_by, limit, cost)
                for limit, state, cost, ahead_by in zip(limits, states, other.costs, apart, strict=True)
            ]
            if all(allowed for _, allowed in answers):
                states = tuple([state for state, _ in answers])
                break
            # Refused: a state that the rule had to repair stays repaired.
            states = tuple([old if fits else new for old, (new, fits) in zip(states, answers, strict=True)])
            waits = retry_waits(limits, states, [instant + ahead_by for ahead_by in apart], other.costs)
            if None in waits:  # a cost that can never pass: this waiter leaves as soon as it is first
                break
            instant += max([wait for wait in waits if wait is not None])
    waiter.predicted = instant, states
    delay: int = max(
        [
            limit.rule.delay(state, instant + ahead_by, limit, cost)
            for limit, state, cost, ahead_by in zip(limits, states, waiter.costs, apart, strict=True)
        ]
    )
    return instant - now + delay


def retry_waits(
    limits: list[Limit | LimitSet], states: tuple[State, ...], instants: list[int], costs: tuple[int, ...]
) -> list[int | None]:
    """How long each limit alone would let its cost wait, in microseconds; None: for ever."""
    return [
        limit.rule.retry_after(state, now, limit, cost)
        for limit, state, now, cost in zip(limits, states, instants, costs, strict=True)
    ]

"""Who waits for which limit, in order, and when the turn of each will come.  No I/O."""

from __future__ import annotations

from _collections import deque  # type: ignore[import-not-found]  # collections is slow to import
from _thread import allocate_lock

from ratekeeper.stores.fork import keep_through_fork

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ratekeeper.check import Plan
    from ratekeeper.limit import Limit, LimitSet, State

    Line = Hashable  # what stands in one line: the key of a check, or all keys of a plan


class Ticket:
    """A place in a line.  ``foreseen`` is the instant its turn will come, and the states it will leave."""

    __slots__ = ("costs", "foreseen", "line", "priority", "wake")

    def __init__(self, line: Line, costs: tuple[int, ...], priority: int) -> None:
        self.line = line
        self.costs = costs
        self.priority = priority
        self.foreseen: tuple[int, tuple[State, ...]] | None = None
        self.wake: Callable[[], object] = nobody

    def woken(self) -> Callable[[], object]:
        """What wakes it, once: to be called without holding the lock."""
        wake, self.wake = self.wake, nobody
        return wake


def nobody() -> None:
    """Wakes whoever does not sleep."""


class WaitQueue:
    """Who waits for what: by priority, then in the order they came."""

    def __init__(self) -> None:
        self.lines: dict[Line, deque[Ticket]] = {}
        self.lock = allocate_lock()
        self.closed = ""
        keep_through_fork(self)

    def in_child(self) -> None:
        """A forked child has none of the threads that stand here: nobody would ever leave."""
        self.lines = {}

    def close(self, why: str) -> None:
        """Let nobody wait any longer: whoever does raises Closed."""
        with self.lock:
            self.closed = why
            waking = [ticket.woken() for line in self.lines.values() for ticket in line]
        for wake in waking:
            wake()

    def join(self, line: Line, costs: tuple[int, ...], priority: int = 0) -> Ticket:
        """Stand behind all of this priority or a higher one; whoever is first is being served, and stays first."""
        ticket = Ticket(line, costs, priority)
        with self.lock:
            waiting = self.lines.setdefault(line, deque())
            if len(waiting) < 2 or waiting[-1].priority >= priority:
                waiting.append(ticket)
                return ticket
            place = 1
            while waiting[place].priority >= priority:
                place += 1
            waiting.insert(place, ticket)
            for overtaken in range(place + 1, len(waiting)):
                waiting[overtaken].foreseen = None
        return ticket

    def ahead(self, ticket: Ticket) -> list[Ticket]:
        """Those before ``ticket``, from the last whose turn is foreseen: it stands for all before it."""
        with self.lock:
            found: list[Ticket] = []
            is_before = False
            for other in reversed(self.lines[ticket.line]):  # newcomers stand at the end: so look from there
                if is_before:
                    found.append(other)
                    if other.foreseen is not None:
                        break
                is_before = is_before or other is ticket
            found.reverse()
            return found

    def when_first(self, ticket: Ticket, wake: Callable[[], object]) -> None:
        """Call ``wake`` once ``ticket`` is first; at once if it is."""
        with self.lock:
            if self.lines[ticket.line][0] is not ticket:
                ticket.wake = wake
                return
        wake()

    def is_first(self, ticket: Ticket) -> bool:
        with self.lock:
            return self.lines[ticket.line][0] is ticket

    def leave(self, ticket: Ticket, served: bool) -> None:
        """Give the place up, wherever in the line it is; whoever is first then is woken."""
        with self.lock:
            line = self.lines.get(ticket.line, ())
            if ticket not in line:  # given up for it already
                return
            if not served:  # everybody behind comes earlier than was foreseen
                for other in line:
                    other.foreseen = None
            was_first = line[0] is ticket
            line.remove(ticket)
            if not line:
                del self.lines[ticket.line]
                return
            wake = line[0].woken() if was_first else nobody
        wake()


def foresee(plan: Plan, states: tuple[State, ...], now: int, ahead: list[Ticket], ticket: Ticket) -> int:
    """Microseconds until the turn of ``ticket``, whose cost is possible, everybody ahead served as soon as can be."""
    limits = [check.limit for check in plan]
    instant = now
    for other in [*ahead, ticket]:
        if other.foreseen is not None:
            instant, states = max(now, other.foreseen[0]), other.foreseen[1]
            continue
        while True:
            answers = [
                limit.rule.decide(state, instant, limit, cost)
                for limit, state, cost in zip(limits, states, other.costs, strict=True)
            ]
            if all(allowed for _, allowed in answers):
                states = tuple([state for state, _ in answers])
                break
            # Refused: a state that had to be mended stays mended.
            states = tuple([old if fits else new for old, (new, fits) in zip(states, answers, strict=True)])
            times = waits(limits, states, instant, other.costs)
            if None in times:  # leaves the line as soon as it is looked at
                break
            instant += max([time for time in times if time is not None])
    ticket.foreseen = instant, states
    turn: int = max(
        [
            limit.rule.delay(state, instant, limit, cost)
            for limit, state, cost in zip(limits, states, ticket.costs, strict=True)
        ]
    )
    return instant - now + turn


def waits(
    limits: list[Limit | LimitSet], states: tuple[State, ...], now: int, costs: tuple[int, ...]
) -> list[int | None]:
    """How long each limit alone would let its cost wait."""
    return [
        limit.rule.retry_after(state, now, limit, cost)
        for limit, state, cost in zip(limits, states, costs, strict=True)
    ]

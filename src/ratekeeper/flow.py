"""What a limiter does beyond one check, written once for sync and async.

A flow is a generator: it yields effects (``Ask`` the store, ``Sleep``, wait for one's ``Turn``), is sent the
outcomes, and returns the answer.  ``drive.py`` runs flows.  No I/O here: tests send replies in and read
effects out.
"""

from __future__ import annotations

from _collections import deque  # type: ignore[import-not-found]  # collections is slow to import
from _thread import allocate_lock

from ratekeeper.errors import Closed, StoreUnavailable
from ratekeeper.model import MOST_LEASES, Check, Decision, Verdict, doubled, empty_state
from ratekeeper.stores.inprocess import keep_through_fork
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Hashable
    from typing import Any, TypeVar

    from ratekeeper.clock import Clock
    from ratekeeper.model import Limit, Plan, Several, State

    T = TypeVar("T")
    Line = Hashable  # what stands in one line: the key of a check, or all keys of a plan
    Effect = "Ask | Sleep | Turn"
    Flow = Generator[Any, Any, T]

# Microseconds between two looks for a lease that was given back.
SHORTEST_LOOK = 1_000
LONGEST_LOOK = 32_000


class Ask:
    """Call ``operation`` of the store with these arguments; its result is sent back."""

    __slots__ = ("arguments", "operation")

    def __init__(self, operation: str, *arguments: object) -> None:
        self.operation = operation
        self.arguments = arguments


class Sleep:
    """Wait that many microseconds."""

    __slots__ = ("micros",)

    def __init__(self, micros: int) -> None:
        self.micros = micros


class Turn:
    """Wait until ``ticket`` is first in its line, at most ``micros`` (None: for ever); whether it is, is sent back."""

    __slots__ = ("micros", "ticket")

    def __init__(self, ticket: Ticket, micros: int | None) -> None:
        self.ticket = ticket
        self.micros = micros


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


class Lines:
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


def ask(operation: str, plan: Plan, *arguments: object) -> Flow[Any]:
    """Ask the store; where it cannot answer, what ``on_store_error`` says answers in its place."""
    try:
        return (yield Ask(operation, plan, *arguments))
    except StoreUnavailable as error:
        if operation == "refund":  # of what the store took: nothing to give back here
            operation, arguments = "peek", ()
        return (yield Ask("stand_in", operation, error, plan, *arguments))


def give_back(plan: Plan, decision: Decision) -> Flow[Any]:
    """Give back what ``decision`` took, to whoever took it."""
    if decision.reason:
        return (yield Ask("stand_in", "refund", None, plan, decision.at))
    return (yield from ask("refund", plan, decision.at))


def waits(
    limits: list[Limit | Several], states: tuple[State, ...], now: int, costs: tuple[int, ...]
) -> list[int | None]:
    """How long each limit alone would let its cost wait."""
    return [
        limit.rule.retry_after(state, now, limit, cost)
        for limit, state, cost in zip(limits, states, costs, strict=True)
    ]


def check(plan: Plan) -> Flow[Verdict]:
    """Decide a plan, all or nothing."""
    decisions = yield from ask("check", plan)
    return verdict_of(plan, decisions, next((each.reason for each in decisions if each.reason), ""))


def verdict_of(plan: Plan, decisions: tuple[Decision, ...], reason: str = "") -> Verdict:
    """One decision a check becomes one a limit, each under the name of its space."""
    parts = [(check.space, part) for check, decision in zip(plan, decisions, strict=True) for part in decision.parts()]
    allowed = all(decision.allowed for decision in decisions)
    return Verdict(allowed, tuple([part for _, part in parts]), tuple([name for name, _ in parts]), reason)


def acquire(lines: Lines, check: Check, patience: int | None, clock: Clock, priority: int = 0) -> Flow[Decision]:
    """Wait for one's turn on one check: see ``acquire_plan``."""
    (decision,) = yield from acquire_plan(lines, check.key, (check,), patience, clock, priority)
    return decision


def acquire_plan(
    lines: Lines, line: Line, plan: Plan, patience: int | None, clock: Clock, priority: int = 0
) -> Flow[tuple[Decision, ...]]:
    """Wait for one's turn, first come first served in each line; refused at once if it would come too late.

    Whoever gives up or is cancelled leaves the line and, if it had been admitted to a queue, gives that back.
    """
    began = clock.nanos() // 1000
    ticket = lines.join(line, tuple([check.cost for check in plan]), priority)
    served = False
    try:
        look = SHORTEST_LOOK
        wait: int | None = 0 if is_possible(plan) else None
        if wait is not None and patience is not None and not any(check.limit.is_leased for check in plan):
            try:
                now, states = yield Ask("states", plan)
            except StoreUnavailable:
                pass  # nothing can be foreseen: wait in line, and see
            else:
                wait = foresee(plan, states, now, lines.ahead(ticket), ticket)
        if wait is None or (patience is not None and wait > patience):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, wait)
        if not lines.is_first(ticket) and not (yield Turn(ticket, patience)):
            decisions = yield from ask("peek", plan)
            return postponed(decisions, 0)
        while True:
            if lines.closed:
                raise Closed(lines.closed)
            decisions = yield from ask("check", plan)
            left = None if patience is None else patience - (clock.nanos() // 1000 - began)
            allowed = all(decisions)
            wait = longest([one.delay if allowed else one.retry_after for one in decisions])
            if wait and not allowed:
                wait, look = sooner(plan, decisions, wait, look, left)
            is_denied = any(one.reason.startswith("deny") for one in decisions)
            if wait is None or (left is not None and wait > left) or is_denied:
                if allowed:  # admitted to a queue, but its turn comes too late
                    yield from give_back(plan, decisions[0])
                    return postponed(decisions, wait)
                return decisions
            if allowed:
                served = True
                break
            yield Sleep(wait)
    finally:
        lines.leave(ticket, served)
    if wait:
        try:
            yield Sleep(wait)
        except BaseException:
            yield from give_back(plan, decisions[0])
            raise
        return tuple([Decision(True, one.limit, one.remaining, 0.0, one.reset_after, 0.0) for one in decisions])
    return decisions


def is_possible(plan: Plan) -> bool:
    """Whether every cost could pass a limit that nobody has used."""
    for check in plan:
        limit, cost = check.limit, check.cost
        if cost > 1 and limit.rule.retry_after(empty_state(limit), 0, limit, cost) is None:
            return False
    return True


def sooner(plan: Plan, decisions: tuple[Decision, ...], wait: int, look: int, left: int | None) -> tuple[int, int]:
    """When to ask again, where leases are what is missing: soon, at the deadline at last, then ever less often."""
    rates = [one.retry_after for check, one in zip(plan, decisions, strict=True) if not check.limit.is_leased]
    if len(rates) == len(plan):
        return wait, look
    soon = max(longest(rates) or 0, min(wait, look))
    if left is not None and 0 < left < soon:
        soon = left
    return soon, min(2 * look, LONGEST_LOOK)


def postponed(decisions: tuple[Decision, ...], wait: int | None) -> tuple[Decision, ...]:
    """Refusals, because the turn comes in ``wait`` microseconds and nobody waits that long."""
    found = []
    for one in decisions:
        told = None if wait is None else max(wait / SECOND, one.retry_after or 0.0)
        found.append(Decision(False, one.limit, one.remaining, told, one.reset_after, 0.0))
    return tuple(found)


def longest(seconds: list[float | None]) -> int | None:
    """The longest wait in microseconds; None if one of them never ends."""
    found = 0
    for one in seconds:
        if one is None:
            return None
        found = max(found, round(one * SECOND))
    return found


def settle(check: Check, reserved: Decision, actual: int) -> Flow[Decision]:
    """Charge or give back the difference between what was reserved and what was used."""
    if actual < check.cost:
        (decision,) = yield from give_back((of_cost(check, check.cost - actual),), reserved)
    elif actual > check.cost:
        (decision,) = yield from ask("take", (of_cost(check, actual - check.cost),))
    else:
        (decision,) = yield from ask("peek", (check,))
    return decision


def renew(check: Check, held: Decision, has_room: bool = True) -> Flow[Decision]:
    """Let the lease of ``held`` begin anew; refused if it had ended and others have its place.

    The new lease is taken beside the old one, under a limit that has room for both, and then the old one is ended: in
    between others meet one lease too many, never one too few.  Where there is no room the old one is ended first.
    """
    limit: Any = check.limit
    if not has_room or 2 * limit.count > MOST_LEASES:
        yield from give_back((check,), held)
        (fresh,) = yield from ask("check", (check,))
        return fresh
    wide = Check(check.space, check.key, doubled(limit), check.cost, check.on_store_error)
    (fresh,) = yield from ask("check", (wide,))
    # A store that went away or came back meanwhile has other instants: there is nothing to be renewed in it.
    in_force = bool(fresh.reason) == bool(held.reason) and fresh.at - held.at < limit.micros
    if not fresh:
        return held if in_force else fresh
    if in_force:
        yield from give_back((check,), held)
        return fresh
    yield from give_back((wide,), fresh)
    (fresh,) = yield from ask("check", (check,))
    return fresh


def of_cost(check: Check, cost: int) -> Check:
    return Check(check.space, check.key, check.limit, cost, check.on_store_error)

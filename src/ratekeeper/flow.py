"""What a limiter does beyond one check, written once for sync and async.

A flow is a generator: it yields effects (``Ask`` the store, ``Sleep``, wait for one's ``Turn``), is sent the
outcomes, and returns the answer.  ``drive.py`` runs flows.  No I/O here: tests send replies in and read
effects out.
"""

from __future__ import annotations

from _collections import deque  # type: ignore[import-not-found]  # collections is slow to import
from _thread import allocate_lock

from ratekeeper.errors import StoreUnavailable
from ratekeeper.model import Check, Decision, Verdict
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from ratekeeper.clock import Clock
    from ratekeeper.model import Plan, State

    T = TypeVar("T")
    Effect = "Ask | Sleep | Turn"
    Flow = Generator[Any, Any, T]


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
    """A place in a line.  ``foreseen`` is the instant its turn will come, and the state it will leave."""

    __slots__ = ("cost", "foreseen", "key", "wake")

    def __init__(self, key: str | bytes, cost: int) -> None:
        self.key = key
        self.cost = cost
        self.foreseen: tuple[int, State] | None = None
        self.wake: Callable[[], object] | None = None


class Lines:
    """Who waits for which key, in the order they came."""

    def __init__(self) -> None:
        self.lines: dict[str | bytes, deque[Ticket]] = {}
        self.lock = allocate_lock()

    def join(self, key: str | bytes, cost: int) -> Ticket:
        ticket = Ticket(key, cost)
        with self.lock:
            self.lines.setdefault(key, deque()).append(ticket)
        return ticket

    def ahead(self, ticket: Ticket) -> list[Ticket]:
        """Those before ``ticket``, from the last whose turn is foreseen: it stands for all before it."""
        with self.lock:
            found: list[Ticket] = []
            for other in self.lines[ticket.key]:
                if other is ticket:
                    break
                if other.foreseen is not None:
                    found.clear()
                found.append(other)
            return found

    def when_first(self, ticket: Ticket, wake: Callable[[], object]) -> None:
        """Call ``wake`` once ``ticket`` is first; at once if it is."""
        with self.lock:
            if self.lines[ticket.key][0] is not ticket:
                ticket.wake = wake
                return
        wake()

    def is_first(self, ticket: Ticket) -> bool:
        with self.lock:
            return self.lines[ticket.key][0] is ticket

    def leave(self, ticket: Ticket, served: bool) -> None:
        """Give the place up, wherever in the line it is; whoever is first then is woken."""
        with self.lock:
            line = self.lines[ticket.key]
            if not served:  # everybody behind comes earlier than was foreseen
                for other in line:
                    other.foreseen = None
            was_first = line[0] is ticket
            line.remove(ticket)
            if not line:
                del self.lines[ticket.key]
                return
            wake = line[0].wake if was_first else None
        if wake is not None:
            wake()


def foresee(check: Check, state: State, now: int, ahead: list[Ticket], ticket: Ticket) -> int | None:
    """Microseconds until the turn of ``ticket``, everybody ahead served as soon as can be; None: never."""
    limit, rule = check.limit, check.limit.rule
    if rule.retry_after(state, now, limit, ticket.cost) is None:
        return None
    instant = now
    for other in [*ahead, ticket]:
        if other.foreseen is not None:
            instant, state = max(now, other.foreseen[0]), other.foreseen[1]
            continue
        while True:
            state, allowed = rule.decide(state, instant, limit, other.cost)
            if allowed:
                break
            wait = rule.retry_after(state, instant, limit, other.cost)
            if wait is None:  # leaves the line as soon as it is looked at
                break
            instant += wait
    ticket.foreseen = instant, state
    turn: int = rule.delay(state, instant, limit, ticket.cost)
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


def check(plan: Plan) -> Flow[Verdict]:
    """Decide a plan, all or nothing."""
    decisions = yield from ask("check", plan)
    return verdict_of(plan, decisions, next((each.reason for each in decisions if each.reason), ""))


def verdict_of(plan: Plan, decisions: tuple[Decision, ...], reason: str = "") -> Verdict:
    """One decision a check becomes one a limit, each under the name of its space."""
    parts = [(check.space, part) for check, decision in zip(plan, decisions, strict=True) for part in decision.parts()]
    allowed = all(decision.allowed for decision in decisions)
    return Verdict(allowed, tuple([part for _, part in parts]), tuple([name for name, _ in parts]), reason)


def acquire(lines: Lines, check: Check, patience: int | None, clock: Clock) -> Flow[Decision]:
    """Wait for one's turn, first come first served for each key; refused at once if it would come too late.

    Whoever gives up or is cancelled leaves the line and, if it had been admitted to a queue, gives that back.
    """
    plan = (check,)
    began = clock.nanos() // 1000
    ticket = lines.join(check.key, check.cost)
    served = False
    try:
        wait: int | None = 0
        try:
            now, (state,) = yield Ask("states", plan)
        except StoreUnavailable:
            pass  # nothing can be foreseen: wait in line, and see
        else:
            wait = foresee(check, state, now, lines.ahead(ticket), ticket)
        if wait is None or (patience is not None and wait > patience):
            (decision,) = yield from ask("peek", plan)
            return postponed(decision, wait)
        if not lines.is_first(ticket) and not (yield Turn(ticket, patience)):
            (decision,) = yield from ask("peek", plan)
            return postponed(decision, 0)
        while True:
            (decision,) = yield from ask("check", plan)
            left = None if patience is None else patience - (clock.nanos() // 1000 - began)
            wait = micros(decision.delay if decision.allowed else decision.retry_after)
            if wait is None or (left is not None and wait > left) or decision.reason.startswith("deny"):
                if decision.allowed:  # admitted to a queue, but its turn comes too late
                    yield from give_back(plan, decision)
                    return postponed(decision, wait)
                return decision
            if decision.allowed:
                served = True
                break
            yield Sleep(wait)
    finally:
        lines.leave(ticket, served)
    if wait:
        try:
            yield Sleep(wait)
        except BaseException:
            yield from give_back(plan, decision)
            raise
        return Decision(True, decision.limit, decision.remaining, 0.0, decision.reset_after, 0.0)
    return decision


def postponed(decision: Decision, wait: int | None) -> Decision:
    """A refusal, because the turn comes in ``wait`` microseconds and nobody waits that long."""
    told = None if wait is None else max(wait / SECOND, decision.retry_after or 0.0)
    return Decision(False, decision.limit, decision.remaining, told, decision.reset_after, 0.0)


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * SECOND)


def settle(check: Check, reserved: Decision, actual: int) -> Flow[Decision]:
    """Charge or give back the difference between what was reserved and what was used."""
    if actual < check.cost:
        (decision,) = yield from give_back((of_cost(check, check.cost - actual),), reserved)
    elif actual > check.cost:
        (decision,) = yield from ask("take", (of_cost(check, actual - check.cost),))
    else:
        (decision,) = yield from ask("peek", (check,))
    return decision


def of_cost(check: Check, cost: int) -> Check:
    return Check(check.space, check.key, check.limit, cost, check.on_store_error)

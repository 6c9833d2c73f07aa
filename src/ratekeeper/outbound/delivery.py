"""One request on its way out: hold, turn, send, listen, and send again where that is right.

Written once for every client library and both colours: ``deliver`` is a flow (see ``ratekeeper.flow``).  Besides the
store's operations it asks for ``send`` and ``discard``, which a ``Sender`` answers with the client library's own.

Law: a request is sent only after its turn; never while a hold is known; at most ``max_retries`` times again; and its
waits together never exceed ``max_wait``: a wait that would is not begun.
"""

from __future__ import annotations

from random import Random
from time import time

from ratekeeper.decision import Decision, binding
from ratekeeper.errors import InvalidInput, LimitExceeded, StoreUnavailable, shown
from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.flow.effects import Ask, Sleep
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask
from ratekeeper.outbound.cooldown import LOOK, Cooldowns
from ratekeeper.outbound.response_limits import read
from ratekeeper.outbound.retry import Retry, is_refusal, may_resend
from ratekeeper.outbound.server_quota import ServerQuotas
from ratekeeper.units import SECOND, to_micros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.flow.effects import Flow
    from ratekeeper.outbound.response_limits import ServerLimits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds


class TooLate(LimitExceeded):
    """A request was not sent, because its turn comes later than anybody waits for it.

    ``retry_after`` says in how many seconds it would; None if it never can.
    """

    def __init__(self, decision: Decision, name: str) -> None:
        super().__init__(decision, name)
        if decision.retry_after is not None:
            wait = f"{decision.retry_after:.6g} s"
            self.args = (f"{name}: expected a turn in time, but it comes in {wait}. Raise max_wait, or send less.",)


class Reply:
    """A response as plain facts, with the client library's own behind it.

    ``told`` is what it says, where that is not in ``headers``.
    """

    __slots__ = ("headers", "is_cached", "response", "status", "told")

    def __init__(
        self,
        response: Any,
        status: int,
        headers: Iterable[tuple[str, str]] = (),
        is_cached: bool = False,
        told: ServerLimits | None = None,
    ) -> None:
        self.response = response
        self.status = status
        self.headers = headers
        self.is_cached = is_cached
        self.told = told


class Lost(Exception):
    """No response came.  ``was_sent`` is False where the server certainly got nothing."""

    def __init__(self, error: Exception, was_sent: bool) -> None:
        self.error = error
        self.was_sent = was_sent


class PacedRequest:
    """What there is to send, as far as pacing and retrying care."""

    __slots__ = ("is_idempotent", "is_replayable", "key", "max_wait", "name", "plan", "priority")

    def __init__(
        self,
        key: str | bytes,
        name: str,
        plan: Plan,
        *,
        is_idempotent: bool,
        is_replayable: bool,
        max_wait: int | None,
        priority: int = 0,
    ) -> None:
        self.key = key
        self.name = name
        self.plan = plan
        self.is_idempotent = is_idempotent
        self.is_replayable = is_replayable
        self.max_wait = max_wait
        self.priority = priority


class Pacer:
    """What all requests of one transport share: who waits, who told us to, and what was learned."""

    def __init__(
        self, store: Store, space: str, retry: Retry, chance: Random | None = None, wall: Callable[[], float] = time
    ) -> None:
        self.store = store
        self.clock = store.clock
        self.retry = retry
        self.lines = WaitQueue()
        self.holds = Cooldowns(f"{space} holds", self.clock, LOOK if store.blocking else 0)
        self.learned = ServerQuotas()
        self.chance = Random() if chance is None else chance
        self.wall = wall

    def now(self) -> int:
        return self.clock.nanos() // 1000


class Sender:
    """The store, and beside it what a client library does with one request."""

    def __init__(self, store: Store, send: Callable[[], Any], discard: Callable[[Any], Any]) -> None:
        self.store = store
        self.send = send
        self.discard = discard

    def __getattr__(self, operation: str) -> Any:
        return getattr(self.store, operation)


def deliver(traffic: Pacer, errand: PacedRequest) -> Flow[Any]:
    """Send when it is its turn, and again where that is right; returns the last response."""
    until = None if errand.max_wait is None else traffic.now() + errand.max_wait
    tries = 0
    while True:
        yield from turn(traffic, errand, until)
        try:
            reply: Reply = yield Ask("send")
        except Lost as lost:
            wait = traffic.retry.pause(tries, None, traffic.chance)
            again = errand.is_replayable and (errand.is_idempotent or not lost.was_sent)
            if not again or tries >= traffic.retry.max_retries or not in_time(traffic, wait, until):
                raise lost.error from None
            yield Sleep(wait)
            tries += 1
            continue
        told = read(() if reply.is_cached else reply.headers, traffic.wall()) if reply.told is None else reply.told
        wanted = yield from listen(traffic, errand, reply.status, told)
        if not errand.is_replayable or not may_resend(reply.status, told, errand.is_idempotent):
            return reply.response
        wait = traffic.retry.pause(tries, wanted, traffic.chance)
        if tries >= traffic.retry.max_retries or not in_time(traffic, wait, until):
            return reply.response
        yield Ask("discard", reply.response)
        yield Sleep(wait)
        tries += 1


def listen(traffic: Pacer, errand: PacedRequest, status: int, told: ServerLimits) -> Flow[int | None]:
    """Let everybody know what a server said; returns the microseconds that it wants to be left alone."""
    if status < 300 or status >= 400:  # fields on a redirect would delay following it
        traffic.learned.observe(errand.key, told.quotas, traffic.now())
    wanted = told.micros if is_refusal(status, told) else None
    if wanted:
        yield from reached(traffic.holds.tell(errand.key, wanted), None)
    return wanted


def turn(traffic: Pacer, errand: PacedRequest, until: int | None) -> Flow[None]:
    """Wait until nobody told us to wait, it is one's turn, and what was learned allows it; or raise TooLate."""
    while True:
        held = yield from reached(traffic.holds.find(errand.key), traffic.holds.known(errand.key))
        if held:
            wait = traffic.retry.pause(0, held, traffic.chance)
            if not in_time(traffic, wait, until):
                raise TooLate(Decision(False, 0, 0, held / SECOND), errand.name)
            yield Sleep(wait)
            continue
        wait = traffic.learned.wait(errand.key, traffic.now())
        if wait:
            if not in_time(traffic, wait, until):
                raise TooLate(Decision(False, 0, 0, wait / SECOND), errand.name)
            yield Sleep(wait)
        if errand.plan:
            patience = None if until is None else max(0, until - traffic.now())
            decisions = yield from paced(traffic, errand, patience)
            if not all(decisions):
                raise TooLate(binding(decisions), errand.name)
        if not traffic.holds.known(errand.key):
            return
        if errand.plan:  # told while it waited: the place goes to somebody else
            yield from ask("refund", errand.plan)


def paced(traffic: Pacer, errand: PacedRequest, patience: int | None) -> Flow[tuple[Decision, ...]]:
    line = tuple([(check.space, check.key) for check in errand.plan])
    return (yield from acquire_plan(traffic.lines, line, errand.plan, patience, traffic.clock, errand.priority))


def reached(flow: Flow[Any], otherwise: Any) -> Flow[Any]:
    """The outcome of a flow, or ``otherwise`` if the store could not be reached."""
    try:
        return (yield from flow)
    except StoreUnavailable:
        return otherwise


def in_time(traffic: Pacer, wait: int, until: int | None) -> bool:
    return until is None or traffic.now() + wait <= until


def patience_of(max_wait: Seconds | None) -> int | None:
    """``max_wait`` in microseconds; None waits for ever."""
    if max_wait is None:
        return None
    micros = to_micros(max_wait, "max_wait")
    if micros < 0:
        raise InvalidInput(f"max_wait: expected seconds of at least 0, got {shown(max_wait)}.")
    return micros

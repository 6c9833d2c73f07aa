"""One request on its way out: wait for its turn, send it, read the server's limits, and retry where that is safe.

Written once for every client library, for threads and for event loops: ``deliver`` is a flow (see ``ratekeeper.flow``).
Besides operations of the store it asks for ``send`` and ``discard``, which a ``Sender`` carries out with the client
library.

Law: a request is sent only after its turn; never during a cooldown that this process knows of; it is retried at most
``max_retries`` times; and its waits together never exceed ``max_wait``: a wait that would is not begun.
"""

from __future__ import annotations

from functools import partial
from random import Random
from time import time

from ratekeeper.decision import Decision, binding
from ratekeeper.errors import InvalidInput, LimitExceeded, StoreUnavailable, shown
from ratekeeper.flow.acquire import acquire_plan
from ratekeeper.flow.effects import Ask, Sleep
from ratekeeper.flow.queue import WaitQueue
from ratekeeper.flow.settle import ask, give_back
from ratekeeper.outbound.cooldown import cooldowns_of
from ratekeeper.outbound.learned import Shares
from ratekeeper.outbound.limits import PacedPlan
from ratekeeper.outbound.outage import counted, may_lose_counts
from ratekeeper.outbound.response_limits import NOTHING, read
from ratekeeper.outbound.retry import IDEMPOTENT, Retry, is_refusal, may_resend
from ratekeeper.outbound.server_quota import ServerQuotas
from ratekeeper.units import SECOND, to_micros

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ratekeeper.flow.effects import Flow
    from ratekeeper.outbound.response_limits import ServerLimits
    from ratekeeper.stores.protocol import Store
    from ratekeeper.units import Seconds


class TooLate(LimitExceeded):
    """A request was not sent, because its turn comes later than its caller is willing to wait.

    ``retry_after`` is the number of seconds until its turn; None if that never comes.
    """

    def __init__(self, decision: Decision, name: str, advice: str = "Raise max_wait, or send less.") -> None:
        super().__init__(decision, name)
        if decision.retry_after is not None:
            wait = f"{decision.retry_after:.6g} s"
            self.args = (f"{name}: expected a turn in time, but it comes in {wait}. {advice}",)


class Reply:
    """A response of any client library: ``response`` is the library's own object.

    ``limits`` are the server's limits where they are not in ``headers``, as with gRPC.
    """

    __slots__ = ("headers", "is_cached", "limits", "response", "status")

    def __init__(
        self,
        response: Any,
        status: int,
        headers: Iterable[tuple[str, str]] = (),
        is_cached: bool = False,
        limits: ServerLimits | None = None,
    ) -> None:
        self.response = response
        self.status = status
        self.headers = headers
        self.is_cached = is_cached
        self.limits = limits


class Lost(Exception):
    """No response came.  ``was_sent`` is False only if the server certainly received nothing."""

    def __init__(self, error: Exception, was_sent: bool) -> None:
        self.error = error
        self.was_sent = was_sent


class PacedRequest:
    """A request, reduced to the facts that pacing and retrying need."""

    __slots__ = (
        "has_budget",
        "has_idempotency_key",
        "is_replayable",
        "key",
        "max_wait",
        "method",
        "name",
        "path",
        "plan",
        "priority",
        "sent_at",
        "sent_under",
    )

    def __init__(
        self,
        key: str | bytes,
        name: str,
        plan: PacedPlan,
        method: str,
        has_idempotency_key: bool,
        is_replayable: bool,
        max_wait: int | None,
        priority: int,
        path: str = "",
    ) -> None:
        self.key = key
        self.name = name
        self.plan = plan
        self.method = method
        self.has_idempotency_key = has_idempotency_key
        self.is_replayable = is_replayable
        self.max_wait = max_wait
        self.priority = priority
        self.path = path
        self.has_budget = False  # with a budget, its Sender has the effects reserve and release
        self.sent_at = 0  # microseconds on the clock of the store, of the last attempt
        self.sent_under: dict[str | bytes, int] = {}  # the shares of its limits that the last attempt was sent under

    @property
    def is_idempotent(self) -> bool:
        """Whether carrying it out twice is the same as once: by its method, or by its Idempotency-Key."""
        return self.has_idempotency_key or self.method.upper() in IDEMPOTENT


class Pacer:
    """The state that all requests of one client share: the wait queue, cooldowns, and quotas of servers."""

    def __init__(self, store: Store, space: str, retry: Retry) -> None:
        self.store = store
        self.clock = store.clock
        self.may_lose_counts = may_lose_counts(store)
        self.retry = retry
        self.queue = WaitQueue()
        self.cooldowns = cooldowns_of(store, space)
        self.shares = Shares(self.cooldowns, space)
        self.quotas = ServerQuotas()
        self.random = Random()
        self.wall = time  # Unix time: servers send dates

    def pause(self, retries: int, server_wait: int | None) -> int:
        return self.retry.pause(retries, server_wait, self.random)

    def is_in_time(self, wait: int, deadline: int | None) -> bool:
        return deadline is None or self.clock.nanos() // 1000 + wait <= deadline

    def patience(self, deadline: int | None) -> int | None:
        """Microseconds until the deadline; None: for ever."""
        return None if deadline is None else max(0, deadline - self.clock.nanos() // 1000)

    def deadline(self, request: PacedRequest) -> int | None:
        """The instant until which the request may wait; None: for ever."""
        return None if request.max_wait is None else self.clock.nanos() // 1000 + request.max_wait


class Sender:
    """Carries out the effects of one request: ``send`` and ``discard`` here, everything else in the store."""

    def __init__(self, store: Store, send: Callable[[], Any], discard: Callable[[Any], Any]) -> None:
        self.store = store
        self.send = send
        self.discard = discard

    def __getattr__(self, operation: str) -> Any:
        return getattr(self.store, operation)


SEND = Ask("send")


def deliver(pacer: Pacer, request: PacedRequest) -> Flow[Any]:
    """Send a request when its turn comes, and retry it where that is safe; returns the last response."""
    deadline = pacer.deadline(request)
    retries = 0
    while True:
        yield from take_turn(pacer, request, deadline)
        try:
            reply: Reply = yield SEND
        except Lost as lost:
            wait = pacer.pause(retries, None)
            may_retry = request.is_replayable and (request.is_idempotent or not lost.was_sent)
            if not may_retry or retries >= pacer.retry.max_retries or not pacer.is_in_time(wait, deadline):
                raise lost.error from None
        else:
            limits = reply.limits
            if limits is None:
                limits = NOTHING if reply.is_cached else read(reply.headers, pacer.wall())
            if limits is NOTHING and reply.status < 400:
                return reply.response
            server_wait = yield from learn(pacer, request, reply.status, limits)
            if not request.is_replayable or not may_resend(reply.status, limits, request.is_idempotent):
                return reply.response
            wait = pacer.pause(retries, server_wait)
            if retries >= pacer.retry.max_retries or not pacer.is_in_time(wait, deadline):
                return reply.response
            yield Ask("discard", reply.response)
        yield Sleep(wait)
        retries += 1


def learn(pacer: Pacer, request: PacedRequest, status: int, limits: ServerLimits) -> Flow[int | None]:
    """Apply a response's limits to all requests of its key; returns the microseconds that a refusal asks to wait."""
    refused = is_refusal(status, limits)
    if status < 300 or status >= 400:  # the quotas of a redirect would delay following it
        retry_after = None if limits.retry_after is None else limits.micros
        pacer.quotas.observe(request.key, limits.quotas, pacer.clock.nanos() // 1000, retry_after, refused)
    server_wait = limits.micros if refused else None
    if server_wait:
        yield from unless_unavailable(pacer.cooldowns.start(request.key, server_wait), None)
    if request.plan.checks and (refused or limits.quotas):
        parts, age = request.plan.parts, pacer.clock.nanos() // 1000 - request.sent_at
        adjusting = pacer.shares.adjust(parts, limits, refused, age, request.sent_under, {}, everybody=parts)
        yield from unless_unavailable(adjusting, None)
    return server_wait


def take_turn(pacer: Pacer, request: PacedRequest, deadline: int | None) -> Flow[None]:
    """Wait until there is no cooldown, the server's quota lasts, and the limits admit the request; or raise TooLate."""
    cooldowns, shares, key = pacer.cooldowns, pacer.shares, request.key
    while True:
        cooldown = cooldowns.remaining(key)
        if not cooldown and cooldowns.is_due(key):
            records = [part.record for part in request.plan.parts]
            cooldown, *_ = yield from unless_unavailable(cooldowns.look_up_all([key, *records]), (0,))
        if cooldown:
            yield from sleep_in_time(pacer, request, pacer.pause(0, cooldown), cooldown, deadline)
            continue
        wait = pacer.quotas.wait(key, pacer.clock.nanos() // 1000)
        if wait:
            yield from sleep_in_time(pacer, request, wait, wait, deadline)
        plan = request.plan
        request.sent_under = shares.under(plan.parts) if cooldowns.ends else {}
        if request.sent_under:
            plan = PacedPlan(shares.apply(plan.checks, plan.parts))
        if plan.checks:
            if pacer.may_lose_counts:
                acquiring = partial(acquire, pacer, request, plan, deadline)
                decisions = yield from counted(pacer.store, plan.checks, acquiring)
            else:
                decisions = yield from acquire(pacer, request, plan, deadline)
            if not all(decisions):
                raise TooLate(binding(decisions), request.name)
        if request.has_budget:
            yield Ask("reserve", pacer.patience(deadline))
        request.sent_at = pacer.clock.nanos() // 1000
        is_slower = bool(cooldowns.ends) and shares.are_below(request.sent_under, request.plan.parts)
        if not cooldowns.remaining(key) and not is_slower:
            return
        if plan.checks:  # the server asked to wait, or for less, while this request waited: another may have its place
            yield from ask("refund", plan.checks)
        if request.has_budget:
            yield Ask("release")


def sleep_in_time(pacer: Pacer, request: PacedRequest, wait: int, retry_after: int, deadline: int | None) -> Flow[None]:
    """Sleep, or raise TooLate if that ends after the deadline."""
    if not pacer.is_in_time(wait, deadline):
        raise TooLate(Decision(False, 0, 0, retry_after / SECOND), request.name)
    yield Sleep(wait)


def acquire(pacer: Pacer, request: PacedRequest, plan: PacedPlan, deadline: int | None) -> Flow[tuple[Decision, ...]]:
    """Take the request's limits: with one question to the store if they admit it now, else through the wait queue.

    A leaky bucket admits a call with a delay.  If that could end after the deadline, the queue predicts the turn first,
    so that a request that gives up takes no place from others.
    """
    patience = pacer.patience(deadline)
    if plan.queue_key not in pacer.queue.waiting and (patience is None or plan.longest_delay <= patience):
        try:
            decisions: tuple[Decision, ...] = yield from ask("check", plan.checks)
        except StoreUnavailable:  # and there is no fallback: the queue tries again, as long as the request may wait
            decisions = ()
        if decisions and all(decisions):
            delay = round(max([decision.delay for decision in decisions]) * SECOND)
            if delay:
                try:
                    yield from sleep_in_time(pacer, request, delay, delay, deadline)
                except BaseException:  # cancelled, or too late because the store was slow: others may have its place
                    yield from give_back(plan.checks, decisions[0])
                    raise
            return decisions
    return (yield from acquire_plan(pacer.queue, plan.queue_key, plan.checks, patience, pacer.clock, request.priority))


def unless_unavailable(flow: Flow[Any], fallback: Any) -> Flow[Any]:
    """The result of a flow, or ``fallback`` if the store is unavailable."""
    try:
        return (yield from flow)
    except StoreUnavailable:
        return fallback


def patience_of(seconds: Seconds | None, argument: str = "max_wait") -> int | None:
    """A caller's ``max_wait`` or ``timeout`` in microseconds; None waits for ever."""
    if seconds is None:
        return None
    micros = to_micros(seconds, argument)
    if micros < 0:
        raise InvalidInput(f"{argument}: expected seconds of at least 0, got {shown(seconds)}.")
    return micros

"""Keeps the leases of this process alive, and gives back those that could not be given back at once.

A lease on a store that outlives this process lasts only ``BEATS`` heartbeats: if this process dies, nobody renews it.
One thread for each store renews all leases with one command, and delivers give-backs: of leases whose holder left while
the store was away, and of requests that got no answer or were cancelled.  A thread serves event loops too, because it
goes on when a loop is busy, cancelled or closed.

A give-back can overtake a renewal that is still under way, so a lease of which a request may arrive late is withdrawn:
the store notes its id, and refuses the late request.
"""

from __future__ import annotations

import atexit
from _thread import allocate_lock
from time import monotonic

from ratekeeper.check import LeaseCheck, new_id
from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import running_loop
from ratekeeper.stores.fork import keep_through_fork
from ratekeeper.units import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from threading import Thread
    from typing import Any

    from ratekeeper.check import Check

BEATS = 3  # in the life of a lease: two may be missed
HEARTBEAT = 5 * SECOND  # at most, microseconds; a lease for less than BEATS of them has shorter ones
SOONEST, LATEST = 0.05, 1.0  # seconds to the next attempt while the store is away
TOGETHER = 0.25  # of a heartbeat: leases that are due within it are renewed together
IDLE = 10.0  # seconds without work after which the thread ends
MOST_GIVE_BACKS = 10_000  # that wait for the store; the oldest are dropped, and end by themselves


class HeldLease:
    """A lease that the thread renews until ``longest``, the instant at which its holder loses it; None: for ever."""

    __slots__ = ("beat_at", "check", "every", "in_flight", "is_unsure", "longest", "loop")

    def __init__(self, check: LeaseCheck, now: float) -> None:
        self.check = check
        self.every = check.lasts / SECOND / BEATS
        self.beat_at = now + self.every
        self.longest: float | None = now + check.limit.micros / SECOND  # type: ignore[union-attr]
        self.in_flight = False
        self.is_unsure = False  # a renewal got no answer: it may arrive late
        self.loop: Any = None  # the event loop of a holder that keeps it for ever


class LeaseRenewer:
    """The leases that this process holds on one store, and those that it has to give back there."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.lock = allocate_lock()
        self.held: dict[int, HeldLease] = {}
        self.give_backs: dict[int, LeaseCheck] = {}  # in the order in which they came
        self.thread: Thread | None = None
        self.thread_store: Any = None
        self.is_closed = False
        self.pause = SOONEST
        self.retry_at = 0.0
        self.in_child()
        keep_through_fork(self)

    def in_child(self) -> None:
        """Start with nothing: the leases are those of the process that made them."""
        from threading import Event

        self.held, self.give_backs = {}, {}
        self.thread, self.thread_store, self.wake = None, None, Event()

    def keep(self, check: LeaseCheck, *, for_ever: bool = False) -> None:
        """Renew a lease that the store has just given or renewed: for a period, or for as long as it is held."""
        with self.lock:
            if self.is_closed:
                return
            held = self.held[check.lease] = HeldLease(check, monotonic())
            if for_ever:
                self.hold_for_ever(held)
            self.start()

    def keep_for_ever(self, check: LeaseCheck) -> None:
        """Renew a lease for as long as it is held, while the running event loop is open."""
        with self.lock:
            held = self.held.get(check.lease)
            if held is not None:
                self.hold_for_ever(held)

    def is_for_ever(self, check: LeaseCheck) -> bool:
        held = self.held.get(check.lease)
        return held is not None and held.longest is None

    def hold_for_ever(self, held: HeldLease) -> None:
        held.longest, held.loop = None, running_loop()

    def has(self, check: LeaseCheck) -> bool:
        """Whether the lease is still held, as far as is known here."""
        return check.lease in self.held

    def drop(self, check: LeaseCheck) -> bool:
        """Stop renewing a lease; whether a request about it may still arrive at the store."""
        with self.lock:
            held = self.held.pop(check.lease, None)
        return held is not None and (held.in_flight or held.is_unsure)

    def withdraw(self, checks: Iterable[LeaseCheck]) -> None:
        """Give leases back as soon as the store answers, whether it has them or not; it refuses late ones."""
        with self.lock:
            for check in checks:
                self.held.pop(check.lease, None)
                if len(self.give_backs) >= MOST_GIVE_BACKS:
                    del self.give_backs[next(iter(self.give_backs))]
                self.give_backs[check.lease] = check.having(0, check.lasts)
            self.start()
        self.wake.set()

    def start(self) -> None:
        """Start the thread, unless it runs.  The lock is held."""
        if self.thread is None:
            from threading import Thread

            self.thread = Thread(target=self.run, name="ratekeeper-leases", daemon=True)
            renewers[id(self)] = self
            self.thread.start()

    def run(self) -> None:
        idle_since = monotonic()
        while True:
            self.wake.clear()
            try:
                wait = self.work()
            except Exception:  # the thread must not end while leases are held
                from logging import getLogger

                getLogger("ratekeeper").exception("leases: expected to renew them, got an error. Trying again")
                wait = LATEST
            now = monotonic()
            with self.lock:
                if self.held or self.give_backs:
                    idle_since = now
                if self.is_closed or now - idle_since >= IDLE:
                    self.thread = None
                    break
            self.wake.wait(IDLE if wait is None else wait)
        self.finish()

    def work(self) -> float | None:
        """Do what is due; seconds until there is more to do, or None if there is nothing."""
        now = monotonic()
        if now < self.retry_at:
            return self.retry_at - now
        with self.lock:
            give_backs, due = list(self.give_backs.values()), self.due(now)
            for held in due:
                held.in_flight = True
            failed = False
            if not self.store.blocking:  # under the lock: a lease is not given back while its renewal is under way
                failed = self.deliver(give_backs) | self.renew(due, now)
        if self.store.blocking:
            failed = self.deliver(give_backs) | self.renew(due, now)
        if failed:
            self.retry_at = monotonic() + self.pause
            self.pause = min(LATEST, 2 * self.pause)
            return self.retry_at - now
        self.pause, self.retry_at = SOONEST, 0.0
        with self.lock:
            if self.give_backs:
                return 0.0
            beats = [held.beat_at for held in self.held.values()]
        return max(0.0, min(beats) - monotonic()) if beats else None

    def due(self, now: float) -> list[HeldLease]:
        """The leases to renew, without those whose time is over.  The lock is held."""
        for lease, held in list(self.held.items()):
            is_over = now >= held.longest if held.longest is not None else held.loop.is_closed()
            if is_over:
                del self.held[lease]
        if not any(held.beat_at <= now for held in self.held.values()):
            return []
        return [held for held in self.held.values() if held.beat_at <= now + TOGETHER * held.every]

    def plan(self, due: list[HeldLease], now: float) -> tuple[LeaseCheck, ...]:
        checks = []
        for held in due:
            lasts = held.check.lasts
            if held.longest is not None:
                lasts = max(1, min(lasts, round((held.longest - now) * SECOND)))
            checks.append(held.check.having(held.check.cost, lasts))
        return tuple(checks)

    def deliver(self, give_backs: list[LeaseCheck]) -> bool:
        """Give back what waits; whether some of it has to wait on."""
        if not give_backs:
            return False
        try:
            outcomes = self.asked().end_leases(tuple(give_backs))
        except StoreUnavailable:
            return True
        for check, outcome in zip(give_backs, outcomes, strict=True):
            if outcome is not None and self.give_backs.get(check.lease) is check:
                del self.give_backs[check.lease]
        return any(outcome is None for outcome in outcomes)

    def renew(self, due: list[HeldLease], now: float) -> bool:
        """Renew leases with one command; whether some of them were not."""
        if not due:
            return False
        outcomes: Any = [None] * len(due)
        try:
            outcomes = self.asked().renew(self.plan(due, now))
        except StoreUnavailable:
            pass
        finally:
            for held, outcome in zip(due, outcomes, strict=True):
                self.note(held, outcome, now)
        return any(outcome is None for outcome in outcomes)

    def note(self, held: HeldLease, outcome: object, now: float) -> None:
        """Note whether a lease was renewed; None: that is not known."""
        if outcome is None:
            held.is_unsure = True
            held.beat_at = now + min(held.every, LATEST)
        elif outcome:
            held.is_unsure = False
            held.beat_at = now + held.every
        elif self.held.get(held.check.lease) is held:  # it ended, and others have its place
            del self.held[held.check.lease]
        held.in_flight = False  # last: a lease that is given back meanwhile is withdrawn

    def asked(self) -> Any:
        """The store as a thread asks it: one for event loops has a twin."""
        store = self.thread_store
        if store is None:
            store = self.store
            if getattr(store, "is_async", False):
                store = store.for_threads()
            self.thread_store = store
        return store

    def close(self, *, at_once: bool = True) -> None:
        """Renew nothing any more, and deliver what waits, once: here, or in the thread, which an event loop needs."""
        with self.lock:
            self.is_closed = True
            self.held = {}
        if at_once or self.thread is None:
            self.finish()
        self.wake.set()

    def finish(self) -> None:
        give_backs = list(self.give_backs.values())
        self.deliver(give_backs)  # if the store is away, they end by themselves
        if self.thread_store is not None and self.thread_store is not self.store:
            self.thread_store.close()
            self.thread_store = None
        if renewers.get(id(self)) is self and (self.is_closed or self.thread is None):
            del renewers[id(self)]


renewers: dict[int, LeaseRenewer] = {}
making = allocate_lock()


def renewer_of(store: Any) -> LeaseRenewer | None:
    """The renewer of a store whose leases need heartbeats; None: the leases last as long as this process."""
    if not getattr(store, "needs_heartbeats", False):
        return None
    renewer: LeaseRenewer | None = store.renewer
    if renewer is None or renewer.is_closed:
        with making:
            renewer = store.renewer
            if renewer is None or renewer.is_closed:
                renewer = store.renewer = LeaseRenewer(store)
    return renewer


def named_lease(check: Check, store: Any) -> LeaseCheck:
    """The check with an id of its own, and the time that its lease lasts without a heartbeat."""
    period: int = check.limit.micros  # type: ignore[union-attr]
    lasts = min(period, BEATS * HEARTBEAT) if getattr(store, "needs_heartbeats", False) else period
    return LeaseCheck(check.space, check.key, check.limit, check.cost, check.on_store_error, new_id(), lasts)


def flush_all() -> None:
    """Deliver what waits before the interpreter ends."""
    for renewer in list(renewers.values()):
        renewer.close()


atexit.register(flush_all)

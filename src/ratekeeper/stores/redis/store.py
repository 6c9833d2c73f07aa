"""State on Redis or Valkey: exact for a whole fleet, in one round trip.

The server decides, by its own clock, in one script (``redis.lua`` and the twins of the rules).  Concurrent checks
share a command; a command is never sent twice unless the server said that it was not executed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic, sleep
from weakref import WeakSet

from hiredis import ReplyError

from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.fallback import Fallback, NoFallback
from ratekeeper.stores.redis.batch import LAST, PAUSE, Batch, judge
from ratekeeper.stores.redis.breaker import Breaker
from ratekeeper.stores.redis.combiner import Combiner, Waiter
from ratekeeper.stores.redis.connection import RedisServer, ask_once
from ratekeeper.stores.redis.plans import PlanTranslator
from ratekeeper.stores.redis.prefetch import PrefetchTable, can_lease, validate
from ratekeeper.stores.redis.request import CheckRequest, command, lone_start
from ratekeeper.stores.redis.script import compose
from ratekeeper.stores.redis.table import RedisTable
from ratekeeper.stores.redis.topology import SlotMap, slot_of
from ratekeeper.stores.redis.url import RedisSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet, State
    from ratekeeper.stores.redis.connection import RedisConnection
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import Address


class RedisStore:
    """State on Redis or Valkey, for threads: ``RedisStore("redis://localhost:6379/0", deadline=0.05)``.

    The options are those of the URL (see ``settings.py``).  A ``clock`` that is given rules in the place of the
    server's: for tests.
    """

    blocking = True

    def __init__(self, url: str, *, clock: Clock | None = None, fallback: bool = True, **options: Any) -> None:
        self.settings = RedisSettings(url, **options)
        self.clock = MONOTONIC if clock is None else clock
        self.gives_time = clock is not None
        self.asks_in_line = not self.gives_time and not self.settings.is_cluster  # a line writes no instants
        self.script = compose(given_time=self.gives_time)
        self.lone = lone_start(self.script.sha)
        self.books = PlanTranslator(self.settings, self.gives_time)
        self.leased: WeakSet[PrefetchTable] = WeakSet()
        make_fallback = Fallback if fallback else NoFallback
        self.standby = make_fallback(self.settings.on_store_error, self.settings.local_share, self.books, self.clock)
        self.open()
        stores.add(self)

    def open(self) -> None:
        self.slots = SlotMap(self.settings.addresses)
        self.map_breaker = Breaker()
        self.links: dict[Address, tuple[RedisServer, Combiner]] = {}
        if not self.settings.is_cluster:
            self.home = self.line_to(self.settings.addresses[0])

    def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        known = self.books.denied(plan, self.clock.nanos())
        if known is not None:
            return known
        request = self.books.check_one(plan)
        if request is not None:
            return self.ask(request)
        return self.run(self.books.errand("check", plan))

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        lease: str | int | None = None,
    ) -> RedisTable | PrefetchTable:
        """The states of one limit: its ``check`` is the hot path."""
        if lease is not None:
            validate(lease, limit)
        elif self.settings.lease is not None and can_lease(limit):
            lease = self.settings.lease
        if lease is None:
            return RedisTable(self, space, limit, on_store_error)
        return PrefetchTable(self, space, limit, on_store_error, lease)  # type: ignore[arg-type]

    def stand_in(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.standby.answer(operation, error, plan, at)

    def peek(self, plan: Plan) -> tuple[Decision, ...]:
        return self.run(self.books.errand("peek", plan))

    def take(self, plan: Plan) -> tuple[Decision, ...]:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(self.books.errand("take", plan))

    def refund(self, plan: Plan, at: int | None = None) -> tuple[Decision, ...]:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(self.books.errand("refund", plan, at))

    def reset(self, plan: Plan) -> None:
        """Forget what the plan's keys used."""
        self.run(self.books.errand("reset", plan))

    def states(self, plan: Plan) -> tuple[int, tuple[State, ...]]:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(self.books.errand("states", plan))

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the server expire."""
        self.books.release(space, limit)
        self.standby.release(space, limit)
        return True

    def close(self) -> None:
        for table in list(self.leased):
            table.close()
        for link, _ in list(self.links.values()):
            link.close()
        stores.discard(self)

    def run(self, errand: PlanFlow) -> Any:
        answers: list[Any] | None = None
        while True:
            try:
                requests = errand.send(answers)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            answers = []
            for request in requests:
                try:
                    answers.append(self.ask(request))
                except StoreUnavailable as error:
                    answers.append(error)

    def ask(self, request: AnyRequest) -> Any:
        link, combiner = self.home if not self.settings.is_cluster else self.line_for(request)
        if link.breaker.is_open and not self.settings.is_cluster:
            link.refuse()
        if link.is_shared:
            return self.speak(link, request, monotonic())
        return combiner.ask(request, self.settings.deadline)

    def line_to(self, address: Address) -> tuple[RedisServer, Combiner]:
        found = self.links.get(address)
        if found is None:
            name = self.settings.shown if not self.settings.is_cluster else f"redis://{address[0]}:{address[1]}"

            def stay(until: float) -> Address:
                if self.settings.is_cluster and link.breaker.is_open:  # another server may have taken over
                    with suppress(StoreUnavailable):
                        self.learn_slots(until)
                return address

            find = self.find_master if self.settings.service else stay
            link = RedisServer(self.settings, self.script, find, name, self.clock, self.gives_time)
            combiner = Combiner(
                lambda requests, since: self.deliver(link, requests, since),
                lambda request, since: self.speak(link, request, since),
                name,
            )
            found = self.links.setdefault(address, (link, combiner))
        return found

    def line_for(self, request: AnyRequest) -> tuple[RedisServer, Combiner]:
        """The line to the server of a cluster that has the request's keys."""
        slot = slot_of(request.keys)
        place = self.slots.masters.get(slot)
        if place is None:
            now = monotonic()
            if self.map_breaker.is_open and not self.map_breaker.is_due(now):
                raise StoreUnavailable(self.settings.shown, self.map_breaker.why)
            self.learn_slots(now + self.settings.deadline)
            place = self.slots.masters.get(slot)
            if place is None:
                raise StoreUnavailable(self.settings.shown, f"slot {slot} is served by nobody")
        return self.line_to(place)

    def learn_slots(self, until: float) -> None:
        why = ""
        places = self.slots.places()
        for tried, place in enumerate(places):
            now = monotonic()
            share = now + (until - now) / (len(places) - tried)  # one that hangs must leave time for the others
            try:
                self.slots.learn(ask_once(place, self.settings, share, b"CLUSTER", b"SLOTS"), place)
            except (OSError, StoreUnavailable) as error:
                why = str(error)
            else:
                self.map_breaker.close()
                return
        why = f"could not learn who serves what ({why})"
        self.map_breaker.trip(monotonic(), why)
        raise StoreUnavailable(self.settings.shown, why)

    def find_master(self, until: float) -> Address:
        """Ask the sentinels, one after the other, who the master is."""
        why = ""
        places = self.settings.addresses
        for tried, place in enumerate(places):
            now = monotonic()
            share = now + (until - now) / (len(places) - tried + 1)  # the master must be reached too
            try:
                words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.settings.service.encode())
                reply = ask_once(place, self.settings, share, *words)
            except (OSError, StoreUnavailable) as error:
                why = str(error)
                continue
            if reply:
                return reply[0].decode(), int(reply[1])
            why = f"no sentinel knows the service {self.settings.service!r}"
        raise StoreUnavailable(self.settings.shown, f"could not find the master ({why})")

    def speak(self, link: RedisServer, request: AnyRequest, since: float) -> Any:
        """Answer a single request: ``deliver`` with the least work, unless the server has something else to say."""
        until = since + self.settings.deadline
        sent = self.clock.nanos()
        if link.is_shared and self.asks_in_line:
            reply, asked = link.ask(request, until)
        else:
            if request.__class__ is CheckRequest and not self.gives_time:
                payload = self.lone + request.keys + request.words
            else:
                payload = command((request,), b"EVALSHA", self.script.sha, sent // 1000 if self.gives_time else None)
            (reply,), asked = link.transfer(payload, 1, until)
        if reply.__class__ is bytes:
            try:
                return request.read(reply, sent)
            except Exception:  # it is no reply to this: the long way says so
                pass
        waiter = request.future = Waiter()
        flight = Batch([request], since)
        flight.tries, flight.sent = 1, sent
        self.travel(self.settle(link, [flight], [reply], asked, until), until)
        return waiter.answer()

    def deliver(self, link: RedisServer, requests: list[AnyRequest], since: float) -> None:
        """Settle all requests: send, read, and send again what was not executed, within the deadline."""
        flights = (
            [Batch([request], since) for request in requests] if self.settings.is_cluster else [Batch(requests, since)]
        )
        self.travel([(link, flights)], since + self.settings.deadline)

    def travel(self, legs: list[tuple[RedisServer, list[Batch]]], until: float) -> None:
        while legs:
            link, flights = legs.pop()
            try:
                replies, asked = link.exchange(flights, until)
            except StoreUnavailable as error:
                for flight in flights:
                    flight.fail(error)
            else:
                legs += self.settle(link, flights, replies, asked, until)

    def settle(
        self, link: RedisServer, flights: Sequence[Batch], replies: Sequence[Any], asked: RedisConnection, until: float
    ) -> list[tuple[RedisServer, list[Batch]]]:
        """Hand out replies; where flights that were not executed must go next."""
        legs: list[tuple[RedisServer, list[Batch]]] = []
        for flight, reply in zip(flights, replies, strict=True):
            if not isinstance(reply, ReplyError):
                if not flight.land(reply, link.name):
                    link.leave(asked, "answered something else than was asked")
                continue
            action, slot, place = judge(flight, reply, asked.address)
            if action == "again" and monotonic() + LAST < until:
                sleep(PAUSE)
                legs.append((link, [flight]))
            elif action == "evaluate":
                legs.append((link, [flight]))
            elif action == "elsewhere":
                if not flight.asking:
                    self.slots.moved(slot, place)
                legs.append((self.line_to(place)[0], [flight]))
            elif action == "anew":
                link.drop(asked)
                legs.append((link, [flight]))
            else:
                if action == "down":
                    link.leave(asked, f"answered {reply}")
                charged = None if action == "unknown" else False
                flight.fail(StoreUnavailable(link.name, f"answered {reply}", charged))
        return legs


# A child process must not speak on its parent's connections.
stores: WeakSet[RedisStore] = WeakSet()


def after_fork() -> None:
    for store in list(stores):
        for link, _ in list(store.links.values()):
            if link.connection is not None:
                link.connection.close()
        for table in list(store.leased):
            table.leases.held.clear()  # they are the parent's: a copy would be served twice
        store.open()


os.register_at_fork(after_in_child=after_fork)

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
from ratekeeper.stores.redis.prefetch import PrefetchTable, can_prefetch, validate
from ratekeeper.stores.redis.prepared import RedisPlan
from ratekeeper.stores.redis.request import command, lone_start
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
    from ratekeeper.stores.protocol import Row
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
        self.translator = PlanTranslator(self.settings, self.gives_time)
        self.prefetching: WeakSet[PrefetchTable] = WeakSet()
        make_fallback = Fallback if fallback else NoFallback
        settings = self.settings
        self.fallback = make_fallback(settings.on_store_error, settings.local_share, self.translator, self.clock)
        self.open()
        stores.add(self)

    def open(self) -> None:
        self.slots = SlotMap(self.settings.addresses)
        self.map_breaker = Breaker()
        self.links: dict[Address, tuple[RedisServer, Combiner]] = {}
        if not self.settings.is_cluster:
            self.home = self.line_to(self.settings.addresses[0])
            self.server = self.home[0]

    def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan, self.clock.nanos())
        if refusal is not None:
            return refusal
        request = self.translator.check_one(plan)
        if request is not None:
            return self.ask(request)
        return self.run(self.translator.flow("check", plan))

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        lease: str | int | None = None,
        strict: bool = False,
    ) -> RedisTable | PrefetchTable:
        """The states of one limit: its ``check`` is the hot path."""
        if lease is not None:
            validate(lease, limit)
        elif self.settings.lease is not None and can_prefetch(limit):
            lease = self.settings.lease
        if lease is None:
            return RedisTable(self, space, limit, on_store_error)
        return PrefetchTable(self, space, limit, on_store_error, lease)  # type: ignore[arg-type]

    def prepare(self, rows: tuple[Row, ...]) -> RedisPlan:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return RedisPlan(self, rows)

    def away(self, keys: bytes = b"") -> str:
        """Why the server of these keys cannot be asked at this moment; empty where to ask is the only way to know."""
        if not self.settings.is_cluster:
            return self.server.away()
        place = self.slots.masters.get(slot_of(keys)) if keys else None
        if place is None:
            return self.map_breaker.why if keys and self.map_breaker.is_waiting(monotonic()) else ""
        line = self.links.get(place)
        return "" if line is None else line[0].away()

    def stand_in(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.fallback.answer(operation, error, plan, at)

    def peek(self, plan: Plan) -> tuple[Decision, ...]:
        return self.run(self.translator.flow("peek", plan))

    def take(self, plan: Plan) -> tuple[Decision, ...]:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(self.translator.flow("take", plan))

    def refund(self, plan: Plan, at: int | None = None) -> tuple[Decision, ...]:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(self.translator.flow("refund", plan, at))

    def reset(self, plan: Plan) -> None:
        """Forget what the plan's keys used."""
        self.run(self.translator.flow("reset", plan))

    def states(self, plan: Plan) -> tuple[int, tuple[State, ...]]:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(self.translator.flow("states", plan))

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the server expire."""
        self.translator.release(space, limit)
        self.fallback.release(space, limit)
        return True

    def close(self) -> None:
        for table in list(self.prefetching):
            table.close()
        for link, _ in list(self.links.values()):
            link.close()
        stores.discard(self)

    def run(self, flow: PlanFlow) -> Any:
        answers: list[Any] | None = None
        while True:
            try:
                requests = flow.send(answers)  # type: ignore[arg-type]
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
            if not request.words_count and not self.gives_time:
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
        batch = Batch([request], since)
        batch.tries, batch.sent = 1, sent
        self.travel(self.settle(link, [batch], [reply], asked, until), until)
        return waiter.answer()

    def deliver(self, link: RedisServer, requests: list[AnyRequest], since: float) -> None:
        """Settle all requests: send, read, and send again what was not executed, within the deadline."""
        batches = (
            [Batch([request], since) for request in requests] if self.settings.is_cluster else [Batch(requests, since)]
        )
        self.travel([(link, batches)], since + self.settings.deadline)

    def travel(self, legs: list[tuple[RedisServer, list[Batch]]], until: float) -> None:
        while legs:
            link, batches = legs.pop()
            try:
                replies, asked = link.exchange(batches, until)
            except StoreUnavailable as error:
                for batch in batches:
                    batch.fail(error)
            else:
                legs += self.settle(link, batches, replies, asked, until)

    def settle(
        self, link: RedisServer, batches: Sequence[Batch], replies: Sequence[Any], asked: RedisConnection, until: float
    ) -> list[tuple[RedisServer, list[Batch]]]:
        """Hand out replies; where batches that were not executed must go next."""
        legs: list[tuple[RedisServer, list[Batch]]] = []
        for batch, reply in zip(batches, replies, strict=True):
            if not isinstance(reply, ReplyError):
                if not batch.land(reply, link.name):
                    link.leave(asked, "answered something else than was asked")
                continue
            action, slot, place = judge(batch, reply, asked.address)
            if action == "again" and monotonic() + LAST < until:
                sleep(PAUSE)
                legs.append((link, [batch]))
            elif action == "evaluate":
                legs.append((link, [batch]))
            elif action == "elsewhere":
                if not batch.asking:
                    self.slots.moved(slot, place)
                legs.append((self.line_to(place)[0], [batch]))
            elif action == "anew":
                link.drop(asked)
                legs.append((link, [batch]))
            else:
                if action == "down":
                    link.leave(asked, f"answered {reply}")
                charged = None if action == "unknown" else False
                batch.fail(StoreUnavailable(link.name, f"answered {reply}", charged))
        return legs


# A child process must not speak on its parent's connections.
stores: WeakSet[RedisStore] = WeakSet()


def after_fork() -> None:
    for store in list(stores):
        for link, _ in list(store.links.values()):
            if link.connection is not None:
                link.connection.close()
        for table in list(store.prefetching):
            table.quotas.by_key.clear()  # they are the parent's: a copy would be served twice
        store.open()


os.register_at_fork(after_in_child=after_fork)

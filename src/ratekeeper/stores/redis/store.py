"""State on Redis or Valkey: exact for a whole fleet, in one round trip.

The server decides, by its own clock, in one script (``redis.lua`` and the twins of the rules).  Concurrent checks
share a command; a command is never sent twice unless the server said that it was not executed.
"""

from __future__ import annotations

import atexit
import os
import threading
from _thread import allocate_lock
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.any_store import AnyRedisStore
from ratekeeper.stores.redis.batch import NOT_EXECUTED, Batch, has_written, react
from ratekeeper.stores.redis.combiner import Combiner, WaitingThread
from ratekeeper.stores.redis.connection import RedisServer, ask_once
from ratekeeper.stores.redis.prefetch import PrefetchTable
from ratekeeper.stores.redis.prepared import RedisPlan
from ratekeeper.stores.redis.request import command, lone_start
from ratekeeper.stores.redis.resp import MOST_REQUESTS, ErrorReply
from ratekeeper.stores.redis.steps import drive
from ratekeeper.stores.redis.table import RedisTable
from ratekeeper.stores.redis.topology import Servers
from ratekeeper.stores.redis.workers import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.redis.connection import RedisConnection
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.prefetch import PrefetchedQuotas
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import Address


LAST_LOOK = 0.001  # seconds: threads that end at the deadline have said so by then
SETTLE_AGAIN = 0.2  # seconds between two attempts to charge what is owed


class RedisStore(AnyRedisStore):
    """State on Redis or Valkey, for threads: ``RedisStore("redis://localhost:6379/0", deadline=0.05)``."""

    table_type, prefetch_type, plan_type = RedisTable, PrefetchTable, RedisPlan
    server: RedisServer  # the only one, unless it is a cluster
    is_warm = False

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.open()
        stores.add(self)

    def open(self) -> None:
        self.connections = ThreadConnections(self)
        if self.is_warm:
            self.connections.warm_up()
        self.away = self.connections.away
        self.ask = self.connections.ask
        if not self.settings.is_cluster:
            self.server = self.connections.server

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection; so do forked children from now on."""
        if not self.is_warm:
            self.is_warm = True
            self.connections.warm_up()

    def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan, self.clock.nanos())
        if refusal is not None:
            return refusal
        request = self.translator.check_one(plan)
        if request is not None:
            return self.ask(request)
        return self.run(self.translator.flow("check", plan))

    def run(self, flow: PlanFlow) -> Any:
        answers: list[Any] | None = None
        until = sends_until = monotonic() + self.settings.deadline
        while True:
            try:
                requests = flow.send(answers)  # type: ignore[arg-type]
            except StopIteration as done:
                return done.value
            answers = self.connections.ask_all(requests, until, sends_until)
            sends_until = monotonic() + self.settings.deadline

    def send_all(self, requests: Sequence[AnyRequest]) -> None:
        """Send requests whose answers no caller waits for, in batches; those that fail are told."""
        by_server: dict[RedisServer, list[AnyRequest]] = {}
        for request in requests:
            request.future = WaitingThread()
            try:
                server = self.connections.server_of(request, monotonic() + self.settings.deadline)
            except StoreUnavailable as error:
                request.fail(error)
            else:
                by_server.setdefault(server, []).append(request)
        for server, group in by_server.items():
            for at in range(0, len(group), MOST_REQUESTS):
                self.connections.deliver(server, group[at : at + MOST_REQUESTS], monotonic())

    def give_back(self, quotas: PrefetchedQuotas, layout: RecordLayout) -> None:
        """Give back what is left of prefetched quotas, also of those that other threads are asking for."""
        quotas.is_closing = True
        try:
            until = monotonic() + self.settings.deadline
            for request in list(quotas.in_flight):
                request.landed.acquire(True, max(0.0, until - monotonic()))
            self.send_all(quotas.leftovers(layout))
        finally:
            quotas.is_closing = False

    def settle(self) -> None:
        """Charge what the fallback admitted, as far as the server can be asked."""
        while self.fallback.owing and (self.settings.is_cluster or not self.away()):
            charges = self.charges()
            self.send_all(charges)
            if any(charge.has_failed for charge in charges):
                return

    def close(self) -> None:
        """Give back prefetched quotas, and close the connections."""
        self.settle()
        for quotas, layout in self.quotas_and_layouts():
            self.give_back(quotas, layout)
        if self.renewer is not None:
            self.renewer.close()
        self.connections.close()
        stores.discard(self)


class SideBySide:
    """Counts calls that run in several threads, for the caller that waits for all of them."""

    __slots__ = ("all_ended", "left", "lock")

    def __init__(self, many: int) -> None:
        self.left = many
        self.lock = threading.Lock()
        self.all_ended = threading.Event()

    def count_down(self) -> None:
        with self.lock:
            self.left -= 1
        if self.left <= 0:
            self.all_ended.set()

    def wait(self, until: float) -> None:
        if self.left > 0:
            self.all_ended.wait(max(0.0, until - monotonic()))


class ThreadConnections(Servers[RedisServer]):
    """The servers of one store, and how threads ask them."""

    def __init__(self, store: RedisStore) -> None:
        self.script = store.script
        self.clock = store.clock
        self.gives_time = store.gives_time
        self.lone = lone_start(self.script.sha)
        # Threads share a connection in C, which writes no instants into its commands, and knows one server only.
        self.asks_in_line = not self.gives_time and not store.settings.is_cluster
        self.workers = Workers("ratekeeper-redis")
        self.learning: threading.Event | None = None  # set when the slots were learned, or could not be
        self.lock = threading.Lock()  # guards learning
        self.store = ref(store)  # not a cycle: a store that nobody closes is freed at once
        self.owing = store.fallback.owing
        self.settling = allocate_lock()  # held by the thread that charges what is owed
        self.settle_at = 0.0  # not before that instant again
        super().__init__(store.settings, monotonic())

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection."""
        if self.settings.is_cluster:
            self.learn_slots()
        else:
            self.server.reach()

    def ask_once(self, address: Address, words: tuple[bytes, ...], seconds: float) -> Any:
        return ask_once(address, self.settings, monotonic() + seconds, words)

    def open_server(self, address: Address, name: str) -> RedisServer:
        def locate(until: float) -> Address:
            return drive(self.topology.locate(address, server.breaker.is_open, until))

        server = RedisServer(self.settings, self.script, locate, name, self.clock, self.gives_time)
        server.combiner = Combiner(
            lambda requests, since: self.deliver(server, requests, since),
            lambda request, since: self.speak(server, request, since),
            name,
        )
        if not self.settings.is_cluster:
            server.settle = self.settle_first
        return server

    def settle_first(self, connection: RedisConnection, until: float) -> None:
        """Charge what is owed on a new connection, before any decision is made on it."""
        store = self.store()
        while store is not None and self.owing and monotonic() < until:
            charges = store.charges()
            if not charges:  # all of it has recovered
                continue
            groups = [charges[at : at + MOST_REQUESTS] for at in range(0, len(charges), MOST_REQUESTS)]
            batches = [Batch(group, monotonic()) for group in groups]
            for charge in charges:
                charge.future = WaitingThread()
            payload = b"".join([batch.payload(self.script, self.clock, self.gives_time) for batch in batches])
            try:
                replies = connection.exchange(payload, len(batches), until)
            except BaseException:
                for batch in batches:
                    batch.fail(StoreUnavailable(self.settings.shown, "gave no answer", charged=None))
                raise
            for batch, reply in zip(batches, replies, strict=True):
                if isinstance(reply, ErrorReply):
                    charged = False if str(reply).partition(" ")[0] in NOT_EXECUTED else None
                    batch.fail(StoreUnavailable(self.settings.shown, f"answered {reply}", charged))
            if any(isinstance(reply, ErrorReply) for reply in replies):
                return

    def look_after(self, server: RedisServer, request: AnyRequest, reply: Any) -> None:
        """After an answer of a server with troubles, or to which something is owed: see whether that is over."""
        if server.trouble and has_written(request, reply):
            server.note_write()
        if self.owing and monotonic() >= self.settle_at and self.settling.acquire(False):
            threading.Thread(target=self.settle_later, name="ratekeeper-settle", daemon=True).start()

    def settle_later(self) -> None:
        """Charge what is owed beside the callers, for whom it would take too long."""
        try:
            store = self.store()
            if store is not None:
                store.send_all(store.charges())
        finally:
            self.settle_at = monotonic() + SETTLE_AGAIN
            self.settling.release()

    def server_of(self, request: AnyRequest, until: float) -> RedisServer:
        """The server that has the request's keys.  Callers wait for the map of a cluster until that instant, or longer
        at the first contact."""
        if not self.settings.is_cluster:
            return self.server
        topology = self.topology
        address = topology.node(request.keys)
        if address is None:
            learning = self.learn_slots()
            if topology.breaker.is_open:  # nobody waits for a cluster that does not answer
                raise StoreUnavailable(self.settings.shown, topology.breaker.why)
            if not learning.wait(max(0.0, max(until, self.first_until) - monotonic())):
                raise topology.unknown("did not say in time which node serves which slot")
            if topology.breaker.is_open:
                raise StoreUnavailable(self.settings.shown, topology.breaker.why)
            address = topology.learned_node(request.keys)
        return self.server_at(address)

    def learn_slots(self) -> threading.Event:
        """Start to learn the slots, unless that is under way: in a thread, which has longer than a caller waits."""
        with self.lock:
            learning = self.learning
            if learning is None:
                learning = self.learning = threading.Event()
                self.workers.start(self.learn)
        return learning

    def learn(self) -> None:
        try:
            with suppress(StoreUnavailable):
                drive(self.topology.learn_slots(monotonic() + self.settings.connects_for))
        finally:
            with self.lock:
                learning, self.learning = self.learning, None
            if learning is not None:
                learning.set()

    def ask_all(self, requests: Sequence[AnyRequest], until: float, sends_until: float) -> list[Any]:
        """The answer to each request, or StoreUnavailable: all servers are asked side by side.

        The caller waits until the instant ``until``.  If ``sends_until`` is later, requests that are not answered by
        then go on in the background: to give back what a plan has taken.
        """
        if len(requests) == 1 and sends_until <= until:  # together with those of other threads
            try:
                return [self.ask(requests[0])]
            except StoreUnavailable as error:
                return [error]
        since = monotonic()
        legs: dict[RedisServer, list[Batch]] = {}
        waiters = []
        for request in requests:
            waiter = request.future = WaitingThread()
            waiters.append(waiter)
            try:
                server = self.server_of(request, until)
            except StoreUnavailable as error:
                waiter.set_exception(error)
            else:
                legs.setdefault(server, []).append(Batch([request], since))
        ended = SideBySide(len(legs))

        def travel(leg: tuple[RedisServer, list[Batch]]) -> None:
            try:
                self.travel([leg], sends_until)
            finally:
                ended.count_down()

        ways = list(legs.items())
        here = ways[:1] if sends_until <= until else []  # the thread of the caller goes one of the ways itself
        for leg in ways[len(here) :]:
            self.workers.start(partial(travel, leg))
        for leg in here:
            travel(leg)
        if until < self.first_until:  # the first contact with a node may be under way
            until = max([until, *[server.first_until for server in legs]])
        ended.wait(until + LAST_LOOK)
        late = f"gave no answer in {self.settings.deadline * 1000:g} ms"
        return [
            (waiter.error or waiter.result)
            if waiter.finished
            else StoreUnavailable(self.settings.shown, late, charged=None)
            for waiter in waiters
        ]

    def ask(self, request: AnyRequest) -> Any:
        """The answer to ``request``, or StoreUnavailable."""
        since = monotonic()
        if self.settings.is_cluster:
            server = self.server_of(request, since + self.settings.deadline)
        else:
            server = self.server
            if server.breaker.is_open:
                server.refuse()
        if server.is_shared:
            return self.speak(server, request, since)
        return server.combiner.ask(request, max(self.settings.deadline, server.first_until - monotonic()))

    def speak(self, server: RedisServer, request: AnyRequest, since: float) -> Any:
        """Answer a single request: ``deliver`` with the least work, unless the server has something else to say."""
        until = since + self.settings.deadline
        sent = self.clock.nanos()
        if server.is_shared and self.asks_in_line:
            reply, asked = server.ask(request, until)
        else:
            if not request.words_count and not self.gives_time:
                payload = self.lone + request.keys + request.words
            else:
                payload = command((request,), b"EVALSHA", self.script.sha, sent // 1000 if self.gives_time else None)
            (reply,), asked = server.transfer(payload, 1, until)
        if reply.__class__ is bytes:
            if server.trouble or self.owing:
                self.look_after(server, request, reply)
            try:
                return request.read(reply, sent)
            except Exception:  # it is no reply to this: the long way says so
                pass
        waiter = request.future = WaitingThread()
        batch = Batch([request], since)
        batch.tries, batch.sent = 1, sent
        self.travel(self.settle(server, [batch], [reply], asked, until), until)
        return waiter.answer()

    def deliver(self, server: RedisServer, requests: list[AnyRequest], since: float) -> None:
        """Settle all requests: send, read, and send again what was not executed, within the deadline."""
        batches = (
            [Batch([request], since) for request in requests] if self.settings.is_cluster else [Batch(requests, since)]
        )
        self.travel([(server, batches)], since + self.settings.deadline)

    def travel(self, legs: list[tuple[RedisServer, list[Batch]]], until: float) -> None:
        while legs:
            server, batches = legs.pop()
            try:
                replies, asked = server.exchange(batches, until)
            except StoreUnavailable as error:
                for batch in batches:
                    batch.fail(error)
            else:
                legs += self.settle(server, batches, replies, asked, until)

    def settle(
        self,
        server: RedisServer,
        batches: Sequence[Batch],
        replies: Sequence[Any],
        asked: RedisConnection,
        until: float,
    ) -> list[tuple[RedisServer, list[Batch]]]:
        """Hand out replies; where batches that were not executed must go next."""
        legs: list[tuple[RedisServer, list[Batch]]] = []
        for batch, reply in zip(batches, replies, strict=True):
            if not isinstance(reply, ErrorReply):
                if not batch.land(reply, server.name):
                    server.leave(asked, "answered something else than was asked")
                elif server.trouble or self.owing:
                    replies_to = [reply] if len(batch.requests) == 1 else reply
                    for request, part in zip(batch.requests, replies_to, strict=True):
                        self.look_after(server, request, part)
                continue
            slots = self.topology.slots
            reaction = react(batch, reply, server.name, asked.address, slots, until - monotonic())
            if reaction.error is not None:
                if reaction.down:
                    server.leave(asked, reaction.down)
                else:
                    server.note_trouble(reaction.error.why)
                batch.fail(reaction.error)
                continue
            if reaction.renew:
                server.drop(asked)
            if reaction.pause:
                sleep(reaction.pause)
            legs.append((server if reaction.address is None else self.server_at(reaction.address), [batch]))
        return legs


# A child process must not speak on its parent's connections.
stores: WeakSet[RedisStore] = WeakSet()


def after_fork() -> None:
    for store in list(stores):
        for server in list(store.connections.servers.values()):
            if server.connection is not None:
                server.connection.close()
        store.fallback.forget_owed()
        store.open()


def at_exit() -> None:
    """Give back what was prefetched by stores that nobody closed."""
    for store in list(stores):
        if store.prefetching:
            with suppress(RuntimeError):  # no thread can be started any more, to connect again
                store.close()


os.register_at_fork(after_in_child=after_fork)
atexit.register(at_exit)

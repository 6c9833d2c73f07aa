"""State on Redis or Valkey: exact for a whole fleet, in one round trip.

The server decides, by its own clock, in one script (``redis.lua`` and the twins of the rules).  Concurrent checks
share a command; a command is never sent twice unless the server said that it was not executed.
"""

from __future__ import annotations

import os
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from hiredis import ReplyError

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.any_store import AnyRedisStore
from ratekeeper.stores.redis.batch import Batch, react
from ratekeeper.stores.redis.combiner import Combiner, WaitingThread
from ratekeeper.stores.redis.connection import RedisServer, ask_once
from ratekeeper.stores.redis.prefetch import PrefetchTable
from ratekeeper.stores.redis.prepared import RedisPlan
from ratekeeper.stores.redis.request import command, lone_start
from ratekeeper.stores.redis.steps import drive
from ratekeeper.stores.redis.table import RedisTable
from ratekeeper.stores.redis.topology import Servers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.redis.connection import RedisConnection
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import Address


class RedisStore(AnyRedisStore):
    """State on Redis or Valkey, for threads: ``RedisStore("redis://localhost:6379/0", deadline=0.05)``."""

    table_type, prefetch_type, plan_type = RedisTable, PrefetchTable, RedisPlan
    server: RedisServer  # the only one, unless it is a cluster

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.open()
        stores.add(self)

    def open(self) -> None:
        self.connections = ThreadConnections(self)
        self.away = self.connections.away
        self.ask = self.connections.ask
        if not self.settings.is_cluster:
            self.server = self.connections.server

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

    def close(self) -> None:
        for table in list(self.prefetching):
            table.close()
        self.connections.close()
        stores.discard(self)


class ThreadConnections(Servers[RedisServer]):
    """The servers of one store, and how threads ask them."""

    def __init__(self, store: RedisStore) -> None:
        self.script = store.script
        self.clock = store.clock
        self.gives_time = store.gives_time
        self.lone = lone_start(self.script.sha)
        # Threads share a connection in C, which writes no instants into its commands, and knows one server only.
        self.asks_in_line = not self.gives_time and not store.settings.is_cluster
        super().__init__(store.settings)

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
        return server

    def server_of(self, request: AnyRequest) -> RedisServer:
        """The server of a cluster that has the request's keys."""
        address = self.topology.node(request.keys)
        if address is None:
            drive(self.topology.learn_slots(monotonic() + self.settings.deadline))
            address = self.topology.learned_node(request.keys)
        return self.server_at(address)

    def ask(self, request: AnyRequest) -> Any:
        """The answer to ``request``, or StoreUnavailable."""
        if self.settings.is_cluster:
            server = self.server_of(request)
        else:
            server = self.server
            if server.breaker.is_open:
                server.refuse()
        if server.is_shared:
            return self.speak(server, request, monotonic())
        return server.combiner.ask(request, self.settings.deadline)

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
            if not isinstance(reply, ReplyError):
                if not batch.land(reply, server.name):
                    server.leave(asked, "answered something else than was asked")
                continue
            slots = self.topology.slots
            reaction = react(batch, reply, server.name, asked.address, slots, until - monotonic())
            if reaction.error is not None:
                if reaction.down:
                    server.leave(asked, reaction.down)
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
        for table in list(store.prefetching):
            table.quotas.by_key.clear()  # they are the parent's: a copy would be served twice
        store.open()


os.register_at_fork(after_in_child=after_fork)

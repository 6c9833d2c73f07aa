"""RedisStore for event loops: the same answers, to be awaited."""

from __future__ import annotations

import asyncio
import os
from asyncio import get_running_loop
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import run_on_loop, running_loop, trio_loop
from ratekeeper.stores.redis.aio_connection import AsyncRedisServer, IgnoredAnswer, ask_once
from ratekeeper.stores.redis.any_store import AnyRedisStore
from ratekeeper.stores.redis.batch import has_written, react
from ratekeeper.stores.redis.prefetch import AsyncPrefetchTable
from ratekeeper.stores.redis.prepared import AsyncRedisPlan
from ratekeeper.stores.redis.steps import adrive
from ratekeeper.stores.redis.table import AsyncRedisTable
from ratekeeper.stores.redis.topology import Servers

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Sequence
    from weakref import ReferenceType

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.redis.batch import Batch
    from ratekeeper.stores.redis.layout import RecordLayout
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.prefetch import PrefetchedQuotas
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import Address


LAST_LOOK = 0.001  # seconds: what fails at the deadline has said so by then
SETTLE_AGAIN = 0.2  # seconds between two attempts to charge what is owed


class AsyncRedisStore(AnyRedisStore):
    """State on Redis or Valkey, for event loops; see RedisStore."""

    is_async = True
    table_type, prefetch_type, plan_type = AsyncRedisTable, AsyncPrefetchTable, AsyncRedisPlan

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.loop_connections: dict[int, LoopConnections] = {}
        self.last_used: tuple[AbstractEventLoop, AsyncRedisServer] = (None, None)  # type: ignore[assignment]
        async_stores.add(self)

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection.  Without a running loop, do nothing."""
        with suppress(RuntimeError):
            running_loop().call_soon(warm_up, ref(self))

    def check(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan, self.clock.nanos())
        return resolved(refusal) if refusal is not None else self.ask(plan)

    def ask(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        """``check``, whatever is cached."""
        request = self.translator.check_one(plan)
        if request is not None and not self.settings.is_cluster:
            return self.server().ask(request)
        return self.run(self.translator.flow("check", plan))

    def for_threads(self) -> Any:
        """What a thread asks to renew leases, and to give them back: a store with a connection of its own."""
        from ratekeeper.stores.redis.store import RedisStore

        return RedisStore(self.url, **self.options)

    def server(self) -> AsyncRedisServer:
        """The server as the running loop reaches it.  Not for clusters, which have one for each node."""
        loop, server = self.last_used
        try:
            running = get_running_loop()
        except RuntimeError:
            running = trio_loop()
        if running is not loop or server.is_closed:
            server = self.connections().server
            self.last_used = running, server  # in one step: other threads may have loops of their own
        return server

    def away(self, keys: bytes = b"") -> str:
        """Why the server of these keys cannot be asked at this moment; "" if it may be asked."""
        if self.settings.is_cluster:
            return self.connections().away(keys)
        server = self.server()
        return server.away() if server.breaker.is_open else ""

    def connections(self) -> LoopConnections:
        """What belongs to the running loop: connections cannot be shared between loops."""
        loop = running_loop()
        connections = self.loop_connections.get(id(loop))
        if connections is None or connections.loop is not loop:
            open_loops = {key: each for key, each in self.loop_connections.items() if not each.loop.is_closed()}
            self.loop_connections = open_loops
            connections = self.loop_connections[id(loop)] = LoopConnections(self)
        return connections

    async def run(self, flow: PlanFlow) -> Any:
        try:
            requests = next(flow)
        except StopIteration as done:
            return done.value
        if not self.settings.is_cluster and (why := self.away()):
            raise StoreUnavailable(self.settings.shown, why)
        finishing = self.finish(flow, requests)
        if len(requests) > 1:  # not cancelled halfway: what was taken of a plan in several slots must be settled
            return await asyncio.shield(running_loop().create_task(finishing))
        try:
            get_running_loop()
        except RuntimeError:
            return await trio_loop().run(finishing)  # type: ignore[attr-defined]
        return await finishing

    async def finish(self, flow: PlanFlow, requests: Sequence[AnyRequest]) -> Any:
        connections = self.connections()
        until = connections.loop.time() + self.settings.deadline
        while True:
            answers = await connections.ask_all(requests, until)
            try:
                requests = flow.send(answers)
            except StopIteration as done:
                return done.value

    def send(self, request: AnyRequest) -> asyncio.Future[Any]:
        """The future answer to ``request``; raises StoreUnavailable at once while the breaker is open."""
        if not self.settings.is_cluster:
            return self.server().ask(request)
        return running_loop().create_task(self.sent(request))

    async def sent(self, request: AnyRequest) -> Any:
        return await (await self.connections().ask(request))

    async def send_all(self, requests: Sequence[AnyRequest]) -> None:
        """Send requests whose answers no caller waits for, side by side; those that fail are told."""
        connections, futures = self.connections(), []
        for request in requests:
            try:
                server = await connections.server_of(request) if self.settings.is_cluster else connections.server
                futures.append(server.ask(request))
            except StoreUnavailable as error:
                request.future = IgnoredAnswer()
                request.fail(error)
        await asyncio.gather(*futures, return_exceptions=True)

    async def give_back(self, quotas: PrefetchedQuotas, layout: RecordLayout) -> None:
        """Give back what is left of prefetched quotas, also of those that tasks of this loop are asking for."""
        await run_on_loop(self.give_back_quotas(quotas, layout))

    async def give_back_quotas(self, quotas: PrefetchedQuotas, layout: RecordLayout) -> None:
        quotas.is_closing = True
        try:
            loop = get_running_loop()
            asked: list[Any] = [request.future for request in list(quotas.in_flight) if hasattr(request, "future")]
            here = [future for future in asked if future.get_loop() is loop]
            if here:
                await asyncio.wait(here, timeout=self.settings.deadline)
            await self.send_all(quotas.leftovers(layout))
        finally:
            quotas.is_closing = False

    async def settle(self) -> None:
        """Charge what the fallback admitted, as far as the server can be asked."""
        while self.fallback.owing and (self.settings.is_cluster or not self.away()):
            charges = self.charges()
            await self.send_all(charges)
            if any(charge.has_failed for charge in charges):
                return

    async def close(self) -> None:
        """Give back prefetched quotas, and close the connections."""
        await run_on_loop(self.close_on_loop())

    async def close_on_loop(self) -> None:
        await self.settle()
        for quotas, layout in self.quotas_and_layouts():
            await self.give_back(quotas, layout)
        if self.renewer is not None:
            self.renewer.close(at_once=False)
        connections = self.loop_connections.pop(id(get_running_loop()), None)
        if connections is not None:
            connections.close()
            await asyncio.sleep(0)  # let the transports go


async def resolved(answer: Any) -> Any:
    return answer


def retrieved(future: asyncio.Future[Any]) -> None:
    """Look at an answer that came after its deadline, so that the loop does not report it as lost."""
    if not future.cancelled():
        future.exception()


def warm_up(reference: ReferenceType[AsyncRedisStore]) -> None:
    """Start to connect, unless the store is gone."""
    store = reference()
    if store is not None:
        store.connections().warm_up()


# What the fallback admitted in the parent of a forked process is charged by the parent.
async_stores: WeakSet[AsyncRedisStore] = WeakSet()


def after_fork() -> None:
    for store in list(async_stores):
        store.fallback.forget_owed()


os.register_at_fork(after_in_child=after_fork)


class LoopConnections(Servers[AsyncRedisServer]):
    """The servers of one store, and how the tasks of one event loop ask them."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self.loop = running_loop()
        self.script = store.script
        self.clock = store.clock
        self.gives_time = store.gives_time
        self.learning: asyncio.Task[None] | None = None
        self.store = ref(store)  # not a cycle: a store that nobody closes is freed at once
        self.owing = store.fallback.owing
        self.settling: asyncio.Task[None] | None = None
        self.settle_at = 0.0  # not before that instant again
        super().__init__(store.settings, self.loop.time())

    async def ask_once(self, address: Address, words: tuple[bytes, ...], seconds: float) -> Any:
        async with asyncio.timeout(seconds):
            return await ask_once(address, self.settings, words)

    def open_server(self, address: Address, name: str) -> AsyncRedisServer:
        def locate(until: float) -> Awaitable[Address]:
            return adrive(self.topology.locate(address, server.breaker.is_open, until))

        server = AsyncRedisServer(
            self.settings, self.script, locate, name, self.clock, self.gives_time, self.take_error
        )
        if not self.settings.is_cluster:
            server.charges = self.charges
        server.is_owed = self.owing
        server.look_after = lambda batch, reply: self.look_after(server, batch, reply)
        return server

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection."""
        if self.settings.is_cluster:
            self.start_learning()
        else:
            self.server.reach()

    def charges(self) -> list[Any]:
        store = self.store()
        return [] if store is None else store.charges()

    def look_after(self, server: AsyncRedisServer, batch: Batch, reply: Any) -> None:
        """After an answer of a server with troubles, or to which something is owed: see whether that is over."""
        if server.trouble:
            replies = [reply] if len(batch.requests) == 1 else reply
            if any(map(has_written, batch.requests, replies)):
                server.note_write()
        now = self.loop.time()
        if self.owing and now >= self.settle_at:
            self.settle_at = now + SETTLE_AGAIN
            if not self.settings.is_cluster:
                server.settle()
            elif (store := self.store()) is not None:
                self.settling = self.loop.create_task(store.send_all(store.charges()))

    async def server_of(self, request: AnyRequest) -> AsyncRedisServer:
        """The server of a cluster that has the request's keys."""
        address = self.topology.node(request.keys)
        if address is None:
            learning = self.start_learning()
            if self.topology.breaker.is_open:  # nobody waits for a cluster that does not answer
                raise StoreUnavailable(self.settings.shown, self.topology.breaker.why)
            now = self.loop.time()
            done, _ = await asyncio.wait([learning], timeout=max(self.settings.deadline, self.first_until - now))
            if not done:
                raise self.topology.unknown("did not say in time which node serves which slot")
            if self.topology.breaker.is_open:
                raise StoreUnavailable(self.settings.shown, self.topology.breaker.why)
            address = self.topology.learned_node(request.keys)
        return self.server_at(address)

    async def ask_all(self, requests: Sequence[AnyRequest], until: float) -> list[Any]:
        """The answer to each request, or StoreUnavailable: all servers are asked side by side.

        The caller waits until that instant of the loop's clock.  Requests that are made later, to give back what a plan
        has taken, are sent in any case, and answered in the background.
        """
        futures = [await self.ask(request) for request in requests]
        try:
            if until < self.first_until:  # the first contact with a server may be under way
                until = max([until, *[server.first_until for server in self.servers.values()]])
            await asyncio.wait(futures, timeout=max(0.0, until + LAST_LOOK - self.loop.time()))
        except asyncio.CancelledError:
            for future in futures:
                future.cancel()
            raise
        answers: list[Any] = []
        late = f"gave no answer in {self.settings.deadline * 1000:g} ms"
        for future in futures:
            if not future.done():
                future.add_done_callback(retrieved)
                answers.append(StoreUnavailable(self.settings.shown, late, charged=None))
                continue
            error = future.exception()
            if error is not None and not isinstance(error, StoreUnavailable):
                raise error
            answers.append(future.result() if error is None else error)
        return answers

    def start_learning(self) -> asyncio.Task[None]:
        """Learn the slots, unless that is under way: one task does it for all, and has longer than a caller waits."""
        if self.learning is None:
            self.learning = self.loop.create_task(self.learn_slots())
        return self.learning

    def close(self) -> None:
        if self.learning is not None:
            self.learning.cancel()
        super().close()

    async def learn_slots(self) -> None:
        try:
            with suppress(StoreUnavailable):
                await adrive(self.topology.learn_slots(monotonic() + self.settings.connects_for))
        finally:
            self.learning = None

    async def ask(self, request: AnyRequest) -> asyncio.Future[Any]:
        """The future answer: sent, but not waited for, so that several travel side by side."""
        try:
            return (await self.server_of(request) if self.settings.is_cluster else self.server).ask(request)
        except StoreUnavailable as error:
            failed: asyncio.Future[Any] = self.loop.create_future()
            failed.set_exception(error)
            return failed

    def take_error(self, server: AsyncRedisServer, batch: Batch, reply: Exception) -> None:
        """Send again what was not executed, within the deadline."""
        time_left = batch.since + self.settings.deadline - self.loop.time()
        slots, is_busy = self.topology.slots, bool(server.in_flight)
        reaction = react(batch, reply, server.name, server.address, slots, time_left, is_busy)
        if reaction.error is not None:
            batch.fail(reaction.error)
            if reaction.down:
                server.down(reaction.down)
            else:
                server.note_trouble(reaction.error.why)
            return
        if reaction.renew:
            server.renew()
        target = server if reaction.address is None else self.server_at(reaction.address)
        if reaction.pause:
            self.loop.call_later(reaction.pause, target.send, [batch])
        else:
            target.send([batch])

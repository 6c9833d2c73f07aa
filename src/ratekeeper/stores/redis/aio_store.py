"""RedisStore for event loops: the same answers, to be awaited."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from time import monotonic
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.redis.aio_connection import AsyncRedisServer, ask_once
from ratekeeper.stores.redis.any_store import AnyRedisStore
from ratekeeper.stores.redis.batch import react
from ratekeeper.stores.redis.prefetch import AsyncPrefetchTable
from ratekeeper.stores.redis.prepared import AsyncRedisPlan
from ratekeeper.stores.redis.steps import adrive
from ratekeeper.stores.redis.table import AsyncRedisTable
from ratekeeper.stores.redis.topology import Servers

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Sequence

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.redis.batch import Batch
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.url import Address


class AsyncRedisStore(AnyRedisStore):
    """State on Redis or Valkey, for event loops; see RedisStore."""

    table_type, prefetch_type, plan_type = AsyncRedisTable, AsyncPrefetchTable, AsyncRedisPlan

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.loop_connections: dict[int, LoopConnections] = {}
        self.last_used: tuple[AbstractEventLoop, AsyncRedisServer] = (None, None)  # type: ignore[assignment]

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

    def server(self) -> AsyncRedisServer:
        """The server as the running loop reaches it.  Not for clusters, which have one for each node."""
        loop, server = self.last_used
        running = get_running_loop()
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
        loop = get_running_loop()
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
        # Not cancelled halfway: what was taken of a plan in several slots must be settled.
        return await (finishing if len(requests) == 1 else asyncio.shield(asyncio.ensure_future(finishing)))

    async def finish(self, flow: PlanFlow, requests: Sequence[AnyRequest]) -> Any:
        connections = self.connections()
        while True:
            futures = [await connections.ask(request) for request in requests]
            answers = await asyncio.gather(*futures, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, StoreUnavailable):
                    raise answer
            try:
                requests = flow.send(answers)
            except StopIteration as done:
                return done.value

    async def close(self) -> None:
        for table in list(self.prefetching):
            await table.close()
        connections = self.loop_connections.pop(id(get_running_loop()), None)
        if connections is not None:
            connections.close()
            await asyncio.sleep(0)  # let the transports go


async def resolved(answer: Any) -> Any:
    return answer


class LoopConnections(Servers[AsyncRedisServer]):
    """The servers of one store, and how the tasks of one event loop ask them."""

    def __init__(self, store: AsyncRedisStore) -> None:
        self.loop = get_running_loop()
        self.script = store.script
        self.clock = store.clock
        self.gives_time = store.gives_time
        self.learning: asyncio.Task[None] | None = None
        super().__init__(store.settings)

    async def ask_once(self, address: Address, words: tuple[bytes, ...], seconds: float) -> Any:
        async with asyncio.timeout(seconds):
            return await ask_once(address, self.settings, words)

    def open_server(self, address: Address, name: str) -> AsyncRedisServer:
        def locate(until: float) -> Awaitable[Address]:
            return adrive(self.topology.locate(address, server.breaker.is_open, until))

        server = AsyncRedisServer(
            self.settings, self.script, locate, name, self.clock, self.gives_time, self.take_error
        )
        return server

    async def server_of(self, request: AnyRequest) -> AsyncRedisServer:
        """The server of a cluster that has the request's keys."""
        address = self.topology.node(request.keys)
        if address is None:
            if self.learning is None:  # one task learns the slots for all
                self.learning = self.loop.create_task(self.learn_slots())
            try:
                await asyncio.wait_for(asyncio.shield(self.learning), self.settings.deadline)
            except TimeoutError:
                raise self.topology.unknown("did not say in time which node serves which slot") from None
            address = self.topology.learned_node(request.keys)
        return self.server_at(address)

    async def learn_slots(self) -> None:
        try:
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
            return
        if reaction.renew:
            server.renew()
        target = server if reaction.address is None else self.server_at(reaction.address)
        if reaction.pause:
            self.loop.call_later(reaction.pause, target.send, [batch])
        else:
            target.send([batch])

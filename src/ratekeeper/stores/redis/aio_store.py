"""RedisStore for event loops: the same answers, to be awaited."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from contextlib import suppress
from weakref import WeakSet

from ratekeeper.clock import MONOTONIC
from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.fallback import Fallback
from ratekeeper.stores.redis.aio_connection import AsyncRedisServer, ask_once
from ratekeeper.stores.redis.batch import LAST, PAUSE, judge
from ratekeeper.stores.redis.breaker import Breaker
from ratekeeper.stores.redis.plans import PlanTranslator
from ratekeeper.stores.redis.prefetch import AsyncPrefetchTable, can_prefetch, validate
from ratekeeper.stores.redis.prepared import AsyncRedisPlan
from ratekeeper.stores.redis.script import compose
from ratekeeper.stores.redis.table import AsyncRedisTable
from ratekeeper.stores.redis.topology import SlotMap, slot_of
from ratekeeper.stores.redis.url import RedisSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Awaitable, Sequence
    from typing import Any

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.limit import Limit, LimitSet, State
    from ratekeeper.stores.fallback import FallbackTable
    from ratekeeper.stores.protocol import Row
    from ratekeeper.stores.redis.batch import Batch
    from ratekeeper.stores.redis.plans import PlanFlow
    from ratekeeper.stores.redis.request import AnyRequest
    from ratekeeper.stores.redis.script import Script
    from ratekeeper.stores.redis.url import Address


class AsyncRedisStore:
    """State on Redis or Valkey, for event loops; see RedisStore."""

    blocking = True

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        self.settings = RedisSettings(url, **options)
        self.clock = MONOTONIC if clock is None else clock
        self.gives_time = clock is not None
        self.script = compose(given_time=self.gives_time)
        self.translator = PlanTranslator(self.settings, self.gives_time)
        self.prefetching: WeakSet[AsyncPrefetchTable] = WeakSet()
        self.fallback = Fallback(self.settings.on_store_error, self.settings.local_share, self.translator, self.clock)
        self.loop_connections: dict[int, LoopConnections] = {}
        self.last_used: tuple[AbstractEventLoop, AsyncRedisServer] = (None, None)  # type: ignore[assignment]

    def check(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan, self.clock.nanos())
        return resolved(refusal) if refusal is not None else self.ask(plan)

    def ask(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        """``check``, whatever is remembered."""
        request = self.translator.check_one(plan)
        if request is not None and not self.settings.is_cluster:
            return self.server().ask(request)
        return self.run(self.translator.flow("check", plan))

    def table(
        self,
        space: str,
        limit: Limit | LimitSet,
        on_store_error: str | None = None,
        *,
        lease: str | int | None = None,
        strict: bool = False,
    ) -> AsyncRedisTable | AsyncPrefetchTable:
        """The states of one limit: its ``check`` is the hot path."""
        if lease is not None:
            validate(lease, limit)
        elif self.settings.lease is not None and can_prefetch(limit):
            lease = self.settings.lease
        if lease is None:
            return AsyncRedisTable(self, space, limit, on_store_error)
        return AsyncPrefetchTable(self, space, limit, on_store_error, lease)  # type: ignore[arg-type]

    def prepare(self, rows: tuple[Row, ...]) -> AsyncRedisPlan:
        """A plan of (space, limit, cost, on_store_error) that waits for keys: ``prepare(rows).check(keys)``."""
        return AsyncRedisPlan(self, rows)

    def server(self) -> AsyncRedisServer:
        """The server as the running loop reaches it.  Not for clusters, which have one for each node."""
        loop, server = self.last_used
        running = get_running_loop()
        if running is not loop or server.is_closed:
            server = self.connections().server
            self.last_used = running, server  # in one step: other threads may have loops of their own
        return server

    def away(self, keys: bytes = b"") -> str:
        """Why the server of these keys cannot be asked at this moment; empty where to ask is the only way to know."""
        if not self.settings.is_cluster:
            server = self.server()
            return server.away() if server.breaker.is_open else ""
        return self.connections().away(keys)

    def link(self) -> AsyncRedisServer | None:
        """The link of the running loop, for as long as the store is open; None: a cluster has one for each node."""
        return None if self.settings.is_cluster else self.server()

    def desk(self, space: str, limit: Limit | LimitSet) -> FallbackTable | None:
        """Where one limit is counted while ``away`` says why; None: ``answer_away`` must be asked."""
        return None if self.settings.is_cluster else self.fallback.table_for(self.translator.layout(space, limit))

    def answer_away(self, operation: str, plan: Plan) -> tuple[Decision, ...] | None:
        """The answer to a check or peek while the store is known to be away, at once; None: it must be asked."""
        why = self.away()
        if not why:
            return None
        refusal = self.translator.cached_refusal(plan, self.clock.nanos()) if operation == "check" else None
        return refusal or self.stand_in(operation, StoreUnavailable(self.settings.shown, why), plan)

    def stand_in(
        self, operation: str, error: StoreUnavailable | None, plan: Plan, at: int | None = None
    ) -> tuple[Decision, ...]:
        """Answer in this process, as ``on_store_error`` says, what the store cannot."""
        return self.fallback.answer(operation, error, plan, at)

    def peek(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        return self.run(self.translator.flow("peek", plan))

    def take(self, plan: Plan) -> Awaitable[tuple[Decision, ...]]:
        """Take of each cost what is there, up to all of it: to charge for what has been used already."""
        return self.run(self.translator.flow("take", plan))

    def refund(self, plan: Plan, at: int | None = None) -> Awaitable[tuple[Decision, ...]]:
        """Give each cost, taken at the instant ``at``, back: never above the capacity."""
        return self.run(self.translator.flow("refund", plan, at))

    def reset(self, plan: Plan) -> Awaitable[None]:
        """Forget what the plan's keys used."""
        return self.run(self.translator.flow("reset", plan))

    def states(self, plan: Plan) -> Awaitable[tuple[int, tuple[State, ...]]]:
        """Now, and the state of each check: to foresee a wait."""
        return self.run(self.translator.flow("states", plan))

    def release(self, space: str, limit: Limit | LimitSet) -> bool:
        """Forget what this process knows of the states that ``limit`` reads; those on the server expire."""
        self.translator.release(space, limit)
        self.fallback.release(space, limit)
        return True

    async def close(self) -> None:
        for table in list(self.prefetching):
            await table.close()
        connections = self.loop_connections.pop(id(asyncio.get_running_loop()), None)
        if connections is not None:
            connections.close()
            await asyncio.sleep(0)  # let the transports go

    def connections(self) -> LoopConnections:
        """What belongs to the running loop: connections cannot be shared between loops."""
        loop = asyncio.get_running_loop()
        found = self.loop_connections.get(id(loop))
        if found is None or found.loop is not loop:
            self.loop_connections = {
                key: connections
                for key, connections in self.loop_connections.items()
                if not connections.loop.is_closed()
            }
            found = self.loop_connections[id(loop)] = LoopConnections(
                self.settings, self.script, self.clock, self.gives_time
            )
        return found

    async def run(self, flow: PlanFlow) -> Any:
        try:
            requests = next(flow)
        except StopIteration as done:
            return done.value
        if why := self.away():
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


async def resolved(answer: Any) -> Any:
    return answer


class LoopConnections:
    """The connections of one event loop."""

    def __init__(self, settings: RedisSettings, script: Script, clock: Clock, gives_time: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self.script = script
        self.clock = clock
        self.gives_time = gives_time
        self.slots = SlotMap(settings.addresses)
        self.learning: asyncio.Task[None] | None = None
        self.map_breaker = Breaker()
        self.links: dict[Address, AsyncRedisServer] = {}
        if not settings.is_cluster:
            self.server = self.link_to(settings.addresses[0])

    async def ask(self, request: AnyRequest) -> asyncio.Future[Any]:
        """The future answer: sent, but not waited for, so that several travel side by side."""
        try:
            return (self.server if not self.settings.is_cluster else await self.link_for(request)).ask(request)
        except StoreUnavailable as error:
            failed: asyncio.Future[Any] = self.loop.create_future()
            failed.set_exception(error)
            return failed

    def away(self, keys: bytes) -> str:
        """Why the node of these keys cannot be asked at this moment; empty where to ask is the only way to know."""
        place = self.slots.masters.get(slot_of(keys)) if keys else None
        if place is None:
            return self.map_breaker.why if keys and self.map_breaker.is_waiting(self.loop.time()) else ""
        server = self.links.get(place)
        return "" if server is None else server.away()

    def link_to(self, address: Address) -> AsyncRedisServer:
        found = self.links.get(address)
        if found is None:
            name = self.settings.shown if not self.settings.is_cluster else f"redis://{address[0]}:{address[1]}"

            async def stay() -> Address:
                if self.settings.is_cluster and link.breaker.is_open:  # another server may have taken over
                    with suppress(StoreUnavailable):
                        await self.learn_slots()
                return address

            find = self.find_master if self.settings.service else stay
            link = AsyncRedisServer(self.settings, self.script, find, name, self.clock, self.gives_time, self.trouble)
            found = self.links[address] = link
        return found

    async def link_for(self, request: AnyRequest) -> AsyncRedisServer:
        """The link to the server of a cluster that has the request's keys."""
        slot = slot_of(request.keys)
        place = self.slots.masters.get(slot)
        if place is None:
            if self.map_breaker.is_open and not self.map_breaker.is_due(self.loop.time()):
                raise StoreUnavailable(self.settings.shown, self.map_breaker.why)
            if self.learning is None:
                self.learning = self.loop.create_task(self.learn_slots())
            try:
                await asyncio.wait_for(asyncio.shield(self.learning), self.settings.deadline)
            except TimeoutError:
                why = "did not tell in time who serves what"
                self.map_breaker.trip(self.loop.time(), why)
                raise StoreUnavailable(self.settings.shown, why) from None
            place = self.slots.masters.get(slot)
            if place is None:
                raise StoreUnavailable(self.settings.shown, f"slot {slot} is served by nobody")
        return self.link_to(place)

    def share(self, places: Sequence[Address]) -> float:
        """Seconds for each place to be asked: one that hangs must leave time for the next, and for the one it names."""
        return self.settings.connects_for / min(len(places) + 1, 5)

    async def learn_slots(self) -> None:
        why = ""
        try:
            places = self.slots.places()
            for place in places:
                try:
                    async with asyncio.timeout(self.share(places)):
                        self.slots.learn(await ask_once(place, self.settings, b"CLUSTER", b"SLOTS"), place)
                except (OSError, StoreUnavailable) as error:  # a TimeoutError is an OSError
                    why = str(error) or "no answer"
                else:
                    self.map_breaker.close()
                    return
        finally:
            self.learning = None
        why = f"could not learn who serves what ({why})"
        self.map_breaker.trip(self.loop.time(), why)
        raise StoreUnavailable(self.settings.shown, why)

    async def find_master(self) -> Address:
        """Ask the sentinels, one after the other, who the master is."""
        why = ""
        places = self.settings.addresses
        for place in places:
            try:
                words = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.settings.service.encode())
                async with asyncio.timeout(self.share(places)):
                    reply = await ask_once(place, self.settings, *words)
            except (OSError, StoreUnavailable) as error:  # a TimeoutError is an OSError
                why = str(error) or "no answer"
                continue
            if reply:
                return reply[0].decode(), int(reply[1])
            why = f"no sentinel knows the service {self.settings.service!r}"
        raise StoreUnavailable(self.settings.shown, f"could not find the master ({why})")

    def trouble(self, link: AsyncRedisServer, batch: Batch, error: Exception) -> None:
        """An error reply: send again what was not executed, within the deadline."""
        action, slot, place = judge(batch, error, link.address)
        if action == "again" and self.loop.time() + LAST < batch.since + self.settings.deadline:
            self.loop.call_later(PAUSE, link.send, [batch])
        elif action == "evaluate":
            link.send([batch])
        elif action == "elsewhere":
            if not batch.asking:
                self.slots.moved(slot, place)
            self.link_to(place).send([batch])
        elif action == "anew" and not link.in_flight:
            link.renew()
            link.send([batch])
        else:
            charged = None if action == "unknown" else False
            batch.fail(StoreUnavailable(link.name, f"answered {error}", charged))
            if action in ("down", "anew"):  # a busy connection to a demoted master is left with all that is on it
                link.down(f"answered {error}")

    def close(self) -> None:
        for link in self.links.values():
            link.close()

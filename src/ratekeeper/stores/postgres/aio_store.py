"""PostgresStore for event loops: the same answers, to be awaited."""

from __future__ import annotations

import asyncio
import os
from asyncio import get_running_loop
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ratekeeper.errors import StoreUnavailable
from ratekeeper.event_loop import run_on_loop, running_loop
from ratekeeper.stores.postgres.any_store import AnyPostgresStore
from ratekeeper.stores.postgres.request import MOST_REQUESTS
from ratekeeper.stores.postgres.server import MOST_TRIES, NotRun, ReachedServer, forget
from ratekeeper.stores.postgres.table import AsyncPostgresPlan, AsyncPostgresTable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.postgres.connection import PostgresConnection
    from ratekeeper.stores.postgres.request import RowsRequest

SETTLE_AGAIN = 0.2  # seconds between two attempts to charge what is owed


class AsyncPostgresStore(AnyPostgresStore):
    """State on Postgres, for event loops; see PostgresStore."""

    is_async = True
    table_type, plan_type = AsyncPostgresTable, AsyncPostgresPlan

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.servers: dict[int, AsyncPostgresServer] = {}
        async_stores.add(self)

    @property
    def server_run(self) -> str | None:
        """Names the run of the server that was connected to last: after a crash it has lost its counts."""
        return self.server().run

    def for_threads(self) -> Any:
        """What a thread asks to renew leases, and to give them back: a store with a connection of its own."""
        from ratekeeper.stores.postgres.store import PostgresStore

        return PostgresStore(self.url, **self.options)

    def server(self) -> AsyncPostgresServer:
        """The server as the running loop reaches it: a connection cannot be shared between loops."""
        loop = running_loop()
        server = self.servers.get(id(loop))
        if server is None or server.loop is not loop or server.is_closed:
            self.servers = {key: each for key, each in self.servers.items() if not each.loop.is_closed()}
            server = self.servers[id(loop)] = AsyncPostgresServer(self, loop)
        return server

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection.  Without a running loop, do nothing."""
        with suppress(RuntimeError):
            self.server().reach()

    def away(self) -> str:
        """Why the server cannot be asked at this moment; "" if it may be asked."""
        return self.server().away()

    async def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan)
        if refusal is not None:
            return refusal
        return await self.run(self.translator.request("check", plan))

    async def run(self, request: RowsRequest) -> Any:
        if not request.rows:
            return request.without_server()
        return await self.server().ask(request)

    async def renew(self, plan: Plan) -> tuple[bool, ...]:
        """Hold each lease of the plan, by itself, from now on: whether it is held."""
        return tuple([held for request in self.lease_requests("renew", plan) for held in await self.run(request)])

    async def end_leases(self, plan: Plan) -> tuple[Decision, ...]:
        """Let each lease of the plan keep only ``cost`` places."""
        requests = self.lease_requests("end_leases", plan)
        return tuple([decision for request in requests for decision in await self.run(request)])

    async def settle(self) -> None:
        """Charge what the fallback admitted, as far as the server can be asked."""
        while self.fallback.owing and not self.away():
            charges = self.charges()
            futures = [self.server().ask(charge) for charge in charges]
            await asyncio.gather(*futures, return_exceptions=True)
            if any(charge.has_failed for charge in charges):
                return

    async def close(self) -> None:
        """Charge what is owed, and close the connection of the running loop."""
        await run_on_loop(self.close_on_loop())

    async def close_on_loop(self) -> None:
        await self.settle()
        if self.renewer is not None:
            self.renewer.close(at_once=False)
        server = self.servers.pop(id(get_running_loop()), None)
        if server is not None:
            server.close()


class AsyncPostgresServer(ReachedServer):
    """The server as the tasks of one loop ask it: one connection, and one statement for all that wait.

    While a statement is under way, requests are queued; its reply sends all of them as the next one.
    """

    def __init__(self, store: AsyncPostgresStore, loop: AbstractEventLoop) -> None:
        super().__init__(store.settings, store.clock, store.gives_time)
        self.loop = loop
        self.store = ref(store)  # not a cycle: a store that nobody closes is freed at once
        self.owing = store.fallback.owing
        self.charges = self.owed
        self.queue: list[tuple[float, Any]] = []  # until when a request waits, and the request
        self.batch: list[Any] = []  # under way
        self.batch_until = 0.0
        self.tries = 0
        self.sent = 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_flushing = False
        self.reading: int | None = None  # the socket that the loop watches
        self.settle_at = 0.0

    def owed(self) -> list[Any]:
        store = self.store()
        return [] if store is None else store.charges()

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """The future answer to ``request``."""
        future = request.future = self.loop.create_future()
        if self.breaker.is_open:
            request.fail(StoreUnavailable(self.name, self.away() or self.breaker.why))
            return future
        now = monotonic()
        self.queue.append((max(now + self.settings.deadline, self.first_until), request))
        if self.timer is None:
            self.timer = self.loop.call_later(self.queue[0][0] - now, self.look)
        if not self.batch and not self.is_flushing:
            self.is_flushing = True
            self.loop.call_soon(self.flush)
        return future

    def flush(self) -> None:
        """Send what is queued, unless a statement is under way."""
        self.is_flushing = False
        if self.batch or not self.queue or self.is_closed:
            return
        connection = self.connection
        if connection is not None and connection.is_stale():
            self.unwatch()
            self.drop(connection, is_idle=True)
            connection = None
        if connection is None:
            if self.breaker.is_open:
                self.fail_queue(StoreUnavailable(self.name, self.breaker.why))
            else:
                self.reach()  # ``ended`` comes back here
            return
        waiting = [each for each in self.queue if not each[1].future.done()]  # not those that were cancelled
        chosen, self.queue = waiting[:MOST_REQUESTS], waiting[MOST_REQUESTS:]
        if chosen:
            self.batch = [request for _, request in chosen]
            self.batch_until = chosen[0][0]
            self.tries = 0
            self.send(connection)

    def send(self, connection: PostgresConnection) -> None:
        self.tries += 1
        self.sent = self.clock.nanos()
        try:
            connection.send(self.words(self.batch))
            self.watch(connection)
            if connection.pgconn.flush():  # the socket is full
                self.loop.add_writer(connection.pgconn.socket, self.write_on, connection)
        except Exception as error:
            self.fail_batch(connection, error)

    def watch(self, connection: PostgresConnection) -> None:
        socket = connection.pgconn.socket
        if self.reading != socket:
            self.unwatch()
            self.loop.add_reader(socket, self.take_reply)
            self.reading = socket

    def unwatch(self) -> None:
        if self.reading is not None:
            self.loop.remove_reader(self.reading)
            self.loop.remove_writer(self.reading)
            self.reading = None

    def write_on(self, connection: PostgresConnection) -> None:
        try:
            if not connection.pgconn.flush():
                self.loop.remove_writer(connection.pgconn.socket)
        except Exception as error:
            self.fail_batch(connection, error)

    def take_reply(self) -> None:
        """The socket can be read."""
        connection = self.connection
        if connection is None:
            self.unwatch()
            return
        if not self.batch:  # the server closes an idle connection, or has something to tell
            if connection.is_stale():
                self.unwatch()
                self.drop(connection, is_idle=True)
            return
        try:
            reply = connection.receive()
            if reply is None:
                return
            batch = self.batch
            answers = self.read(reply, batch, self.sent)
        except Exception as error:
            self.fail_batch(connection, error)
            return
        self.batch = []
        for request, answer in zip(batch, answers, strict=True):
            if not request.future.done():  # else it was cancelled, and its answer is dropped
                request.future.set_result(answer)
        self.flush()
        if self.owing and monotonic() >= self.settle_at:
            self.settle_at = monotonic() + SETTLE_AGAIN
            for charge in self.owed():
                self.ask(charge).add_done_callback(looked_at)

    def fail_batch(self, connection: PostgresConnection, error: BaseException) -> None:
        """End the statement under way, or send it again if the server says that it did not run."""
        self.unwatch()  # before the socket may be closed, and its number used again
        if isinstance(error, StoreUnavailable):
            self.leave(connection, error.why)
            failure = error
        else:
            try:
                is_last = self.tries >= MOST_TRIES or monotonic() >= self.batch_until
                failure = self.judge(connection, error, is_last)
            except NotRun:
                self.send(connection)
                return
        batch, self.batch = self.batch, []
        for request in batch:
            if not request.future.done():
                request.fail(failure)
        if self.breaker.is_open:
            self.fail_queue(StoreUnavailable(self.name, self.breaker.why))
        elif self.queue:
            self.flush()

    def fail_queue(self, error: StoreUnavailable) -> None:
        queue, self.queue = self.queue, []
        for _, request in queue:
            if not request.future.done():
                request.fail(error)

    def look(self) -> None:
        """See whether a request has waited until its deadline."""
        self.timer = None
        now = monotonic()
        if self.batch and now >= self.batch_until and self.connection is not None:
            self.take_reply()  # it may have come, and a turn of a busy loop is long
            if self.batch and now >= self.batch_until and self.connection is not None:
                self.fail_batch(self.connection, TimeoutError())
        if self.queue and now >= self.queue[0][0] and not self.batch:
            if self.connection is None and not self.breaker.is_open:
                self.trip(f"could not be reached within {self.patience * 1000:g} ms")
            if self.breaker.is_open:
                self.fail_queue(StoreUnavailable(self.name, self.breaker.why))
        late = [each for each in self.queue if now >= each[0]]
        if late:
            self.queue = [each for each in self.queue if now < each[0]]
            for _, request in late:
                if not request.future.done():
                    request.fail(StoreUnavailable(self.name, "other tasks waited for it until the deadline"))
        ends = ([self.batch_until] if self.batch else []) + ([self.queue[0][0]] if self.queue else [])
        if ends:
            self.timer = self.loop.call_later(max(0.001, min(ends) - now), self.look)

    def ended(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self.flush)

    def close(self) -> None:
        self.unwatch()
        if self.timer is not None:
            self.timer.cancel()
        super().close()
        self.fail_queue(StoreUnavailable(self.name, "was closed"))
        batch, self.batch = self.batch, []
        for request in batch:
            if not request.future.done():
                request.fail(StoreUnavailable(self.name, "was closed", charged=None))


def looked_at(future: asyncio.Future[Any]) -> None:
    """Look at an answer that nobody waits for, so that the loop does not report it as lost."""
    if not future.cancelled():
        future.exception()


# A child process must not speak on its parent's connections, nor charge for its parent.
async_stores: WeakSet[AsyncPostgresStore] = WeakSet()


def after_fork() -> None:
    for store in list(async_stores):
        for server in list(store.servers.values()):
            forget(server)
        store.servers = {}
        store.fallback.forget_owed()


os.register_at_fork(after_in_child=after_fork)

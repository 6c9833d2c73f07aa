"""State on Postgres: exact for a whole fleet, in one round trip.

The server decides, by its own clock, in one statement (``decide.sql`` and the twins of the rules).  Concurrent checks
share a statement; a statement is never sent twice unless the server said that it rolled it back.
"""

from __future__ import annotations

import os
import threading
from _thread import allocate_lock
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from ratekeeper.errors import StoreUnavailable
from ratekeeper.stores.postgres.any_store import AnyPostgresStore
from ratekeeper.stores.postgres.request import MOST_REQUESTS
from ratekeeper.stores.postgres.server import MOST_TRIES, NobodyWaits, NotRun, ReachedServer, forget
from ratekeeper.stores.postgres.table import PostgresPlan, PostgresTable
from ratekeeper.stores.redis.combiner import Combiner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.check import Plan
    from ratekeeper.clock import Clock
    from ratekeeper.decision import Decision
    from ratekeeper.stores.postgres.connection import PostgresConnection
    from ratekeeper.stores.postgres.request import AnyRequest, RowsRequest

SETTLE_AGAIN = 0.2  # seconds between two attempts to charge what is owed


class PostgresStore(AnyPostgresStore):
    """State on Postgres, for threads: ``PostgresStore("postgresql://localhost/app", deadline=0.05)``."""

    table_type, plan_type = PostgresTable, PostgresPlan

    def __init__(self, url: str, *, clock: Clock | None = None, **options: Any) -> None:
        super().__init__(url, clock=clock, **options)
        self.is_warm = False
        self.open()
        stores.add(self)

    def open(self) -> None:
        self.server = PostgresServer(self)
        if self.is_warm:
            self.server.reach()

    @property
    def server_run(self) -> str | None:
        """Names the run of the server that was connected to last: after a crash it has lost its counts."""
        return self.server.run

    def warm_up(self) -> None:
        """Start to connect, so that the first decision finds a connection; so do forked children from now on."""
        if not self.is_warm:
            self.is_warm = True
            self.server.reach()

    def away(self) -> str:
        """Why the server cannot be asked at this moment; "" if it may be asked."""
        return self.server.away()

    def check(self, plan: Plan) -> tuple[Decision, ...]:
        """Take every cost of the plan, or none."""
        refusal = self.translator.cached_refusal(plan)
        if refusal is not None:
            return refusal
        return self.run(self.translator.request("check", plan))

    def run(self, request: RowsRequest) -> Any:
        return self.server.ask(request) if request.rows else request.without_server()

    def renew(self, plan: Plan) -> tuple[bool | None, ...]:
        """Hold each lease of the plan, by itself, from now on: whether it is held; None: that is not known."""
        outcomes: list[bool | None] = []
        failed = None
        for request in self.lease_requests("renew", plan):
            try:
                outcomes += self.run(request)
            except StoreUnavailable as error:
                failed = error
                outcomes += [None] * len(request.plan)
        if failed is not None and not any(outcome is not None for outcome in outcomes):
            raise failed
        return tuple(outcomes)

    def end_leases(self, plan: Plan) -> tuple[Decision, ...]:
        """Let each lease of the plan keep only ``cost`` places."""
        return tuple(
            [decision for request in self.lease_requests("end_leases", plan) for decision in self.run(request)]
        )

    def settle(self) -> None:
        """Charge what the fallback admitted, as far as the server can be asked."""
        while self.fallback.owing and not self.away():
            charges = self.charges()
            self.send_all(charges)
            if any(charge.has_failed for charge in charges):
                return

    def send_all(self, requests: Sequence[Any]) -> None:
        """Send requests whose answers no caller waits for, in batches; those that fail are told."""
        for request in requests:
            request.future = NobodyWaits()
        for at in range(0, len(requests), MOST_REQUESTS):
            self.server.deliver(list(requests[at : at + MOST_REQUESTS]), monotonic())

    def close(self) -> None:
        """Charge what is owed, and close the connection."""
        self.settle()
        if self.renewer is not None:
            self.renewer.close()
        self.server.close()
        stores.discard(self)


class PostgresServer(ReachedServer):
    """The server as threads ask it: one connection, and one statement for all that wait."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store.settings, store.clock, store.gives_time)
        self.store = ref(store)  # not a cycle: a store that nobody closes is freed at once
        self.owing = store.fallback.owing
        self.charges = self.owed
        self.wire = allocate_lock()  # held by the thread that uses the connection
        self.settling = allocate_lock()  # held by the thread that charges what is owed
        self.settle_at = 0.0  # not before that instant again
        self.combiner = Combiner(self.deliver, self.speak, self.name)  # type: ignore[arg-type]

    def owed(self) -> list[Any]:
        store = self.store()
        return [] if store is None else store.charges()

    def ask(self, request: RowsRequest) -> Any:
        """The answer to ``request``, in a statement of its own or with those of other threads."""
        if self.breaker.is_open:
            raise StoreUnavailable(self.name, self.away() or self.breaker.why)
        deadline = max(self.settings.deadline, self.first_until - monotonic())
        answer = self.combiner.ask(request, deadline)  # type: ignore[arg-type]
        if self.owing:
            self.settle_later()
        return answer

    def speak(self, request: AnyRequest, since: float) -> Any:
        return self.exchange([request], since)[0]

    def deliver(self, requests: list[AnyRequest], since: float) -> None:
        """Settle all requests in one statement."""
        try:
            answers = self.exchange(requests, since)
        except StoreUnavailable as error:
            for request in requests:
                if not request.future.done():
                    request.fail(error)
        else:
            for request, answer in zip(requests, answers, strict=True):
                if not request.future.done():
                    request.future.set_result(answer)

    def exchange(self, requests: list[AnyRequest], since: float) -> list[Any]:
        """The answer to each request: sent again only if the server says that it did not run."""
        until = max(since + self.settings.deadline, self.first_until)
        if not self.wire.acquire(True, max(0.0, until - monotonic())):
            raise StoreUnavailable(self.name, "was busy until the deadline")
        try:
            for tried in range(1, MOST_TRIES + 1):
                connection = self.ready(until)
                until = max(until, self.first_until)
                sent = self.clock.nanos()
                try:
                    reply = connection.ask(self.words(requests), until)
                except Exception as error:
                    try:
                        raise self.judge(connection, error, tried == MOST_TRIES or monotonic() >= until) from error
                    except NotRun:
                        continue
                except BaseException:  # an interruption: the connection has half a statement on it
                    self.drop(connection)
                    raise
                return self.read(reply, requests, sent)
            raise StoreUnavailable(self.name, "did not run the statement in several tries")
        finally:
            self.wire.release()

    def ready(self, until: float) -> PostgresConnection:
        """The open connection, or a new one if it was closed while it was idle."""
        connection, now = self.connection, monotonic()
        if connection is not None and connection.is_stale():
            self.drop(connection, is_idle=True)
            connection = None
        if connection is None:
            if self.breaker.is_open:
                raise StoreUnavailable(self.name, self.away() or self.breaker.why)
            self.reach().wait(max(0.0, until - now))
            connection = self.connection
        if connection is None:
            why = f"could not be reached within {self.patience * 1000:g} ms"
            if self.breaker.is_open:
                why = self.breaker.why
            else:
                self.trip(why)
            raise StoreUnavailable(self.name, why)
        return connection

    def settle_later(self) -> None:
        """Charge what is owed beside the callers, for whom it would take too long."""
        if monotonic() >= self.settle_at and self.settling.acquire(False):
            threading.Thread(target=self.settle_now, name="ratekeeper-settle", daemon=True).start()

    def settle_now(self) -> None:
        try:
            store = self.store()
            if store is not None:
                store.send_all(store.charges())
        finally:
            self.settle_at = monotonic() + SETTLE_AGAIN
            self.settling.release()


# A child process must not speak on its parent's connection, nor close it for the parent.
stores: WeakSet[PostgresStore] = WeakSet()


def after_fork() -> None:
    for store in list(stores):
        forget(store.server)
        store.fallback.forget_owed()
        store.open()


os.register_at_fork(after_in_child=after_fork)

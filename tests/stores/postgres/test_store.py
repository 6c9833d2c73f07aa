"""The Postgres store, sync and async: the contract of every store, on a real server."""

import asyncio
import itertools
import threading

import pytest
from anyio.from_thread import start_blocking_portal

from ratekeeper.stores.postgres.aio_store import AsyncPostgresStore
from ratekeeper.stores.postgres.store import PostgresStore
from ratekeeper.testing import StoreContract, TimedStoreContract
from tests import tier
from tests.stores.prepared import ThroughPrepared, ThroughTables

secrets = itertools.count()


class OnServer:
    """A store of its own for each test: another secret, so other keys in the same table."""

    @pytest.fixture(autouse=True)
    def server(self, postgres_server):
        self.url = postgres_server.url
        self.options = {"secret": f"t{next(secrets)}", "deadline": 20.0}
        self.setup()
        yield
        self.teardown()
        endless = "SELECT count(*) FROM ratekeeper.state WHERE expires_at > 1e6 * 86400 * (365 * 60)"
        assert postgres_server.run(endless) == [(0,)]  # whatever a store did, all of it ends
        postgres_server.run("TRUNCATE ratekeeper.state")

    def setup_method(self):
        """Waits for the server: see setup."""

    def teardown_method(self):
        pass

    def setup(self):
        self.contract.setup_method(self)

    def teardown(self):
        self.store.close()


@pytest.mark.full  # the same promises by another way
class TestPostgresStore(OnServer, StoreContract):
    contract = StoreContract

    def make_store(self):
        return PostgresStore(self.url, **self.options)


@pytest.mark.full  # the same promises by another way
class TestPostgresStoreThroughPrepared(ThroughPrepared, TestPostgresStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestPostgresStoreThroughTables(ThroughTables, TestPostgresStore):
    pass


class TestTimedPostgresStore(OnServer, TimedStoreContract):
    contract = TimedStoreContract
    STEPS = tier.steps(160, 40)

    def make_store(self):
        # A refusal that is remembered does not mend a state from the future in the store.
        return PostgresStore(self.url, clock=self.clock, deny_cache=False, **self.options)


@pytest.mark.full  # the same promises by another way
class TestTimedPostgresStoreThroughPrepared(ThroughPrepared, TestTimedPostgresStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestTimedPostgresStoreThroughTables(ThroughTables, TestTimedPostgresStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncPostgresStore(OnServer, TimedStoreContract):
    contract = TimedStoreContract
    STEPS = tier.steps(160, 10)

    def setup(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        super().setup()

    def make_store(self):
        return AsyncPostgresStore(self.url, clock=self.clock, deny_cache=False, **self.options)

    def ask(self, operation, *arguments):
        async def answer():
            return await getattr(self.store, operation)(*arguments)

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result()

    def teardown(self):
        self.ask("close")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.mark.full  # the same promises by another way
class TestAsyncPostgresStoreThroughPrepared(ThroughPrepared, TestAsyncPostgresStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncPostgresStoreThroughTables(ThroughTables, TestAsyncPostgresStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncPostgresStoreOnTrio(TestAsyncPostgresStore):
    STEPS = tier.steps(20, 5)  # each step goes through a thread

    def setup(self):
        self.opened = start_blocking_portal("trio")
        self.portal = self.opened.__enter__()
        self.contract.setup_method(self)

    def ask(self, operation, *arguments):
        return self.portal.call(getattr(self.store, operation), *arguments)

    def teardown(self):
        self.ask("close")
        self.opened.__exit__(None, None, None)

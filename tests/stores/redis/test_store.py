"""The Redis and Valkey store, sync and async: the contract of every store, on real servers."""

import asyncio
import itertools
import threading

import pytest
from anyio.from_thread import start_blocking_portal

from ratekeeper import Limit
from ratekeeper.limit import parse_limits
from ratekeeper.stores.redis import connection as link
from ratekeeper.stores.redis.aio_store import AsyncRedisStore
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.testing import StoreContract, TimedStoreContract
from tests import tier
from tests.stores.prepared import ThroughPrepared, ThroughTables

prefixes = itertools.count()
ENDLESS = -1  # how a server tells of a key without an end; one that ended just now is -2


class OnServer:
    """A store of its own for each test: another prefix on the same server."""

    @pytest.fixture(autouse=True, params=["redis_server", "valkey_server"])
    def server(self, request):
        yield from self.on(request.getfixturevalue(request.param))

    def on(self, server):
        self.url = server.url
        self.options = {"prefix": f"t{next(prefixes)}", "deadline": 10.0}
        self.setup()
        yield
        self.teardown()
        client = server.client()
        names = list(client.scan_iter(self.options["prefix"] + ":*", count=100_000))
        assert ENDLESS not in [client.pttl(name) for name in names]  # whatever a store did, all of it ends
        client.delete("-", *names)  # the next test need not step over them

    def setup_method(self):
        """Waits for the server: see setup."""

    def teardown_method(self):
        pass

    def teardown(self):
        self.store.close()


class TestRedisStore(OnServer, StoreContract):
    def setup(self):
        StoreContract.setup_method(self)

    def make_store(self):
        return RedisStore(self.url, **self.options)


@pytest.mark.full  # the same promises by another way
class TestRedisStoreThroughPrepared(ThroughPrepared, TestRedisStore):
    @pytest.fixture(autouse=True)
    def server(self, redis_server):
        yield from self.on(redis_server)


@pytest.mark.full  # the same promises by another way
class TestRedisStoreThroughTables(ThroughTables, TestRedisStore):
    @pytest.fixture(autouse=True)
    def server(self, redis_server):
        yield from self.on(redis_server)


@pytest.mark.full  # the same promises by another way
class TestRedisStoreWithoutCore(TestRedisStore):
    """Threads that take turns in Python."""

    @pytest.fixture(autouse=True)
    def server(self, redis_server, monkeypatch):
        monkeypatch.setattr(link, "core", None)
        yield from self.on(redis_server)


class TestTimedRedisStore(OnServer, TimedStoreContract):
    def setup(self):
        TimedStoreContract.setup_method(self)

    def make_store(self):
        # A refusal that is remembered does not mend a state from the future in the store: see test_refusal_cache.py.
        return RedisStore(self.url, clock=self.clock, deny_cache=False, **self.options)

    def test_long_logs_walk_like_short_ones(self):
        for seed, text in enumerate(["129/second", "300 per 7 seconds", "1000/minute"]):
            limit = Limit.parse(text, "sliding_log")
            self.walk(limit, seed, steps=tier.steps(600, 200))
            self.walk(parse_limits([limit, "20/second", "9/second sliding_log"]), 100 + seed, steps=tier.steps(60, 20))


class TestAsyncRedisStore(OnServer, TimedStoreContract):
    @pytest.fixture(autouse=True)
    def server(self, redis_server):
        yield from self.on(redis_server)

    def setup(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        TimedStoreContract.setup_method(self)

    def make_store(self):
        return AsyncRedisStore(self.url, clock=self.clock, deny_cache=False, **self.options)

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
class TestAsyncRedisStoreOnTrio(TestAsyncRedisStore):
    if not tier.FULL:  # thousands of steps, each through a thread; the other loop walks them in the quick tier too
        test_answers_are_those_of_the_pure_rule_step_by_step = None

    def setup(self):
        self.opened = start_blocking_portal("trio")
        self.portal = self.opened.__enter__()
        TimedStoreContract.setup_method(self)

    def ask(self, operation, *arguments):
        return self.portal.call(getattr(self.store, operation), *arguments)

    def teardown(self):
        self.ask("close")
        self.opened.__exit__(None, None, None)


@pytest.mark.full  # the same promises by another way
class TestTimedRedisStoreThroughPrepared(ThroughPrepared, TestTimedRedisStore):
    @pytest.fixture(autouse=True)
    def server(self, redis_server):
        yield from self.on(redis_server)


@pytest.mark.full  # the same promises by another way
class TestTimedRedisStoreThroughTables(ThroughTables, TestTimedRedisStore):
    @pytest.fixture(autouse=True)
    def server(self, redis_server):
        yield from self.on(redis_server)


@pytest.mark.full  # the same promises by another way
class TestAsyncRedisStoreThroughPrepared(ThroughPrepared, TestAsyncRedisStore):
    pass


@pytest.mark.full  # the same promises by another way
class TestAsyncRedisStoreThroughTables(ThroughTables, TestAsyncRedisStore):
    pass

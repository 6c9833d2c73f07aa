"""Memcached, on a real server: the contract of every store, two processes, a server that restarts."""

import asyncio
import itertools
import os

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.errors import InvalidStore
from ratekeeper.stores import MemcachedStore, open_store
from ratekeeper.testing import StoreContract, TimedStoreContract
from tests.servers import closed_port
from tests.stores.processes import at_once
from tests.stores.test_sqlite import COUNT, PLANS

LIMIT = Limit.parse("5 per 50 days")
prefixes = itertools.count()


class OnMemcached:
    @pytest.fixture(autouse=True)
    def server(self, memcached_server):
        self.url = memcached_server.url
        self.prefix = f"t{os.getpid()}.{next(prefixes)}"
        self.setup()
        yield
        self.store.close()

    def setup_method(self):
        """Waits for the server: see setup."""

    def teardown_method(self):
        pass


@pytest.mark.full  # the other contract has all of it, on a clock of its own
class TestMemcachedStore(OnMemcached, StoreContract):
    def setup(self):
        StoreContract.setup_method(self)

    def make_store(self):
        return MemcachedStore(self.url, deadline=30, prefix=self.prefix)


class TestMemcachedStoreOverTime(OnMemcached, TimedStoreContract):
    def setup(self):
        TimedStoreContract.setup_method(self)

    def make_store(self):
        return MemcachedStore(self.url, deadline=30, prefix=self.prefix, clock=self.clock)


@pytest.fixture
def url(memcached_server):
    return f"{memcached_server.url}?prefix=t{os.getpid()}.{next(prefixes)}"


@pytest.mark.parametrize("limits", ["50 per 50 days", ["50 per 50 days sliding_log", "70/day fixed_window"]])
def test_processes_get_exactly_the_limit(url, two_processes, limits):
    script = COUNT.format(url=url, limits=limits, calls=20, threads=2)
    assert sum(int(printed) for printed in at_once(two_processes, script)) == 50


def test_plans_of_two_processes_take_all_or_nothing(url, two_processes):
    rows = [("roomy", "90 per 50 days"), ("tight", "30 per 50 days")]
    script = PLANS.format(url=url, rows=rows, calls=25)
    assert sum(int(printed) for printed in at_once(two_processes, script)) == 30
    store = open_store(url, deadline=30)
    peeked = store.peek(tuple(Check("s", key, Limit.parse(limit), 1) for key, limit in rows))
    assert [decision.remaining for decision in peeked] == [60, 0]
    store.close()


def test_tasks_on_one_key_share_their_writes(url):
    async def run():
        limiter = AsyncLimiter("1000 per 50 days", store=url, deadline=30)
        assert all(await asyncio.gather(*[limiter.check("hot") for _ in range(200)]))
        assert (await limiter.peek("hot")).remaining == 800
        await limiter.close()

    asyncio.run(run())


def test_a_forked_child_connects_again(url):
    store = open_store(url, deadline=30)
    limiter = Limiter(LIMIT, store=store)
    assert limiter.check("a")
    child = os.fork()
    if not child:
        os._exit(limiter.check("a").remaining)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert limiter.check("a").remaining == 2
    store.close()


def test_a_server_that_is_not_there_falls_back():
    with closed_port() as port:
        store = MemcachedStore(f"memcached://127.0.0.1:{port}", deadline=30)
        limiter = Limiter("10 per 50 days", store=store)
        decisions = [limiter.check("a") for _ in range(8)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 3  # half of the limit
        assert all(decision.reason.startswith("local: gave an error (ConnectionRefusedError") for decision in decisions)
        store.close()


def test_a_log_that_does_not_fit_a_record_is_refused_at_once(url):
    with pytest.raises(
        InvalidStore, match=r"fits a record of 1,000,000 bytes, got '200000/day sliding_log', which needs 1,600,000"
    ):
        Limiter("200000/day sliding_log", store=url)


@pytest.mark.parametrize("url", ["memcached://", "memcached://user:secret@host", "memcached://host/0"])
def test_a_wrong_url_is_told(url):
    with pytest.raises(InvalidStore) as caught:
        open_store(url)
    assert str(caught.value) == (
        "store memcached://: expected a host and a port, as memcached://localhost:11211, and no user, password or "
        "path, got something else."
    )

"""SQLite: the contract of every store, two processes on one file, a process that is killed, a file that is damaged."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from ratekeeper import AsyncLimiter, Limit, Limiter
from ratekeeper.check import Check
from ratekeeper.errors import InvalidStore, StoreUnavailable
from ratekeeper.stores import SQLiteStore, open_store, sqlite
from ratekeeper.testing import StoreContract, TimedStoreContract
from tests.stores.processes import at_once

LIMIT = Limit.parse("5 per 50 days")


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/limits.db"


class InFile:
    @pytest.fixture(autouse=True)
    def file(self, url):
        self.url = url
        self.setup()
        yield
        self.store.close()

    def setup_method(self):
        """Waits for the folder: see setup."""

    def teardown_method(self):
        pass


@pytest.mark.full  # the other contract has all of it, on a clock of its own
class TestSQLiteStore(InFile, StoreContract):
    def setup(self):
        StoreContract.setup_method(self)

    def make_store(self):
        return SQLiteStore(self.url, deadline=30)


class TestSQLiteStoreOverTime(InFile, TimedStoreContract):
    def setup(self):
        TimedStoreContract.setup_method(self)

    def make_store(self):
        return SQLiteStore(self.url, deadline=30, clock=self.clock)


COUNT = """
from ratekeeper import Limiter
import threading
store_url, limits, calls, threads = {url!r}, {limits!r}, {calls}, {threads}
limiter = Limiter(limits, store=store_url, deadline=60)
admitted = []
def run():
    admitted.append(sum(bool(limiter.check("k")) for _ in range(calls)))
workers = [threading.Thread(target=run) for _ in range(threads)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
limiter.close()
print(sum(admitted))
"""


@pytest.mark.parametrize("limits", ["50 per 50 days", ["50 per 50 days sliding_log", "70/day fixed_window"]])
def test_processes_get_exactly_the_limit(url, two_processes, limits):
    script = COUNT.format(url=url, limits=limits, calls=20, threads=2)
    assert sum(int(printed) for printed in at_once(two_processes, script)) == 50


PLANS = """
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores import open_store
store = open_store({url!r}, deadline=60)
plan = tuple(Check("s", key, parse_limits(limit), 1) for key, limit in {rows!r})
print(sum(all(store.check(plan)) for _ in range({calls})))
store.close()
"""


def test_plans_of_two_processes_are_all_or_nothing(url, two_processes):
    rows = [("roomy", "90 per 50 days"), ("tight", "30 per 50 days")]
    script = PLANS.format(url=url, rows=rows, calls=25)
    assert sum(int(printed) for printed in at_once(two_processes, script)) == 30
    store = open_store(url)
    peeked = store.peek(tuple(Check("s", key, Limit.parse(limit), 1) for key, limit in rows))
    assert [decision.remaining for decision in peeked] == [60, 0]
    store.close()


def test_a_process_that_is_killed_in_a_transaction_leaves_nothing_of_it(url):
    script = f"""
import os, signal
from ratekeeper.check import Check
from ratekeeper.limit import parse_limits
from ratekeeper.stores import SQLiteStore
store = SQLiteStore({url!r})
plan = tuple(Check("s", key, parse_limits("5 per 50 days"), 1) for key in "ab")
store.check(plan)
write = store.compare_and_set_all
def killed(changes):
    write(changes)  # written, but not committed
    os.kill(os.getpid(), signal.SIGKILL)
store.compare_and_set_all = killed
store.check(plan)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    store = SQLiteStore(url)
    assert [decision.remaining for decision in store.peek(tuple(Check("s", key, LIMIT, 1) for key in "ab"))] == [4, 4]
    assert all(store.check(tuple(Check("s", key, LIMIT, 1) for key in "ab")))  # and no lock
    store.close()


def test_a_file_outlives_its_processes(url):
    for expected in (True, True, False):
        with Limiter("2 per 50 days", store=url) as limiter:
            assert limiter.check("a").allowed is expected


def test_a_forked_child_opens_the_file_again(url):
    store = SQLiteStore(url, deadline=30)
    limiter = Limiter(LIMIT, store=store)
    assert limiter.check("a")
    child = os.fork()
    if not child:
        os._exit(limiter.check("a").remaining)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert limiter.check("a").remaining == 2
    store.close()


def test_tasks_share_a_transaction(url):
    async def run():
        limiter = AsyncLimiter("1000 per 50 days", store=url, deadline=30)
        decisions = await asyncio.gather(*[limiter.check(f"k{number % 4}") for number in range(200)])
        assert all(decisions)
        assert limiter.store.store.transactions <= 2
        assert [(await limiter.peek(f"k{number}")).remaining for number in range(4)] == [950] * 4
        await limiter.close()

    asyncio.run(run())


def test_a_file_that_others_keep_locked_falls_back_at_the_deadline(url):
    store = SQLiteStore(url, deadline=0.01)
    limiter = Limiter(LIMIT, store=store)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="was locked by other processes for 10 ms") as caught:
        store.check((Check(limiter.name, "a", LIMIT, 1),))
    assert caught.value.charged is False
    assert limiter.check("a").reason == "local: was locked by other processes for 10 ms"
    assert not store.breaker.is_open  # it is busy, not away
    assert limiter.peek("a").remaining == 5  # readers do not wait
    other.execute("ROLLBACK")
    store.deadline = 30
    assert limiter.check("a").reason == ""
    other.close()
    store.close()


def test_a_refusal_needs_no_lock(url):
    store = SQLiteStore(url, deadline=30)
    limiter = Limiter("1 per 50 days", store=store)
    assert limiter.check("a")
    assert limiter.check("b")
    transactions = store.transactions
    assert not any(limiter.check("a") for _ in range(10))
    assert store.transactions == transactions
    store.close()


def test_expired_records_are_swept(url, monkeypatch):
    monkeypatch.setattr(sqlite, "SWEEP_EVERY", 4)
    store = SQLiteStore(url, deadline=30)
    limiter = Limiter("100/second", store=store)
    for number in range(20):
        limiter.check(f"k{number}")
    store.connection.execute("UPDATE ratekeeper_records SET expires_at = 1")
    for number in range(8):
        limiter.check(f"new{number}")
    (left,) = store.connection.execute("SELECT count(*) FROM ratekeeper_records").fetchone()
    assert left <= 8
    store.close()


def test_a_damaged_record_fails_its_own_key_only(url):
    store = SQLiteStore(url, deadline=30)
    for key in ("a", "b"):
        store.check((Check("s", key, LIMIT, 1),))
    name = store.limits.layout("s", LIMIT).name("a")
    store.connection.execute("UPDATE ratekeeper_records SET value = x'00ff' WHERE name = ?", (name,))
    with pytest.raises(StoreUnavailable, match="has a record that is no state of ours"):
        store.check((Check("s", "a", LIMIT, 1),))
    assert store.check((Check("s", "b", LIMIT, 1),))[0].remaining == 3
    store.reset((Check("s", "a", LIMIT, 1),))
    assert store.check((Check("s", "a", LIMIT, 1),))[0].remaining == 4
    store.close()


def test_a_file_that_is_no_database_is_refused_at_once(tmp_path):
    file = tmp_path / "limits.db"
    file.write_bytes(b"hello" * 1000)
    with pytest.raises(InvalidStore, match=r"expected a database that this process may read and write, got 'file is "):
        SQLiteStore(f"sqlite:///{file}")
    with pytest.raises(InvalidStore, match="unable to open database file"):
        SQLiteStore(f"sqlite:///{tmp_path}/no/folder.db")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "expected a path, as sqlite:///limits.db or sqlite:////var/lib/app/limits.db, got none."),
        ("sqlite://x.db", "expected a path, as sqlite:///limits.db or sqlite:////var/lib/app/limits.db, got a host."),
        ("sqlite:///x.db?dedline=1", "expected a known option, got 'dedline'. Did you mean 'deadline'?"),
        ("sqlite:///x.db?deadline=soon", "expected deadline to be seconds, or milliseconds such as 50ms, got 'soon'."),
    ],
)  # fmt: skip
def test_a_wrong_url_is_told(url, message):
    with pytest.raises(InvalidStore) as caught:
        open_store(url)
    assert str(caught.value) == f"store sqlite://: {message}"


def test_no_thread_meets_the_transaction_of_another(url):
    store = SQLiteStore(url, deadline=60)
    limiters = [Limiter(f"40 per {days} days", store=store) for days in (50, 60, 70)]
    counts = [[], [], []]

    def run(place):
        counts[place].append(sum(bool(limiters[place].check("k")) for _ in range(30)))

    threads = [threading.Thread(target=run, args=(place,)) for place in (0, 0, 1, 1, 2, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [sum(count) for count in counts] == [40, 40, 40]
    store.close()

"""The store in shared memory: the contract, several processes, what it refuses, and what it leaves behind."""

import os
import stat
import subprocess
import sys
import uuid

import pytest

from ratekeeper import AsyncLimiter, InvalidStore, Limiter, native
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import Limit
from ratekeeper.testing import TimedStoreContract
from tests.stores.prepared import ThroughPrepared, ThroughTables
from tests.stores.processes import at_once

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import SharedStore, bytes_needed, remove, segments


class TestSharedStore(TimedStoreContract):
    def make_store(self):
        self.name = f"test-{uuid.uuid4().hex}"
        return SharedStore(self.name, clock=self.clock, max_keys=1_000)

    def teardown_method(self):
        self.store.close()
        remove(self.name)


class TestSharedStoreInTwoMappings(TestSharedStore):
    """Every call goes through another mapping of the same memory, as another process would have it."""

    def setup_method(self):
        super().setup_method()
        self.stores = [self.store, SharedStore(self.name, clock=self.clock, max_keys=1_000)]

    def ask(self, operation, *arguments):
        self.stores.reverse()
        return getattr(self.stores[0], operation)(*arguments)

    def teardown_method(self):
        for store in self.stores:
            store.close()
        remove(self.name)


class TestSharedStoreThroughPrepared(ThroughPrepared, TestSharedStoreInTwoMappings):
    pass


class TestSharedStoreThroughTables(ThroughTables, TestSharedStore):
    pass


OPEN = """
from ratekeeper import Limiter
limiter = Limiter({limits!r}, store="shm://{name}")
"""
COUNT = 'print(sum(bool(limiter.check(f"k{number % 3}")) for number in range(3_000)))'


@pytest.mark.parametrize("limits", [*[f"500 per 300 days {name}" for name in ALGORITHMS], "several", "sliced"])
def test_processes_are_admitted_exactly_the_limit(name, limits, two_processes):
    if limits == "several":
        limits = ["500 per 300 days", "600 per 300 days sliding_log", "700 per 300 days fixed_window"]
    elif limits == "sliced":
        limits = "500 per 300 days sliding_window slices 4"
    at_once(two_processes, OPEN.format(limits=limits, name=name))
    assert sum(map(int, at_once(two_processes, COUNT, fresh=False))) == 1_500


PLANS = """
from ratekeeper.check import Check; from ratekeeper.limit import Limit
from ratekeeper.stores.shared import SharedStore
store = SharedStore({name!r})
roomy, tight = Limit.parse("900 per 300 days"), Limit.parse("500 per 300 days sliding_log")
taken = 0
for number in range(2_000):
    plan = (Check("one", "a", roomy, 1), Check("two", "b", tight, 1), Check("one", "c", roomy, 1))
    taken += all(store.check(plan if number % 2 else plan[::-1]))
    store.table("one", roomy).check("d")
print(taken)
"""


def test_plans_of_several_processes_are_all_or_nothing(name, two_processes):
    assert sum(map(int, at_once(two_processes, PLANS.format(name=name)))) == 500
    limits = {"a": "900 per 300 days", "c": "900 per 300 days", "d": "900 per 300 days"}
    with SharedStore_(name) as store:
        left = {key: Limiter(limit, store=store, name="one").peek(key).remaining for key, limit in limits.items()}
    assert left == {"a": 400, "c": 400, "d": 0}


class SharedStore_(SharedStore):
    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def test_a_fork_shares_and_the_state_outlives_the_last_process(name):
    limiter = Limiter("5/hour", store=f"shm://{name}")
    assert limiter.check("k")
    child = os.fork()
    if not child:
        os._exit(sum(limiter.check("k").allowed for _ in range(2)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    assert limiter.peek("k").remaining == 2
    limiter.close()
    assert [segment.in_use for segment in segments() if segment.name == name] == [False]
    assert Limiter("5/hour", store=f"shm://{name}").check("k").remaining == 1


FORK = """
import os, threading
from ratekeeper import Limit, Limiter
from ratekeeper.stores.native import NativeStore
from ratekeeper.stores.shared import SharedStore
stores = [NativeStore(), SharedStore({name!r}, max_keys=10)]
stop = False
def run():
    number = 0
    while not stop:
        number += 1
        stores[0].table("s", Limit(number % 1000 + 1, "hour"), strict=True)
        stores[1].table("s", Limit(number % 5 + 1, "hour"))
        if not number % 5:
            stores[1].tables.clear()
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads:
    thread.start()
for turn in range(30):
    child = os.fork()
    if not child:
        for store in stores:
            store.table("s", Limit(turn % 5 + 1, "day")).check("k")
        os._exit(0)
    os.waitpid(child, 0)
stop = True
for thread in threads:
    thread.join()
print("ok")
"""


def test_a_fork_under_load_leaves_no_lock_behind(name, two_processes):
    assert two_processes[0].run(FORK.format(name=name)) == "ok\n"


def test_async_limiters_use_it_too(name):
    import asyncio

    async def main():
        async with AsyncLimiter("2/hour", store=f"shm://{name}") as limiter:
            return [(await limiter.check("k")).allowed for _ in range(3)]

    assert asyncio.run(main()) == [True, True, False]


def test_a_path_of_ones_own(tmp_path):
    limiter = Limiter("2/hour", store=f"shm://{tmp_path}/limits")
    assert limiter.check("k")
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in os.scandir(tmp_path / "limits")}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE(os.stat(tmp_path / "limits").st_mode) == 0o700
    limiter.close()
    remove(f"{tmp_path}/limits")
    assert not (tmp_path / "limits").exists()


def test_a_group_may_share_it(tmp_path):
    before = os.umask(0o077)  # whatever it is
    try:
        Limiter("2/hour", store=f"shm://{tmp_path}/limits?mode=660").check("k")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "limits").st_mode) == 0o770
    found = os.listdir(tmp_path / "limits")
    assert {stat.S_IMODE(os.stat(tmp_path / "limits" / file).st_mode) for file in found} == {0o660}
    assert len(found) == 3


def message(call):
    with pytest.raises(InvalidStore) as caught:
        call()
    return str(caught.value)


LITTLE_MEMORY = """
import resource
from ratekeeper import InvalidStore, Limiter
limiter = Limiter("5/minute", store="shm://{name}?max_keys=1000")
resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))
try:
    Limiter("6/minute", store="shm://{name}?max_keys=20000000")
except InvalidStore as error:
    print(error)
assert limiter.check("k")
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer itself needs terabytes")
def test_memory_that_cannot_be_mapped_is_refused(name):
    words = [sys.executable, "-c", LITTLE_MEMORY.format(name=name)]
    text = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True).stdout
    assert "bytes of free space in" in text
    assert "got Cannot allocate memory. Lower max_keys" in text


def test_a_log_beyond_the_ring_is_refused(name):
    assert message(lambda: Limiter("1025/day sliding_log", store=f"shm://{name}")) == (
        f"shm://{name}: expected a sliding_log of at most 1,024, as every key has room for all its instants, "
        "got '1025/day sliding_log'. Use sliding_window, or another store."
    )
    assert Limiter("1024/day sliding_log", store=f"shm://{name}?max_keys=100").check("k", cost=1024)


def test_memory_that_is_not_there_is_refused(name):
    text = message(lambda: Limiter("5/minute", store=f"shm://{name}?max_keys=1000000000000"))
    assert text.startswith(f"shm://{name}: expected 32,")
    assert text.endswith(". Lower max_keys, or give the container more shared memory.")


@pytest.mark.parametrize("wrong", ["", "a b", "../x", "a/b", "ä", "x" * 101])
def test_a_name_is_simple(wrong):
    assert message(lambda: Limiter("5/minute", store=f"shm://{wrong}")).startswith(
        "store 'shm://': expected a name of letters, digits, dots and dashes, or an absolute path, got "
    )


@pytest.mark.parametrize("query", ["max_keys=x", "mode=9", "mode=66", "size=1"])
def test_a_query_is_understood_or_refused(name, query):
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}?{query}")).endswith(
        "expected max_keys=NUMBER, max_bytes=NUMBER, table_bytes=NUMBER, mode=660 or owner=NUMBER after '?', "
        f"got '{query}'."
    )


PURE = """
import ratekeeper
try:
    ratekeeper.Limiter("1/second", store="shm://x")
except ratekeeper.InvalidStore as error:
    print(error)
"""


def test_without_the_native_core_it_says_so():
    pure = {**os.environ, "RATEKEEPER_PURE": "1"}
    done = subprocess.run([sys.executable, "-c", PURE], capture_output=True, text=True, env=pure)
    assert done.stdout.startswith("store 'shm://': expected the native core, but RATEKEEPER_PURE is set. "), done.stderr


def test_a_flood_resets_nobody_who_is_at_the_limit(name):
    for algorithm in ALGORITHMS:
        limiter = Limiter(f"5/day {algorithm}", store=f"shm://{name}?max_keys=2000")
        victims = [f"victim {number}" for number in range(1_000)]
        for victim in victims:
            limiter.check(victim, cost=5)
        for number in range(20_000):
            limiter.check(f"flood {number}")
        assert not any(limiter.check(victim) for victim in victims)


def test_a_table_is_released_when_nobody_has_it_in_memory(name):
    one, other = (SharedStore(name, max_keys=1_000) for _ in range(2))
    limit, near = Limit.parse("10/hour"), Limit.parse("10/hour burst 5")  # the same states
    far = Limit.parse("10/day")
    assert one.table("s", limit).check("k", 3).remaining == 7
    held = other.table("s", near)
    other.table("s", far).check("k")
    assert not one.release("s", limit)
    assert one.peek((Check("s", "k", limit, 1),))[0].remaining == 7  # nothing was lost
    assert not other.release("s", near)  # as the first has it again, and somebody holds a table of it here
    assert one.release("s", limit) is False
    assert held.check("k").remaining == 1
    del held
    assert one.release("s", limit)
    assert one.peek((Check("s", "k", limit, 1),))[0].remaining == 10  # a new one
    assert other.peek((Check("s", "k", far, 1),))[0].remaining == 9
    assert one.release("nobody", limit)
    one.close()
    other.close()


def test_a_table_of_long_logs_reserves_no_gigabytes(name):
    limit = Limit.parse("1024/day sliding_log")
    assert bytes_needed(limit) <= 64 * 2**20
    limiter = Limiter(limit, store=f"shm://{name}")
    (path,) = files.table_files(files.folder_of(name))
    assert os.stat(path).st_blocks * 512 == bytes_needed(limit)
    assert limiter.check("k").remaining == 1023
    assert bytes_needed(limit, 100_000) > 10**9
    assert bytes_needed(Limit.parse("5/minute")) < 4 * 10**6  # a hundred thousand keys
    assert bytes_needed(Limit.parse("unlimited")) == 0


def test_a_table_beyond_max_bytes_is_refused_before_it_is_made(name):
    limits = [Limit.parse(text) for text in ("5/minute", "6/minute", "7/minute", "8/minute")]
    needed = bytes_needed(limits[0], 1_000)
    bound = 3 * needed + 1_000
    store = SharedStore(name, max_keys=1_000, max_bytes=bound)
    for limit in limits[:2]:
        store.table(str(limit), limit)
    store.table(str(limits[2]), limits[2])
    with pytest.raises(InvalidStore) as caught:
        store.table(str(limits[3]), limits[3])
    used = sum(os.stat(path).st_blocks * 512 for path in files.table_files(files.folder_of(name)))
    assert used == 3 * needed
    assert str(caught.value).startswith(
        f"shm://{name}: expected at most {bound:,} bytes of tables (max_bytes), got {used:,} in use and {needed:,} for "
        "1,000 keys of '"
    )
    assert str(caught.value).endswith("/minute'. Raise max_bytes, or use fewer limits.")
    store.close()


@pytest.mark.full  # it makes ten thousand files
def test_ten_thousand_rules_fit_in_256_megabytes(name):
    store = SharedStore(name, max_bytes=256 * 2**20)
    for number in range(10_000):
        store.table(f"rule {number}", Limit(1 + number % 50, "minute"))
        if number % 500 == 0:
            store.tables.clear()
            store.states_by_layout.clear()  # let go of the mappings, not of the files
    used = sum(os.stat(path).st_blocks * 512 for path in files.table_files(files.folder_of(name)))
    assert used <= 256 * 2**20
    store.close()

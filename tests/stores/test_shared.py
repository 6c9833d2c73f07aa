"""The store in shared memory: the contract, several processes, what it refuses, and what it leaves behind."""

import json
import os
import stat
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratekeeper import AsyncLimiter, InvalidStore, Limiter, native
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.check import Check
from ratekeeper.limit import Limit
from ratekeeper.testing import FakeClock, TimedStoreContract
from tests.stores.prepared import ThroughPrepared, ThroughTables
from tests.stores.processes import at_once

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import SharedStore, remove, segments


@pytest.fixture
def name():
    found = f"test-{uuid.uuid4().hex}"
    yield found
    if found in [segment.name for segment in segments()]:
        remove(found, force=True)


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


def test_another_limit_of_the_same_name_is_refused(name):
    Limiter("5/minute", name="login", store=f"shm://{name}")
    for other in ("6/minute", "5/minute fixed_window", ["5/minute", "9/hour"]):
        text = str(other) if isinstance(other, str) else ", ".join(other)
        assert message(lambda other=other: Limiter(other, name="login", store=f"shm://{name}")) == (
            f"shm://{name}: expected the limit that other processes have for 'login', '5/minute', got '{text}'. "
            "Give one of them another name. To start afresh, stop the others and call "
            f"ratekeeper.stores.shared.remove('{name}')."
        )
    assert Limiter("5/minute", name="login", store=f"shm://{name}").check("k")
    assert Limiter("6/minute", store=f"shm://{name}").check("k")


def test_other_facts_that_differ_are_refused(name):
    Limiter("5/minute", store=f"shm://{name}?max_keys=500")
    again = "To start afresh, stop the others and call ratekeeper.stores.shared.remove"
    assert Limiter("5/minute", store=f"shm://{name}").check("k")
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}?max_keys=600")) == (
        f"shm://{name}: expected the max_keys that other processes have for '5/minute', 500, got 600. "
        f"{again}('{name}')."
    )
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}", clock=FakeClock())) == (
        f"shm://{name}: expected the clock that other processes have for '5/minute', 'monotonic', got 'given'. "
        f"{again}('{name}')."
    )


def rewrite(name, change):
    (path,) = files.table_files(files.folder_of(name))
    with open(path, "r+b") as file:
        magic, rest = file.read(files.HEAD).rstrip(b"\0").split(b"\n", 1)
        magic, head = change(magic, json.loads(rest))
        file.seek(0)
        file.write((magic + b"\n" + json.dumps(head).encode()).ljust(files.HEAD, b"\0"))
    return path


def test_a_table_of_another_version_is_refused(name):
    Limiter("5/minute", store=f"shm://{name}").check("k")
    path = rewrite(name, lambda magic, head: (b"ratekeeper table 999", head))
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}")) == (
        f"shm://{name}: expected a table of format 2, got 'ratekeeper table 999' in {path}: another version of "
        f"ratekeeper wrote it. To start afresh, stop the others and call ratekeeper.stores.shared.remove('{name}')."
    )
    assert [segment.tables for segment in segments() if segment.name == name] == [
        (("?", "of another version, or damaged"),)
    ]


def test_another_c_library_is_refused(name):
    Limiter("5/minute", store=f"shm://{name}").check("k")
    rewrite(name, lambda magic, head: (magic, {**head, "build": "musl, guards of 56 bytes, swaps"}))
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}")) == (
        f"shm://{name}: expected the build that other processes have for '5/minute', "
        f"'musl, guards of 56 bytes, swaps', got '{native.core.BUILD}'. To start afresh, stop the others and call "
        f"ratekeeper.stores.shared.remove('{name}')."
    )


def test_a_table_from_before_the_machine_started_is_made_anew(name):
    limiter = Limiter("5/minute", store=f"shm://{name}")
    limiter.check("k", cost=5)
    limiter.close()
    rewrite(name, lambda magic, head: (magic, {**head, "boot": "another-boot"}))
    assert [segment.stale for segment in segments() if segment.name == name] == [True]
    assert Limiter("7/minute", name="5/minute", store=f"shm://{name}").check("k", cost=7)
    assert [segment.stale for segment in segments() if segment.name == name] == [False]


@pytest.mark.parametrize("size", [files.HEAD + 100, 2**24])
def test_a_file_of_another_size_is_refused(name, size):
    Limiter("5/minute", store=f"shm://{name}?max_keys=1000").close()
    (path,) = files.table_files(files.folder_of(name))
    expected = os.stat(path).st_size
    os.truncate(path, size)
    assert message(lambda: Limiter("5/minute", store=f"shm://{name}")) == (
        f"shm://{name}: expected {expected:,} bytes in {path}, got {size:,}: the file is damaged. To start afresh, "
        f"stop the others and call ratekeeper.stores.shared.remove('{name}')."
    )


DAMAGE = {
    "nothing": lambda head: b"",
    "half of it": lambda head: json.dumps(head).encode()[:70],
    "noise": lambda head: bytes(range(1, 256)),
    "a list": lambda head: b"[1, 2]",
    "no seed": lambda head: json.dumps({**head, "seed": ""}).encode(),
    "a wrong seed": lambda head: json.dumps({**head, "seed": "x" * 32}).encode(),
    "no boot": lambda head: json.dumps({**head, "boot": None}).encode(),
    "wordy keys": lambda head: json.dumps({**head, "max_keys": "100"}).encode(),
    "no keys": lambda head: json.dumps({**head, "max_keys": 0}).encode(),
    "too many keys": lambda head: json.dumps({**head, "max_keys": 10**30}).encode(),
    "no identity": lambda head: json.dumps({**head, "identity": -1}).encode(),
    "a fact missing": lambda head: json.dumps({fact: head[fact] for fact in head if fact != "space"}).encode(),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_head_is_refused_listed_and_removed(name, kind):
    Limiter("5/minute", store=f"shm://{name}?max_keys=100").close()
    (path,) = files.table_files(files.folder_of(name))
    with open(path, "r+b") as file:
        magic, rest = file.read(files.HEAD).rstrip(b"\0").split(b"\n", 1)
        file.seek(0)
        file.write((magic + b"\n" + DAMAGE[kind](json.loads(rest))).ljust(files.HEAD, b"\0"))
    for again in ("5/minute", "6/minute"):
        assert message(lambda again=again: Limiter(again, store=f"shm://{name}")) == (
            f"shm://{name}: expected a table that describes itself, got a damaged file, {path}. To start afresh, stop "
            f"the others and call ratekeeper.stores.shared.remove('{name}')."
        )
    (found,) = [segment for segment in segments() if segment.name == name]
    assert found.tables == (("?", "of another version, or damaged"),)
    remove(name)
    assert Limiter("5/minute", store=f"shm://{name}").check("k")


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_another_user_is_refused_and_lists_nothing(name, tmp_path):
    store = SharedStore(name)
    child = os.fork()
    if not child:
        failed = 1
        try:
            os.setuid(65534)
            assert "to be this user's alone" in message(lambda: SharedStore(name))
            assert "got Permission denied" in message(lambda: SharedStore(name, mode=0o660))
            assert name not in [segment.name for segment in segments()]
            assert "got Permission denied" in message(lambda: remove(name, force=True))
            failed = 0
        finally:
            os._exit(failed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    store.close()


def test_a_folder_with_other_files_stays_when_the_state_is_removed(tmp_path):
    Limiter("5/minute", store=f"shm://{tmp_path}/limits").close()
    (tmp_path / "limits" / "notes.txt").write_text("mine")
    remove(f"{tmp_path}/limits")
    assert os.listdir(tmp_path / "limits") == ["notes.txt"]


def test_what_a_killed_process_left_half_made_is_made_again(name):
    SharedStore(name).close()
    with open(f"{files.folder_of(name)}/.draft", "wb") as file:
        file.write(b"half")
    assert Limiter("5/minute", store=f"shm://{name}").check("k")


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
        f"expected max_keys=NUMBER or mode=660 after '?', got '{query}'."
    )


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    os.chmod(tmp_path, 0o777)
    assert "to be this user's alone" in message(lambda: SharedStore(str(tmp_path)))
    target = tmp_path / "file"
    target.write_text("")
    assert "expected a folder at" in message(lambda: SharedStore(str(target)))
    assert "expected to read and write in" in message(lambda: SharedStore(f"{target}/below"))
    (tmp_path / "link").symlink_to("/dev/shm")
    assert "expected a folder at" in message(lambda: SharedStore(str(tmp_path / "link")))


def test_segments_are_listed_and_removed(name):
    store = SharedStore(name)
    Limiter("5/minute", store=store, name="login").check("k")
    (found,) = [segment for segment in segments() if segment.name == name]
    assert (found.in_use, found.stale, found.tables) == (True, False, (("login", "5/minute"),))
    assert found.bytes >= 100_000 * 32
    assert f"one has '{name}' open" in message(lambda: remove(name))
    assert f"remove({name!r})" in repr(store)
    assert store.size() == 1
    store.clear()
    assert store.size() == 0
    store.close()
    remove(name)
    assert name not in [segment.name for segment in segments()]
    assert "expected the name of a segment" in message(lambda: remove(name))


def test_who_only_looks_does_not_use_a_segment(name):
    """Listing takes the lock for a moment: at the same moment another could not remove the segment."""
    store = SharedStore(name)
    path = files.folder_of(name)
    assert files.is_in_use(path)
    store.close()
    with ThreadPoolExecutor(4) as several:
        looks = [several.submit(lambda: [files.is_in_use(path) for _ in range(500)]) for _ in range(4)]
    assert not any(any(look.result()) for look in looks)


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
    far = Limit.parse("11/hour")
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
    assert other.peek((Check("s", "k", far, 1),))[0].remaining == 10
    assert one.release("nobody", limit)
    one.close()
    other.close()

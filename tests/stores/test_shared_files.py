"""Files of shared memory: which are refused, listed, made anew and removed."""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratekeeper import InvalidStore, Limiter, native
from ratekeeper.testing import FakeClock

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import SharedStore, remove, segments


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

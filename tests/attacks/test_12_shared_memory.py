"""A neighbour process that owns, truncates or replaces what is shared, or stops at the wrong instant."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest

from ratekeeper import InvalidStore, Limiter, StoreUnavailable, native

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import SharedStore, remove

LIMITS = [
    "5/minute",
    "5/minute sliding_window slices 4",
    "5/minute sliding_log",
    "3 concurrent",
    ["5/minute", "9/hour"],
]
NOBODY = 65534


@pytest.fixture
def name():
    made = f"test-{uuid.uuid4().hex}"
    yield made
    if os.path.isdir(files.folder_of(made)):
        remove(made, force=True)


def refusal(call):
    with pytest.raises(InvalidStore) as caught:
        call()
    return str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_a_folder_of_another_user_is_refused_even_for_a_group(tmp_path):
    folder = tmp_path / "limits"
    folder.mkdir()
    os.chown(folder, NOBODY, os.getegid())
    os.chmod(folder, 0o770)
    assert refusal(lambda: SharedStore(str(folder), mode=0o660)) == (
        f"shm://{folder}: expected the folder {folder} to be this user's or root's, got owner {NOBODY}, who could "
        f"damage it at any time. Use another name, or say ?owner={NOBODY} if you trust that user."
    )
    assert Limiter("5/minute", store=f"shm://{folder}?mode=660&owner={NOBODY}").check("k")


def test_a_folder_that_everybody_may_write_to_is_refused_even_for_a_group(tmp_path):
    os.chmod(tmp_path, 0o777)
    assert refusal(lambda: SharedStore(str(tmp_path), mode=0o660)) == (
        f"shm://{tmp_path}: expected a folder {tmp_path} that not everybody may write to, got mode 777. "
        "Use another name, or chmod it."
    )


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_something_else_in_the_place_of_a_table_is_refused(name, kind):
    Limiter("5/minute", store=f"shm://{name}?max_keys=100").close()
    (path,) = files.table_files(files.folder_of(name))
    elsewhere = files.folder_of(name) + "/elsewhere"
    os.rename(path, elsewhere)
    if kind == "link":
        os.symlink(elsewhere, path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        os.mkdir(path)
    assert "expected to read and write in" in refusal(lambda: Limiter("5/minute", store=f"shm://{name}"))
    os.rmdir(path) if kind == "folder" else os.unlink(path)
    os.unlink(elsewhere)


TRUNCATE = """
import os, sys
from ratekeeper import Limiter, StoreUnavailable
from ratekeeper.stores import shared_files as files
name, size, *limits = sys.argv[1:]
limiter = Limiter(limits, store=f"shm://{name}?max_keys=5000")
limiter.check("k")
(path,) = files.table_files(files.folder_of(name))
os.truncate(path, int(size))
unavailable = 0
for number in range(200):
    for call in (limiter.check, limiter.peek, limiter.reset):
        try:
            call(f"k{number}")
        except StoreUnavailable:
            unavailable += 1
print(unavailable)
limiter.close()
Limiter("7/minute", store=f"shm://{name}-2?max_keys=100").check("k")  # guards of other tables are as usable as before
"""


@pytest.mark.full  # it starts processes
@pytest.mark.parametrize("size", [0, files.HEAD, files.HEAD + 4096])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_table_that_is_truncated_while_it_is_used_ends_nobody(name, limits, size):
    limits = [limits] if isinstance(limits, str) else limits
    words = [sys.executable, "-c", TRUNCATE, name, str(size), *limits]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert 590 <= int(done.stdout) <= 600  # at most the call that found out answers otherwise
    remove(f"{name}-2", force=True)


OTHER_BUS_ERROR = """
import mmap, os, sys, tempfile
from ratekeeper import Limiter
Limiter("5/minute", store=f"shm://{sys.argv[1]}?max_keys=100").check("k")
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    memory = mmap.mmap(file.fileno(), 4096)
    file.truncate(0)
    memory[0]
"""


def test_a_bus_error_of_the_application_is_its_own(name):
    done = subprocess.run([sys.executable, "-c", OTHER_BUS_ERROR, name], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGBUS


OWNER = """
import os, sys
from ratekeeper import Limiter
limiter = Limiter(sys.argv[2:], store=f"shm://{sys.argv[1]}?max_keys=100")
limiter.check("k")
print(flush=True)
while True:
    for number in range(20):
        limiter.check(f"k{number}")
"""


def answer(limiter, number):
    """The error of a call, or nothing."""
    try:
        limiter.check(f"k{number}")
    except StoreUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("limits", [["9/second sliding_log"], ["9/second", "99/minute"]], ids=str)
def test_a_process_stopped_in_a_decision_delays_others_for_a_bounded_time(name, limits):
    """Stopped again and again until it owns a guard; then the others get an error in time, and their threads run on."""
    words = [sys.executable, "-c", OWNER, name, *limits]
    owner = subprocess.Popen(words, stdout=subprocess.PIPE)
    owner.stdout.readline()
    limiter = Limiter(limits, store=f"shm://{name}?max_keys=100")
    turns, over = [0], threading.Event()

    def run_on():
        while not over.wait(0.002):
            turns[0] += 1

    beside = threading.Thread(target=run_on)
    beside.start()
    try:
        for _ in range(3_000):
            os.kill(owner.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED)
            before, began = turns[0], time.monotonic()
            answers = [answer(limiter, number) for number in range(20)]
            if any(answers):
                assert time.monotonic() - began < 30  # 200 ms on a machine with nothing else to do
                assert turns[0] > before
                assert any("stays locked" in text for text in answers)
                break
            os.kill(owner.pid, signal.SIGCONT)
        else:
            pytest.skip("it was never stopped while it owned a guard")
        owner.kill()
        owner.wait()
        for number in range(20):  # a killed owner is no owner
            limiter.check(f"k{number}")
    finally:
        over.set()
        beside.join()
        owner.kill()
        owner.wait()
        owner.stdout.close()


def test_a_folder_whose_lock_is_held_is_an_error_in_time(name, monkeypatch):
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    store = SharedStore(name)
    held = store.folder.lock_file(".lock", files.fcntl.LOCK_EX)
    assert "another process holds it" in refusal(lambda: Limiter("5/minute", store=f"shm://{name}"))
    os.close(held)
    assert Limiter("5/minute", store=f"shm://{name}").check("k")

"""Segments of shared memory whose guards are damaged: an error in time, never a hang or a crash."""

import asyncio
import os
import subprocess
import sys
import time

import pytest

from ratekeeper import AsyncLimiter, InvalidStore, Limiter, StoreUnavailable, native
from tests import tier

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import remove


def message(call):
    with pytest.raises(InvalidStore) as caught:
        call()
    return str(caught.value)


def write_at(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(files.HEAD + offset)
        file.write(data)


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (16, b"\0\0\0\0"),  # the kind of a mutex that glibc aborts for
        (16, b"\x21\0\0\0"),  # one that the kernel owns
        (0, b"\0\0\0\x80"),  # others wait, but there is no owner
        (0, b"\0\0\x40\x01"),  # an owner above all ids of threads
    ],
)
@pytest.mark.parametrize("limit", ["5/minute", "5/minute sliding_log"])
def test_a_damaged_guard_is_refused_at_opening_and_in_use(name, limit, offset, data):
    limiter = Limiter(limit, store=f"shm://{name}?max_keys=100")
    (path,) = files.table_files(files.folder_of(name))
    write_at(path, offset, data)
    advice = f"stop the others and call ratekeeper.stores.shared.remove('{name}')."
    assert message(lambda: Limiter(limit, store=f"shm://{name}")) == (
        f"shm://{name}: expected a table with sound guards, got a damaged file, {path}. To start afresh, {advice}"
    )
    with pytest.raises(StoreUnavailable) as caught:
        limiter.check("k")
    assert str(caught.value) == (
        f"shm://{name}: expected a guard that is free within 200 ms, got one that is damaged. To start afresh, {advice}"
    )
    assert caught.value.charged is False
    with pytest.raises(StoreUnavailable):
        limiter.peek("k")
    with pytest.raises(StoreUnavailable):
        limiter.store.clear()
    limiter.close()
    remove(name)
    assert Limiter(limit, store=f"shm://{name}").check("k")


@pytest.mark.full  # it waits for the guard
@pytest.mark.parametrize("limit", ["5/minute", "5/minute sliding_log"])
def test_a_guard_with_an_owner_that_does_not_exist_is_waited_for_once(name, limit):
    limiter = Limiter(limit, store=f"shm://{name}?max_keys=100")
    (path,) = files.table_files(files.folder_of(name))
    write_at(path, 0, (2**22 - 1).to_bytes(4, "little"))
    for longest in (10.0, 0.5):  # the second call does not wait
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="got one that stays locked, by a stopped process or because it is"):
            limiter.check("k")
        assert time.monotonic() - began < longest
    write_at(path, 0, bytes(4))  # the owner went on after all
    assert limiter.check("k")


@pytest.mark.full  # it starts processes
def test_segments_of_random_bytes_hang_and_crash_nobody(name):
    script = os.path.join(os.path.dirname(__file__), "damage.py")
    words = [sys.executable, script, name, "0", str(tier.steps(140, 7))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.full  # it waits for the guard, twice
def test_calls_answer_again_after_the_owner_of_a_guard_goes_on(name):
    """The lock word names a process that exists, as if it were stopped while it owns the guard."""
    limiter = Limiter("5/minute sliding_log", store=f"shm://{name}?max_keys=100")
    assert limiter.check("k").remaining == 4
    (path,) = files.table_files(files.folder_of(name))
    write_at(path, 0, os.getppid().to_bytes(4, "little"))
    with pytest.raises(StoreUnavailable):
        limiter.check("k")
    write_at(path, 0, bytes(4))
    assert limiter.check("k").remaining == 3
    write_at(path, 0, os.getppid().to_bytes(4, "little"))
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):  # waits again, as the guard was free in between
        limiter.check("k")
    assert time.monotonic() - began > 0.15


@pytest.mark.parametrize("limit", ["5/minute", "5/minute sliding_log"])
def test_waiting_reserving_and_async_calls_get_the_error_too(name, limit):
    url = f"shm://{name}?max_keys=100"
    limiter, loop_limiter = Limiter(limit, store=url), AsyncLimiter(limit, store=url)
    (path,) = files.table_files(files.folder_of(name))
    write_at(path, 16, bytes(4))
    for call in (limiter.acquire, lambda key: limiter.acquire(key, timeout=1), limiter.reserve, limiter.check):
        with pytest.raises(StoreUnavailable, match="got one that is damaged"):
            call("k")
    for call in (loop_limiter.acquire, loop_limiter.check):
        with pytest.raises(StoreUnavailable, match="got one that is damaged"):
            asyncio.run(awaited(call))


async def awaited(call):
    return await call("k")

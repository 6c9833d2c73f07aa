"""SIGKILL at random, and after every few instructions: nobody waits for the dead, nothing is admitted twice."""

import ctypes
import mmap
import os
import platform
import random
import signal
import sys
import time
import uuid

import pytest

from ratekeeper import Limiter, native
from ratekeeper.algorithms import ALGORITHMS
from tests.native.build import compiled, run

if native.core is None or sys.platform != "linux":
    pytest.skip(native.REASON, allow_module_level=True)

from ratekeeper.stores.shared import remove

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
KILLS = 40 if SHORT else 300
PLAIN = [f"{{count}} per 300 days {name}" for name in ALGORITHMS]
KINDS = [*PLAIN, "{count} per 300 days sliding_window slices 5", "several"]
KEYS = 40


def work(limits, name, counters, place):
    """Ask for ever, and note each admission by one eight-byte store: what is killed in between is admitted unnoted."""
    admitted = [ctypes.c_uint64.from_buffer(counters, 8 * (place * KEYS + key)) for key in range(KEYS)]
    check = Limiter(limits, store=f"shm://{name}?max_keys=200").check
    turn = place
    while True:
        turn += 1
        key = turn % KEYS
        if check(f"key {key}"):
            admitted[key].value += 1
        if turn % 7 == 0:
            check(f"passing by {turn} {place}")  # new keys all the time, so that slots are given and taken


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_random_kills_admit_nothing_twice(kind):
    count = 1000 if "sliding_log" in kind or kind == "several" else 30_000
    limits = kind.format(count=count)
    if kind == "several":
        limits = [
            f"{count} per 300 days",
            f"{count} per 300 days sliding_log",
            f"{count + 5} per 300 days fixed_window",
        ]
    name, chance = f"kill-{uuid.uuid4().hex}", random.Random(kind)
    counters = mmap.mmap(-1, 8 * KEYS * (KILLS + 2))  # shared with forks
    places = iter(range(KILLS + 2))

    def start():
        place = next(places)
        child = os.fork()
        if not child:
            try:
                work(limits, name, counters, place)
            finally:
                os._exit(1)
        return child

    def end(child):
        workers.remove(child)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, "it ended by itself"

    workers = [start(), start()]
    try:
        for _ in range(KILLS):
            time.sleep(0.002 + chance.random() * 0.01)
            end(chance.choice(workers))
            workers.append(start())  # it goes on at once: nobody waits for the dead
        limiter = Limiter(limits, store=f"shm://{name}?max_keys=200")
        began = time.monotonic()
        for _ in range(2000):
            limiter.check("after the storm")
        assert time.monotonic() - began < 10
    finally:
        while workers:
            end(workers[0])
    by_survivor = [0] * KEYS
    for key in range(KEYS):
        while limiter.check(f"key {key}"):
            by_survivor[key] += 1
    told = (ctypes.c_uint64 * (KEYS * (KILLS + 2))).from_buffer_copy(counters)
    totals = [by_survivor[key] + sum(told[key::KEYS]) for key in range(KEYS)]
    assert max(totals) <= count, "admitted twice"
    lost = sum(count - total for total in totals)
    assert 0 <= lost <= KILLS + 2, "more lost than those killed before they could count"
    limiter.close()
    remove(name)


@pytest.mark.timeout(1800)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="steps x86-64")
def test_a_process_killed_after_every_few_instructions_harms_nobody(tmp_path):
    program = compiled("killed", "-O2", "-Wl,-z,now")
    done = run(program, "all", 211 if SHORT else 11, timeout=1700)
    if done.returncode == 77:
        pytest.skip("stepping is not allowed here")
    assert done.returncode == 0, done.stdout + done.stderr

"""``python damage.py NAME FIRST LAST``: damage segments with random bytes, a child for each seed, and use them there.

Prints a line for each child that hangs, is killed by a signal, or gets another error than those of a store.
"""

import os
import random
import select
import sys
import time
import traceback
from contextlib import suppress

from ratekeeper import InvalidStore, Limiter, StoreUnavailable
from ratekeeper.stores import shared_files as files
from ratekeeper.stores.shared import remove

LIMITS = [
    "5/minute",
    "5/minute fixed_window",
    "5/minute sliding_window slices 4",
    "5/minute sliding_log",
    "3 concurrent",
    ["5/minute", "50/hour"],
    ["5/minute sliding_log", "50/hour sliding_window"],
]
KINDS = ("everywhere", "few words", "guards", "locks", "live")
LONGEST = 90.0  # seconds: each damaged guard costs a process two, once


def damage(path, kind, seed):
    chance = random.Random(f"{kind} {seed}")
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(files.HEAD)
        memory = bytearray(file.read())
        if kind == "everywhere":
            memory[:] = chance.randbytes(size - files.HEAD)
        elif kind == "few words":
            for _ in range(200):
                start = chance.randrange(len(memory) // 8) * 8
                memory[start : start + 8] = chance.randbytes(8)
        else:  # the guard is what is not 0 in a new table
            for start in [at for at in range(0, len(memory), 64) if any(memory[at : at + 40])]:
                if kind == "guards":
                    memory[start : start + 64] = chance.randbytes(64)
                else:
                    lock = chance.choice([1, 2**31, 2**30 - 1, 2**22, os.getpid(), chance.getrandbits(32), 2**22 - 1])
                    memory[start : start + 4] = lock.to_bytes(4, "little")
        file.seek(files.HEAD)
        file.write(memory)


def use(limiter):
    calls = [(call, f"k{number}") for number in range(30) for call in (limiter.check, limiter.peek, limiter.reset)]
    for call, *arguments in [*calls, (limiter.store.clear,)]:
        with suppress(InvalidStore, StoreUnavailable):
            call(*arguments)


def run(name, seed):
    limits, kind = LIMITS[seed % len(LIMITS)], KINDS[seed % len(KINDS)]
    url = f"shm://{name}?max_keys=600"
    limiter = Limiter(limits, store=url)
    (path,) = files.table_files(files.folder_of(name))
    if kind == "live":  # the segment is damaged while a process has it open
        damage(path, "locks", seed)
        use(limiter)
    limiter.close()
    if kind != "live":
        damage(path, kind, seed)
    try:
        limiter = Limiter(limits, store=url)
    except (InvalidStore, StoreUnavailable):
        return
    use(limiter)


def main(name, first, last):
    """All at once: a child that waits for a damaged guard needs no processor."""
    children = {}
    for seed in range(first, last):
        child = os.fork()
        if not child:
            try:
                run(f"{name}.{seed}", seed)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children[seed] = child
    ends_at = time.monotonic() + LONGEST
    for seed, child in children.items():
        ended = os.pidfd_open(child)
        done = bool(select.select([ended], [], [], max(0.0, ends_at - time.monotonic()))[0])
        os.close(ended)
        if not done:
            os.kill(child, 9)
        _, status = os.waitpid(child, 0)
        if not done or status:
            print(f"seed {seed}: {'hangs' if not done else f'status {status}'}", flush=True)
        with suppress(InvalidStore):  # the child may not have come so far
            remove(f"{name}.{seed}", force=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

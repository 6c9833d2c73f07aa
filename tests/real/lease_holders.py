"""One process of holders, in threads and in tasks of an event loop, which come and go until its parent says stop.

Each holder logs when it entered and left, so that the number of holders at every instant is known afterwards, exactly.
All processes share the clock of that log.  A killed process keeps its places for as long as they last without a
heartbeat: nobody else may have them so long.  Meanwhile tasks are cancelled, anywhere, and threads leave by an
exception.
"""

import asyncio
import contextlib
import multiprocessing
import os
import random
import signal
import struct
import threading
import time
import uuid
from pathlib import Path

from ratekeeper import AsyncLimiter, Limiter, LimitExceeded, MemoryStore, StoreUnavailable

COUNT = 24
LIMIT = f"{COUNT} concurrent for 10 minutes"
TASKS, THREADS = 6, 2
RAISES = 0.1  # of the holders in threads
EVENT = struct.Struct("<bqdd")  # what happened to which holder, when it happened and when the holder had asked
LEFT, ENTERED, CANCELLED, RAISED = range(4)
NO_PLACE = (LimitExceeded, StoreUnavailable)  # the latter in shared memory, while a process that writes is stopped
UNSURE = 0.1  # seconds by which the clock of a server and ours may differ in the life of a lease

# Forked from a process that has imported everything, a process holds places within milliseconds.
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    [
        "argparse",
        "encodings.idna",
        "ratekeeper.algorithms.concurrency",
        "ratekeeper.flow.run",
        "ratekeeper.reservation",
        "ratekeeper.stores.redis.aio_store",
        "ratekeeper.stores.shared",
        "tests.real.lease_holders",
        "tests.servers",
    ]
)
starting = threading.Lock()  # multiprocessing forgets no child only if one thread at a time starts or ends one


class Raised(Exception):
    """Ends a block as an error of its own would."""


class Holders:
    def __init__(self, url, name, log, seed):
        # In memory, threads and tasks of this process share one store; elsewhere each limiter has its own.
        self.url, self.name = MemoryStore() if url == "memory" else url, name
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.chance = random.Random(seed)
        self.over = threading.Event()
        self.number = 0
        self.lost = 0

    def note(self, kind, holder=0, asked_at=0.0):
        os.write(self.log, EVENT.pack(kind, holder, time.monotonic(), asked_at))  # at once: we may be killed

    def next_number(self):
        self.number += 1
        return self.number << 8 | threading.get_ident() % 251

    def run_thread(self):
        chance = random.Random(threading.get_ident())
        limiter = Limiter(LIMIT, store=self.url, name=self.name)
        while not self.over.is_set():
            asked_at = time.monotonic()
            try:
                with limiter.reserve("k") as lease:
                    holder = self.next_number()
                    self.note(ENTERED, holder, asked_at)
                    try:
                        time.sleep(chance.random() * 0.06)
                        self.lost += lease.settled
                        if chance.random() < RAISES:
                            raise Raised
                    finally:
                        self.note(LEFT, holder)
            except Raised:
                self.note(RAISED)
            except NO_PLACE:
                time.sleep(0.01)

    async def hold(self, limiter):
        chance = self.chance
        while not self.over.is_set():
            asked_at = time.monotonic()
            try:
                async with limiter.reserve("k", timeout=chance.choice([None, 0.05])) as lease:
                    holder = self.next_number()
                    self.note(ENTERED, holder, asked_at)
                    try:
                        await asyncio.sleep(chance.random() * 0.06)
                        self.lost += lease.settled
                    finally:
                        self.note(LEFT, holder)
            except NO_PLACE:
                await asyncio.sleep(0.005)

    async def run(self, control, cancels):
        threads = [threading.Thread(target=self.run_thread) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        limiter = AsyncLimiter(LIMIT, store=self.url, name=self.name)
        chance = self.chance
        many = TASKS if isinstance(self.url, str) else 3 * TASKS  # those of all processes
        tasks = [asyncio.create_task(self.hold(limiter)) for _ in range(many)]
        loop = asyncio.get_running_loop()
        loop.add_reader(control.fileno(), lambda: loop.remove_reader(control.fileno()) and self.over.set())
        while not self.over.is_set():
            await asyncio.sleep(min(1.0, chance.expovariate(cancels)))
            place = chance.randrange(many)
            tasks[place].cancel()
            for _ in range(chance.randrange(4)):  # the next one asks before the cancelled one has left, or after
                await asyncio.sleep(0)
            await asyncio.gather(tasks[place], return_exceptions=True)
            self.note(CANCELLED)
            tasks[place] = asyncio.create_task(self.hold(limiter))
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        remaining = COUNT if isinstance(self.url, str) else (await limiter.peek("k")).remaining
        control.recv()
        control.send((self.lost, remaining))
        with contextlib.suppress(EOFError):
            await asyncio.to_thread(control.recv)  # stay alive: what waits for the store is ours to deliver
        await limiter.close()


def work(url, name, log, errors, seed, cancels, control):
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    asyncio.run(Holders(url, name, log, seed).run(control, cancels))


class HolderProcess:
    """A process of holders, as its parent sees it."""

    def __init__(self, url, name, folder, seed, cancels):
        self.log = f"{folder}/{uuid.uuid4().hex}"
        with starting:
            self.control, control = forks.Pipe()
            arguments = (url, name, self.log, f"{folder}/errors", seed, cancels, control)
            self.process = forks.Process(target=work, args=arguments, daemon=True)
            self.process.start()
            control.close()
        self.ended_at = float("inf")

    def kill(self):
        with starting:
            self.process.kill()
            self.process.join()
        self.ended_at = time.monotonic()
        self.control.close()

    def pause(self, seconds):
        os.kill(self.process.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(self.process.pid, signal.SIGCONT)

    def stop(self):
        """Let all holders leave, while the process lives on: how many of them had lost their lease."""
        self.control.send("stop")
        lost, remaining = self.control.recv()
        assert remaining == COUNT, f"{remaining} of {COUNT} free in a process that nobody uses"
        return lost

    def end(self):
        self.control.close()
        with starting:
            self.process.join()

    def read_log(self, lasts):
        """How many tasks were cancelled and threads raised, and when the number of taken places changed.

        Holders that were inside when the process was killed left with it, but their places stay taken: ``lasts``
        seconds after they were asked for, at least.
        """
        counts, inside, changes = [0] * 4, {}, []
        logged = Path(self.log).read_bytes() if os.path.exists(self.log) else b""  # none if it was killed at once
        for kind, holder, at, asked_at in EVENT.iter_unpack(logged):
            counts[kind] += 1
            if kind == ENTERED:
                inside[holder] = at, asked_at
            elif kind == LEFT:
                changes += [(inside.pop(holder)[0], 1), (at, -1)]
        for at, asked_at in inside.values():
            changes += [(at, 1), (max(self.ended_at, asked_at + lasts - UNSURE), -1)]
        return counts[CANCELLED], counts[RAISED], changes

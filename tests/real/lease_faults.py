"""Random faults against a concurrency limit, for as long as you like:

    python -m tests.real.lease_faults redis --seconds 600 --seed 1

Processes hold leases in threads and in tasks of an event loop.  The faults: the server is paused, killed and restarted
(it writes every command to disk first, so it forgets nothing), or cuts all connections; a task is cancelled, anywhere;
a process is killed with all its holders.  Each holder logs when it entered and left, so the count of holders at every
instant is known afterwards, exactly.  Every episode ends with quiet: then all places must be free within three
heartbeats of the last fault.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path

from ratekeeper import AsyncLimiter, Limiter, LimitExceeded, MemoryStore
from ratekeeper.flow.lease_renewal import BEATS, HEARTBEAT
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.shared import SharedStore, remove
from tests.servers import Cluster, Server

COUNT = 12
LIMIT = f"{COUNT} concurrent for 10 minutes"
PROCESSES, TASKS, THREADS = 3, 6, 2
WITHIN = BEATS * HEARTBEAT / 1e6  # seconds
EVENT = struct.Struct("<bqd")  # entered or left, which holder, when on the clock that all processes share


class Holders:
    """What one process does: its holders come and go until the parent says stop."""

    def __init__(self, url, name, log, seed):
        # In memory, threads and tasks of this process share one store; elsewhere each limiter has its own.
        self.url, self.name = MemoryStore() if url == "memory" else url, name
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.chance = random.Random(seed)
        self.over = threading.Event()
        self.number = 0
        self.cancelled = self.lost = 0

    def note(self, kind, holder):
        os.write(self.log, EVENT.pack(kind, holder, time.monotonic()))  # one write: it is there if we are killed

    def next_number(self):
        self.number += 1
        return self.number << 8 | threading.get_ident() % 251

    def run_thread(self):
        chance = random.Random(threading.get_ident())
        limiter = Limiter(LIMIT, store=self.url, name=self.name)
        while not self.over.is_set():
            try:
                with limiter.reserve("k") as lease:
                    holder = self.next_number()
                    self.note(1, holder)
                    try:
                        time.sleep(chance.random() * 0.06)
                        self.lost += lease.settled
                    finally:
                        self.note(-1, holder)
            except LimitExceeded:
                time.sleep(0.01)
        self.limiters.append(limiter)

    async def hold(self, limiter, chance):
        while not self.over.is_set():
            try:
                async with limiter.reserve("k", timeout=chance.choice([None, 0.05])) as lease:
                    holder = self.next_number()
                    self.note(1, holder)
                    try:
                        await asyncio.sleep(chance.random() * 0.06)
                        self.lost += lease.settled
                    finally:
                        self.note(-1, holder)
            except LimitExceeded:
                await asyncio.sleep(0.005)

    async def run_tasks(self, cancels):
        self.limiters = []
        threads = [threading.Thread(target=self.run_thread) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        limiter = AsyncLimiter(LIMIT, store=self.url, name=self.name)
        chance = self.chance
        many = TASKS if isinstance(self.url, str) else 3 * TASKS  # those of all processes
        tasks = [asyncio.create_task(self.hold(limiter, chance)) for _ in range(many)]
        loop = asyncio.get_running_loop()
        loop.add_reader(0, lambda: loop.remove_reader(0) and self.over.set())  # the parent wrote a line
        while not self.over.is_set():
            await asyncio.sleep(chance.random() * 2 / cancels)
            place = chance.randrange(many)
            tasks[place].cancel()
            for _ in range(chance.randrange(4)):  # the next one asks before the cancelled one has left, or after
                await asyncio.sleep(0)
            await asyncio.gather(tasks[place], return_exceptions=True)
            self.cancelled += 1
            tasks[place] = asyncio.create_task(self.hold(limiter, chance))
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        remaining = COUNT if isinstance(self.url, str) else (await limiter.peek("k")).remaining
        print(self.cancelled, self.lost, remaining, flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)  # stay alive: what waits for the store is ours to deliver
        await limiter.close()


class World:
    """A store, and the faults that it can have."""

    def __init__(self, kind, chance):
        self.kind, self.chance = kind, chance
        self.servers, self.segment = [], None
        durable = {"appendonly": "yes", "appendfsync": "always"}
        if kind == "memory":
            self.url = "memory"
        elif kind == "shm":
            self.segment = f"lease-faults-{uuid.uuid4().hex}"
            self.url = f"shm://{self.segment}?max_keys=1000"
        elif kind == "cluster":
            self.cluster = Cluster()
            self.servers = self.cluster.servers
            self.url = f"{self.cluster.url}?on_store_error=deny"
        else:
            self.servers = [Server("valkey-server" if kind == "valkey" else "redis-server", **durable)]
            self.url = f"{self.servers[0].url}?on_store_error=deny"
        self.faults = {"pause": self.pause, "cut": self.cut} if self.servers else {}
        if kind in ("redis", "valkey"):
            self.faults["kill"] = self.kill

    def pause(self):
        server = self.chance.choice(self.servers)
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(self.chance.choice([0.01, 0.06, 0.1, 0.3]))
        os.kill(server.process.pid, signal.SIGCONT)

    def cut(self):
        with contextlib.suppress(Exception):
            client = self.chance.choice(self.servers).client(socket_timeout=2)
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")

    def kill(self):
        (server,) = self.servers
        server.kill()
        time.sleep(self.chance.choice([0.0, 0.2]))
        server.start()

    def watcher(self, name):
        store = SharedStore(self.segment, max_keys=1000) if self.segment else None
        if self.kind == "memory":  # its process has looked itself
            store = MemoryStore()
        if store is None:
            store = RedisStore(self.url.partition("?")[0], deadline=10)
        return Limiter(LIMIT, store=store, name=name)

    def close(self):
        for server in self.servers:
            server.close()
        if self.segment:
            remove(self.segment, force=True)


class Process:
    def __init__(self, world, name, folder, seed, cancels):
        self.log = f"{folder}/{uuid.uuid4().hex}"
        words = [sys.executable, "-m", "tests.real.lease_faults", "--child"]
        words += [world.url, name, self.log, str(seed), str(cancels)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.ended_at = float("inf")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.ended_at = time.monotonic()
        self.close_pipes()

    def stop(self):
        """Let all holders leave; the process itself lives on."""
        self.process.stdin.write(b"stop\n")
        self.process.stdin.flush()
        cancelled, lost, remaining = map(int, self.process.stdout.readline().split())
        assert remaining == COUNT, f"{remaining} of {COUNT} free in a process that nobody uses"
        return cancelled, lost

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.close_pipes()

    def close_pipes(self):
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()

    def events(self):
        """When the count of holders changed.  Those that were inside when the process was killed left with it."""
        inside, events = {}, []
        logged = Path(self.log).read_bytes() if os.path.exists(self.log) else b""  # none if it was killed at once
        for kind, holder, at in EVENT.iter_unpack(logged):
            if kind > 0:
                inside[holder] = at
            else:
                events += [(inside.pop(holder), 1), (at, -1)]
        return events + [pair for at in inside.values() for pair in ((at, 1), (self.ended_at, -1))]


def episode(world, chance, seconds, folder, cancels):
    """Faults for so many seconds, then quiet: the counts of faults, the most holders at once, when all was free."""
    name = uuid.uuid4().hex
    faults = dict.fromkeys([*world.faults, "process kill -9", "cancel"], 0)
    processes = 1 if world.kind == "memory" else PROCESSES
    running = [Process(world, name, folder, chance.random(), cancels) for _ in range(processes)]
    everyone = list(running)
    until = time.monotonic() + seconds
    time.sleep(1.0)  # until they have started
    lost = 0
    while time.monotonic() < until:
        if world.kind == "memory":  # a process that is killed takes its places with it
            time.sleep(until - time.monotonic())
            break
        if chance.random() < 0.03 or not world.faults:
            place = chance.randrange(PROCESSES)
            running[place].kill()
            running[place] = Process(world, name, folder, chance.random(), cancels)
            everyone.append(running[place])
            faults["process kill -9"] += 1
            if not world.faults:
                time.sleep(2.0)  # as long as a process takes to start
        else:
            fault = chance.choice([*["pause", "cut"] * 6, *(["kill"] if "kill" in world.faults else [])])
            world.faults[fault]()
            faults[fault] += 1
        time.sleep(chance.random() * 0.08)
    for process in running:
        cancelled, more = process.stop()
        faults["cancel"] += cancelled
        lost += more
    last = time.monotonic()
    watcher = world.watcher(name)
    while watcher.peek("k").remaining < COUNT and time.monotonic() < last + 2 * WITHIN:
        time.sleep(0.05)
    free_after = time.monotonic() - last
    remaining = watcher.peek("k").remaining
    assert remaining == COUNT, f"{remaining} of {COUNT} free after {free_after:.1f} s"
    watcher.store.close()
    for process in running:
        process.end()
    count = most = held = 0
    for _, change in sorted([event for process in everyone for event in process.events()], key=lambda event: event[0]):
        count += change
        held += change > 0
        most = max(most, count)
    return faults, most, held, free_after, lost


def run(kind, seconds, seed, *, each=20.0, cancels=12):
    """Episodes until the time is over; raises if a place is lost, or the limit is passed."""
    chance = random.Random(seed)
    world = World(kind, chance)
    totals, worst, most, held, lost = {}, 0.0, 0, 0, 0
    began = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            while time.monotonic() < began + seconds:
                faults, at_once, times, free_after, more = episode(world, chance, min(each, seconds), folder, cancels)
                for fault, number in faults.items():
                    totals[fault] = totals.get(fault, 0) + number
                worst, most, held, lost = max(worst, free_after), max(most, at_once), held + times, lost + more
                print(f"{kind}: {sum(totals.values())} faults {totals}, {held} leases, {most} of {COUNT} at once, "
                      f"all free after {free_after:.2f} s (worst {worst:.2f} s), {lost} lost", flush=True)  # fmt: skip
                assert at_once <= COUNT
                assert free_after <= WITHIN + 1.0  # a second for the machine
    finally:
        world.close()
    return totals, most, worst


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        url, name, log, seed, cancels = sys.argv[2:]
        asyncio.run(Holders(url, name, log, float(seed)).run_tasks(float(cancels)))
    else:
        parser = argparse.ArgumentParser()
        parser.add_argument("kind", choices=["redis", "valkey", "cluster", "shm", "memory"])
        parser.add_argument("--seconds", type=float, default=60)
        parser.add_argument("--seed", type=int, default=1)
        parser.add_argument("--cancels", type=float, default=12, help="tasks cancelled in a second, by each process")
        arguments = parser.parse_args()
        run(arguments.kind, arguments.seconds, arguments.seed, cancels=arguments.cancels)

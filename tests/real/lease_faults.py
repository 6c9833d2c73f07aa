"""Random faults against a concurrency limit, for as long as you like:

    python -m tests.real.lease_faults redis --seconds 600 --seed 1

The faults overlap.  The server is paused, or killed and restarted (it writes every command to disk first, so it forgets
nothing), or cuts all connections; a process of holders is paused, or killed with all its holders; a task is cancelled,
anywhere; a thread leaves by an exception.  Every episode ends with quiet: then all places must be free within three
heartbeats of the last fault.  Several lanes, each with servers and processes of its own, have their episodes side by
side, so that one has faults while another one waits for its places.
"""

import argparse
import contextlib
import os
import random
import re
import signal
import tempfile
import threading
import time
import uuid
from pathlib import Path

from ratekeeper import Limit, Limiter, MemoryStore
from ratekeeper.flow.lease_renewal import BEATS, HEARTBEAT
from ratekeeper.stores.redis.store import RedisStore
from ratekeeper.stores.redis.topology import slot_of
from ratekeeper.stores.shared import SharedStore, remove
from tests.real.lease_holders import COUNT, LIMIT, HolderProcess
from tests.servers import Cluster, Server

KINDS = ["redis", "valkey", "cluster", "shm", "memory"]
PROCESSES = 3
WITHIN = BEATS * HEARTBEAT / 1e6  # seconds
EPISODE = 20.0  # seconds
LANES = 3
DURABLE = {"appendonly": "yes", "appendfsync": "always"}
# Faults in a second of one lane.  A node of a cluster that comes back waits two seconds before it writes, so there
# kills are rare.  In memory the only faults are those of the holders: a process that ends takes its places with it.
# Killed holders keep their places for three heartbeats, so more kills would leave none for the others.
HOLDERS = {"process pause": 1.5, "process kill -9": 0.7}
SERVER = {"pause": 3.0, "cut": 3.5, "kill": 1.5}
RATES = {
    "redis": SERVER | HOLDERS,
    "valkey": SERVER | HOLDERS,
    "cluster": SERVER | HOLDERS | {"pause": 4.0, "cut": 5.0, "kill": 0.2},
    "shm": {"process pause": 6.0, "process kill -9": 1.0},
    "memory": {},
}
CANCELS = 8.0  # in a second of one lane
PAUSES = [0.01, 0.03, 0.06, 0.1, 0.3]  # seconds
ALARMING = re.compile(r"Traceback|never retrieved|never awaited")  # in what processes write to stderr


class World:
    """A store, the processes of holders on it, and the faults that both can have."""

    def __init__(self, kind, chance, folder, cancels):
        self.kind, self.chance, self.folder = kind, chance, folder
        self.name = uuid.uuid4().hex
        self.servers, self.segment = [], None
        if kind == "memory":
            self.url = "memory"
        elif kind == "shm":
            self.segment = f"lease-faults-{uuid.uuid4().hex}"
            self.url = f"shm://{self.segment}?max_keys=1000"
        elif kind == "cluster":
            self.cluster = Cluster(**DURABLE)
            self.servers = self.cluster.servers
            self.url = f"{self.cluster.url}?on_store_error=deny&deadline=200ms"
            with contextlib.closing(RedisStore(self.cluster.url)) as store:
                name = store.translator.layout(self.name, Limit.parse(LIMIT)).name("k")
            self.owner = self.servers.index(self.cluster.owner(slot_of(name)))
        else:
            self.servers = [Server("valkey-server" if kind == "valkey" else "redis-server", **DURABLE)]
            self.url = f"{self.servers[0].url}?on_store_error=deny&deadline=200ms"
        self.server_locks = [threading.Lock() for _ in self.servers]
        processes = 1 if kind == "memory" else PROCESSES
        self.cancels = cancels / processes
        self.running = [self.start() for _ in range(processes)]
        self.everyone = list(self.running)
        self.process_locks = [threading.Lock() for _ in self.running]
        self.counts = dict.fromkeys([*RATES[kind], "cancel", "exception"], 0)

    def start(self):
        return HolderProcess(self.url, self.name, self.folder, self.chance.random(), self.cancels)

    def any_server(self):
        """Which server has the next fault: mostly the one that has the key."""
        if self.kind == "cluster" and self.chance.random() < 0.5:
            return self.owner
        return self.chance.randrange(len(self.servers))

    def pause(self):
        index = self.any_server()
        with self.server_locks[index]:
            os.kill(self.servers[index].process.pid, signal.SIGSTOP)
            time.sleep(self.chance.choice(PAUSES))
            os.kill(self.servers[index].process.pid, signal.SIGCONT)

    def cut(self):
        with contextlib.suppress(Exception), self.servers[self.any_server()].client(socket_timeout=2) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal")

    def kill(self):
        index = self.any_server()
        with self.server_locks[index]:
            self.servers[index].kill()
            time.sleep(self.chance.choice([0.0, 0.0, 0.2]))
            self.servers[index].start()

    def process_pause(self):
        index = self.chance.randrange(len(self.running))
        with self.process_locks[index]:
            self.running[index].pause(self.chance.choice(PAUSES))

    def process_kill(self):
        index = self.chance.randrange(len(self.running))
        with self.process_locks[index]:
            self.running[index].kill()
            self.running[index] = self.start()
            self.everyone.append(self.running[index])

    def make_faults(self, fault, until, failures):
        """One kind of fault, at random instants; the others go on beside it."""
        make = {"process pause": self.process_pause, "process kill -9": self.process_kill}.get(fault)
        due = time.monotonic()
        try:
            while True:
                due = max(due, time.monotonic() - 1.0) + self.chance.expovariate(RATES[self.kind][fault])
                if due >= until:
                    return
                time.sleep(max(0.0, due - time.monotonic()))
                (make or getattr(self, fault))()
                self.counts[fault] += 1
        except BaseException as error:
            failures.append(error)

    def watcher(self):
        store = SharedStore(self.segment, max_keys=1000) if self.segment else None
        if self.kind == "memory":  # its process has looked itself
            store = MemoryStore()
        if store is None:
            store = RedisStore(self.url.partition("?")[0], deadline=10)
        return Limiter(LIMIT, store=store, name=self.name)

    def close(self):
        for process in self.running:
            if process.ended_at == float("inf"):
                process.kill()
        for server in self.servers:
            server.close()
        if self.segment:
            remove(self.segment, force=True)


class Totals:
    """What all lanes have seen."""

    def __init__(self, kind):
        self.kind, self.faults = kind, {}
        self.episodes = self.held = self.lost = self.most = 0
        self.worst = 0.0
        self.began = time.monotonic()
        self.lock = threading.Lock()
        self.failures = []

    def add(self, faults, most, held, free_after, lost):
        with self.lock:
            for fault, number in faults.items():
                self.faults[fault] = self.faults.get(fault, 0) + number
            self.episodes += 1
            self.held, self.lost = self.held + held, self.lost + lost
            self.most, self.worst = max(self.most, most), max(self.worst, free_after)
            mix = ", ".join(f"{fault} {number}" for fault, number in self.faults.items())
            print(f"{self.kind}: {sum(self.faults.values())} faults ({mix}) in {time.monotonic() - self.began:.0f} s, "
                  f"{self.episodes} episodes, {self.held} leases, {self.most} of {COUNT} places taken at once, all "
                  f"free after {free_after:.2f} s (worst {self.worst:.2f} s), {self.lost} lost",
                  flush=True)  # fmt: skip


def episode(kind, chance, seconds, cancels, totals):
    """Faults for so many seconds, then quiet."""
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(World(kind, chance, folder, cancels)) as world:
        until, failures = time.monotonic() + seconds, []
        beside = [fault for fault in RATES[kind] if fault != "kill"]
        makers = [threading.Thread(target=world.make_faults, args=(fault, until, failures)) for fault in beside]
        for maker in makers:
            maker.start()
        if "kill" in RATES[kind]:  # here, because a server ends with the thread that started it
            world.make_faults("kill", until, failures)
        for maker in makers:
            maker.join()
        time.sleep(max(0.0, until - time.monotonic()))
        if failures:
            raise failures[0]
        lost = sum([process.stop() for process in world.running])
        last = time.monotonic()
        with contextlib.closing(world.watcher()) as watcher:
            while watcher.peek("k").remaining < COUNT and time.monotonic() < last + 2 * WITHIN:
                time.sleep(0.05)
            free_after = time.monotonic() - last
            remaining = watcher.peek("k").remaining
            watcher.store.close()
        assert remaining == COUNT, f"{remaining} of {COUNT} free after {free_after:.1f} s"
        for process in world.running:
            process.end()
        count = most = held = 0
        changes = []
        for process in world.everyone:
            cancelled, raised, more = process.read_log(WITHIN)
            world.counts["cancel"] += cancelled
            world.counts["exception"] += raised
            changes += more
        for _, change in sorted(changes):
            count += change
            held += change > 0
            most = max(most, count)
        totals.add(world.counts, most, held, free_after, lost)
        assert most <= COUNT
        assert free_after <= WITHIN + 1.0  # a second for the machine
        errors = Path(folder, "errors").read_text() if Path(folder, "errors").exists() else ""
        assert not ALARMING.search(errors), errors


def run(kind, seconds, seed, *, each=EPISODE, cancels=CANCELS, lanes=LANES):
    """Episodes until the time is over; raises if a place is lost, or the limit is passed."""
    totals = Totals(kind)

    def run_lane(number):
        chance = random.Random(seed * 1000 + number)
        time.sleep(number * min(each, seconds) / lanes)
        try:
            while not totals.failures:
                left = totals.began + seconds - time.monotonic()
                if left < min(1.0, seconds / 2):
                    return
                episode(kind, chance, min(each, left), cancels, totals)
        except BaseException as error:
            totals.failures.append(error)

    running = [threading.Thread(target=run_lane, args=(number,)) for number in range(lanes)]
    for lane in running:
        lane.start()
    for lane in running:
        lane.join()
    if totals.failures:
        raise totals.failures[0]
    return totals


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cancels", type=float, default=CANCELS, help="tasks cancelled in a second, in each lane")
    parser.add_argument("--lanes", type=int, default=LANES, help="episodes side by side")
    arguments = parser.parse_args()
    run(arguments.kind, arguments.seconds, arguments.seed, cancels=arguments.cancels, lanes=arguments.lanes)

"""Twenty processes with one budget, and a provider that counts in three ways at once.

Each call is one datagram.  The provider counts it as a strict sliding log, as a fixed window that begins elsewhere and
as a token bucket, and says how many calls each of them would have refused.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import time
from collections import deque

from ratekeeper.outbound import Budget
from ratekeeper.stores.redis.script import compose
from ratekeeper.stores.redis.store import RedisStore

FORK = multiprocessing.get_context("fork")
LOADED = (RedisStore, compose())  # before the processes fork: twenty imports at once take a busy machine seconds


class Counters:
    """A sliding log, a fixed window and a token bucket of the same limit, and what each would have refused."""

    def __init__(self, count: int, period: float) -> None:
        self.count, self.period = count, period
        self.log: deque[float] = deque()
        self.window, self.in_window = 0, 0
        self.tokens, self.filled_at = float(count), 0.0
        self.refused = {"sliding log": 0, "fixed window": 0, "token bucket": 0}
        self.arrivals: list[float] = []

    def call(self, now: float) -> None:
        self.arrivals.append(now)
        while self.log and self.log[0] <= now - self.period:
            self.log.popleft()
        self.log.append(now)
        self.refused["sliding log"] += len(self.log) > self.count
        window = int((now + 0.37 * self.period) // self.period)
        self.in_window = self.in_window + 1 if window == self.window else 1
        self.window = window
        self.refused["fixed window"] += self.in_window > self.count
        self.tokens = min(self.count, self.tokens + (now - self.filled_at) * self.count / self.period) - 1
        self.filled_at = now
        self.refused["token bucket"] += self.tokens < -1e-9


def provide(listener: socket.socket, count: int, period: float, results) -> None:
    counters = Counters(count, period)
    while True:
        if listener.recv(16) == b"stop":
            results.send_bytes(json.dumps([counters.refused, counters.arrivals]).encode())
            return
        counters.call(time.monotonic())


def work(address, ready, seconds: float, store: str, limit: str, margin: float | None) -> None:
    budget = Budget(requests=limit, store=store, name="fleet", margin=margin)
    budget.left()
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ready.wait(120)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if budget.reserve(timeout=max(0.01, until - time.monotonic())):
            client.sendto(b"call", address)


def run(store: str, count: int, period: float, seconds: float, margin: float | None, during=None, workers: int = 20):
    """How many calls each kind of provider refused, and the share of its capacity that was used after one period."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listener.bind(("127.0.0.1", 0))
    address = listener.getsockname()
    results, sender = FORK.Pipe(duplex=False)
    provider = FORK.Process(target=provide, args=(listener, count, period, sender))
    provider.start()
    ready = FORK.Barrier(workers + 1)
    arguments = (address, ready, seconds, store, f"{count} per {period:g} seconds", margin)
    fleet = [FORK.Process(target=work, args=arguments) for _ in range(workers)]
    try:
        for worker in fleet:
            worker.start()
        ready.wait(120)
        until = time.monotonic() + seconds
        if during is not None:
            during()
        for worker in fleet:
            worker.join(seconds + 60)
        assert [worker.exitcode for worker in fleet] == [0] * workers
        client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        client.sendto(b"stop", address)
        client.close()
        refused, arrivals = json.loads(results.recv_bytes())
    finally:
        for process in (*fleet, provider):
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
            process.join()
        listener.close()
    start = arrivals[0] + period
    whole = int((until - start) / period)
    used = sum(start <= at < start + whole * period for at in arrivals)
    return refused, used / (whole * count), len(arrivals)

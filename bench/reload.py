"""Reloads of the service: how long requests take while rules are reloaded, beside the same process without reloads.

Windows with reloads and windows without alternate on one service, so that both meet the same machine; a window is long
enough for all that a reload leaves to do later.  One process asks at a steady pace on several connections.
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import conditions, table
from bench.walks import redis_server

CLIENTS = 8
ROUNDS = 10
# Rules; the seconds of a window, and when it has reloads.  The rest of it is for what they leave to do.
SCHEDULES = ((300, 5.0, (0.0, 0.5, 1.0, 1.5)), (3000, 9.0, (0.0, 1.5, 3.0)))
PACES = (400, 2000)  # requests a second


def rules_of(size: int) -> str:
    rules = [f'[[rules]]\nname = "r{n}"\nmatch = "/r{n}"\nlimit = "1000000000/day"\n' for n in range(size)]
    return "\n".join(['trusted_proxies = ["127.0.0.1"]', *rules])


def write_rules(path: Path, rules: str, count: int) -> None:
    """One rule differs each time, so that a reload has something to retire."""
    path.with_suffix(".new").write_text(f'{rules}\n[[rules]]\nname = "all"\nlimit = "{10**9 + count}/day"\n')
    path.with_suffix(".new").replace(path)


@contextlib.contextmanager
def service(path: Path, workers: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """``ratekeeper serve`` with these rules; its process, and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "ratekeeper", "serve", str(path), "--workers", str(workers)]
    process = subprocess.Popen([*words, "--http", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
                connection.sendall(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
                if connection.recv(4096).startswith(b"HTTP/1.1 200"):
                    break
            assert process.poll() is None, "the service has ended"
            assert time.monotonic() < until, "the service is not ready"
            time.sleep(0.05)
        yield process, port
    finally:
        process.terminate()
        process.wait()


class Loader:
    """Asks at a steady pace, in turns on several connections; one that has no answer yet is left out."""

    def __init__(self, port: int, pace: float) -> None:
        fields = "host: 127.0.0.1\r\nx-original-uri: /r1\r\nx-original-method: GET"
        self.request = f"GET /v1/auth/original HTTP/1.1\r\n{fields}\r\n\r\n".encode()
        self.gap = 1 / pace
        self.free = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
        self.by_number = {connection.fileno(): connection for connection in self.free}
        self.sent: dict[int, float] = {}
        self.poll = select.epoll()
        for connection in self.free:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.poll.register(connection.fileno(), select.EPOLLIN)

    def run(self, until: float, took: list[float]) -> None:
        """Ask until then; append the seconds that each answer took."""
        due = time.perf_counter()
        while (now := time.perf_counter()) < until:
            if now >= due and self.free:
                connection = self.free.pop(0)
                self.sent[connection.fileno()] = time.perf_counter()
                connection.sendall(self.request)
                due = max(due + self.gap, now - 10 * self.gap)  # after a delay of ours no long burst
            wait = max(0.0, min(due, until) - time.perf_counter()) if self.free else 1.0
            for number, _ in self.poll.poll(wait):
                response = self.by_number[number].recv(4096)
                took.append(time.perf_counter() - self.sent.pop(number))
                assert response.startswith(b"HTTP/1.1 200"), response
                self.free.append(self.by_number[number])

    def close(self) -> None:
        for connection in self.by_number.values():
            connection.close()
        self.poll.close()


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)] * 1e3


def measure(workers: int, schedule: tuple[int, float, tuple[float, ...]], pace: float, store: str) -> list[list[float]]:
    """Seconds that answers took, without reloads and with them."""
    size, window, reloads = schedule
    quiet: list[float] = []
    reloading: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.toml")
        rules = f'store = "{store}"\n{rules_of(size)}'
        write_rules(path, rules, 0)
        with service(path, workers) as (process, port), contextlib.closing(Loader(port, pace)) as loader:
            loader.run(time.perf_counter() + 1.0, [])
            for turn in range(ROUNDS):
                loader.run(time.perf_counter() + window, quiet)
                began = time.perf_counter()
                for number, offset in enumerate(reloads):
                    loader.run(began + offset, reloading)
                    write_rules(path, rules, 1 + turn * len(reloads) + number)
                    process.send_signal(signal.SIGHUP)
                loader.run(began + window, reloading)
    return [quiet, reloading]


def main() -> None:
    conditions()
    stores = {"memory": "memory://"}
    with contextlib.ExitStack() as stack:
        if shutil.which("redis-server"):
            stores["Redis"] = stack.enter_context(redis_server())
        rows = []
        for name, store in stores.items():
            for workers in (1, 2):
                for schedule in SCHEDULES:
                    for pace in PACES:
                        both = measure(workers, schedule, pace, store)
                        size = f"{schedule[0]:,} rules"
                        figures = [f"{quantile(each, part):.2f}" for part in (0.5, 0.99, 0.999) for each in both]
                        ratio = quantile(both[1], 0.99) / quantile(both[0], 0.99)
                        rows.append([f"{name}, {workers} at work, {size}, {pace:,}/s", *figures, f"{ratio:.2f}"])
                        print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    heads = ["ms", "p50", "reloading", "p99", "reloading", "p99.9", "reloading", "p99, ratio"]
    table("Requests while rules are reloaded, beside the same process in turns without reloads", heads, rows)


if __name__ == "__main__":
    main()

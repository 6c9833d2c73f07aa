"""The gRPC listener: our HTTP/2 session beside grpcio's server, called by a loader that is quicker than both.

The loader writes the frames of a call itself and only counts the ends of answers, because a gRPC client in Python takes
longer for a call than the server.  The processor time of the server for a call stands beside the calls per second.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import conditions, table
from bench.service import CLIENTS, ROUNDS, SECONDS

ASK = b"/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
EMPTY = b"/bench.Empty/Call"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, DATA, SETTINGS, WINDOW_UPDATE = 1, 0, 4, 8
KEYS = 1_000


def serve(words: list[str]) -> None:
    """A worker; the word ``grpcio`` chooses that server."""
    import grpc

    from ratekeeper.service import http2_listener
    from ratekeeper.service.envoy import server as envoy
    from ratekeeper.service.options import Options
    from ratekeeper.service.worker import Worker, run

    if words[0] == "grpcio":
        http2_listener.has_session = lambda: False  # type: ignore[assignment]
    config = Path(tempfile.mkdtemp(), "limits.yaml")
    config.write_text(
        "domain: bench\ndescriptors:\n"
        "  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"
        "  - {key: tight, rate_limit: {unit: hour, requests_per_unit: 1}}\n"
    )
    add_to_server = envoy.add_to_server

    def with_empty(limits: envoy.RateLimits, server: object) -> None:
        async def nothing(request: bytes, context: object) -> bytes:
            return b""

        method = grpc.unary_unary_rpc_method_handler(nothing)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Empty", {"Call": method}),))  # type: ignore[attr-defined]
        add_to_server(limits, server)

    envoy.add_to_server = with_empty

    def opened(worker: Worker) -> None:
        for listener in worker.listeners:
            if hasattr(listener, "unary"):
                listener.unary[EMPTY] = lambda raw: b""
        print(worker.addresses["grpc"][1], flush=True)

    store = words[1] if len(words) > 1 else None
    run(Options(envoy_config=config, http=None, grpc="127.0.0.1:0", store=store), 0, b"bench", opened)


class Server:
    """One worker on the second core."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "bench.grpc_listener", "--serve", *words]
        if shutil.which("taskset"):
            command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def spent(self) -> float:
        """Seconds of processor time so far, of all threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field that no table keeps, so that it has the same bytes in every call."""
    return b"\x00%c%b%c%b" % (len(name), name, len(value), value)


class Connection:
    """One client with one call at a time."""

    def __init__(self, port: int, path: bytes, payloads: list[bytes], number: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        window = frame(WINDOW_UPDATE, 0, 0, (2**30).to_bytes(4, "big"))
        self.sock.sendall(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, 1, 0, b"") + window)
        self.head = b"\x83\x86" + b"".join(
            literal(name, value)
            for name, value in (
                (b":path", path), (b":authority", b"x"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
            )
        )  # fmt: skip
        self.bodies = [b"\0" + len(payload).to_bytes(4, "big") + payload for payload in payloads]
        self.stream, self.sent, self.rest = -1, number, b""

    def call(self) -> None:
        self.stream += 2
        self.sent += 1
        body = self.bodies[self.sent % len(self.bodies)]
        self.sock.send(frame(HEADERS, 4, self.stream, self.head) + frame(DATA, 1, self.stream, body))

    def receive(self) -> bool:
        """Whether the answer has ended: a HEADERS frame with END_STREAM."""
        data, at, ended = self.rest + self.sock.recv(65_536), 0, False
        while len(data) - at >= 9:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < 9 + size:
                break
            ended = ended or (data[at + 3] == HEADERS and bool(data[at + 4] & 1))
            at += 9 + size
        self.rest = data[at:]
        return ended


def load(port: int, path: bytes, payloads: list[bytes], seconds: float) -> int:
    connections = [Connection(port, path, payloads, number * 31) for number in range(CLIENTS)]
    by_number = {connection.sock.fileno(): connection for connection in connections}
    poll = select.epoll()
    for number, connection in by_number.items():
        poll.register(number, select.EPOLLIN)
        connection.call()
    done, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number, _ in poll.poll(1.0):
            if by_number[number].receive():
                done += 1
                by_number[number].call()
    for connection in connections:
        connection.sock.close()
    return done


def asked(key: str, value: str) -> bytes:
    from envoy.service.ratelimit.v3 import rls_pb2

    request = rls_pb2.RateLimitRequest(domain="bench")
    request.descriptors.add().entries.add(key=key, value=value)
    return bytes(request.SerializeToString())


def main() -> None:
    if "--serve" in sys.argv:
        serve(sys.argv[sys.argv.index("--serve") + 1 :])
        return
    from bench.walks import redis_server

    conditions()
    many = [asked("user", f"u{number}") for number in range(KEYS)]
    works = {
        "an empty method": (EMPTY, [b""]),
        "admitted, 1,000 clients": (ASK, many),
        "refused": (ASK, [asked("tight", "u")]),
    }
    with redis_server() as url:
        servers = {
            "grpcio": Server("grpcio"), "nghttp2": Server("http2"),
            "grpcio, Redis": Server("grpcio", url), "nghttp2, Redis": Server("http2", url),
        }  # fmt: skip
        best: dict[tuple[str, str], tuple[float, float]] = {}
        try:
            for _ in range(ROUNDS):
                for work, (path, payloads) in works.items():
                    for name, server in servers.items():
                        before, began = server.spent(), time.perf_counter()
                        done = load(server.port, path, payloads, SECONDS)
                        rate = done / (time.perf_counter() - began)
                        cost = (server.spent() - before) / max(1, done) * 1e6
                        known = best.get((work, name), (0.0, float("inf")))
                        best[work, name] = max(rate, known[0]), min(cost, known[1])
        finally:
            for server in servers.values():
                server.close()
    rows = []
    for (work, name), (rate, cost) in best.items():
        floor = best[work, name.replace("nghttp2", "grpcio")]
        rows.append((work, name, f"{rate:,.0f}", f"{rate / floor[0]:.1f}", f"{cost:.0f}", f"{floor[1] / cost:.1f}"))
    head = ["", "server", "calls/s", "times grpcio", "server µs", "times less"]
    table(f"gRPC, one call at a time on each of {CLIENTS} connections", head, rows)


if __name__ == "__main__":
    main()

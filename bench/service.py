"""The service: each listener beside the least that its own server can do, and each on a live Redis beside memory.

The loader has one core and the server the other.  Read the ratios: calls per second depend on the loader and on what
else the machine does.  The processor time that the server takes for a call stands beside them, and does not.
"""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness import conditions, table
from bench.walks import redis_server

ROUNDS = 3
SECONDS = 2.0
CLIENTS = 32
FLEET_CLIENTS = 64  # connections in front of a live Redis
AHEAD = 16  # pipelined requests on each connection
RULES = """
[[rules]]
name = "per-ip"
by = "ip"
limit = "1000000/second"
"""


# The server: a real worker, with a "hello" beside its routes and an empty method beside Envoy's.


def serve(words: list[str]) -> None:
    import grpc

    from ratekeeper.service.envoy import server as envoy
    from ratekeeper.service.http.response import TEXT, response
    from ratekeeper.service.options import Options
    from ratekeeper.service.worker import Worker, run

    folder = Path(tempfile.mkdtemp())
    (folder / "rules.toml").write_text(RULES)
    config = folder / "limits.yaml"
    config.write_text(
        "domain: bench\ndescriptors:\n"
        "  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}\n"
        "  - {key: tight, rate_limit: {unit: hour, requests_per_unit: 1}}\n"
    )
    store = words[0] if words else None
    any_port = "127.0.0.1:0"
    options = Options(rules=folder / "rules.toml", envoy_config=config, http=any_port, resp=any_port, grpc=any_port,
                      store=store)  # fmt: skip
    add_to_server = envoy.add_to_server

    def with_empty(limits: envoy.RateLimits, server: object) -> None:
        async def nothing(request: bytes, context: object) -> bytes:
            return b""

        method = grpc.unary_unary_rpc_method_handler(nothing)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Empty", {"Call": method}),))  # type: ignore[attr-defined]
        add_to_server(limits, server)

    envoy.add_to_server = with_empty

    def opened(worker: Worker) -> None:
        worker.routes.paths["/hello"] = lambda call: response(200, b"hello\n", TEXT)
        for listener in worker.listeners:
            if hasattr(listener, "unary"):  # our own gRPC listener
                listener.unary[b"/bench.Empty/Call"] = lambda raw: b""
        ports = [worker.addresses[name][1] for name in ("http", "resp", "grpc")]
        print(*ports, flush=True)

    run(options, 0, b"bench", opened)


class Server:
    """One worker on the second core."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "bench.service", "--serve", *words]
        if shutil.which("taskset"):
            command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.http, self.resp, self.grpc = map(int, self.process.stdout.readline().split())

    def spent(self) -> float:
        """Seconds of processor time so far, of all threads."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def http_load(port: int, requests: list[bytes], seconds: float, clients: int = CLIENTS, ahead: int = 1) -> int:
    """Responses within ``seconds`` to ``clients`` connections that each have ``ahead`` requests under way."""
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(clients)]
    by_number = {connection.fileno(): connection for connection in connections}
    missing = dict.fromkeys(by_number, ahead)
    parts = [
        b"".join([requests[(start + at) % len(requests)] for at in range(ahead)]) for start in range(len(requests))
    ]
    poll = select.epoll()
    sent = done = 0
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(connection.fileno(), select.EPOLLIN)
        connection.sendall(parts[sent % len(parts)])
        sent += ahead
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        for number, _ in poll.poll(1.0):
            connection = by_number[number]
            received = connection.recv(262_144)
            missing[number] -= received.count(b"}") if ahead > 1 else 1  # one byte, which no read can cut
            if missing[number] <= 0:
                missing[number] = ahead
                done += ahead
                connection.send(parts[sent % len(parts)])
                sent += ahead
    for connection in connections:
        connection.close()
    return done


SCRIPT = """
local requests, number = {}, 0
for line in io.lines(os.getenv("REQUESTS")) do requests[#requests + 1] = line:gsub("~", "\\r\\n") end
request = function() number = number + 1; return requests[number % #requests + 1] end
"""


def wrk_load(port: int, requests: list[bytes], seconds: float) -> int:
    """The same by wrk, which needs so little of its core that the server is the bottleneck."""
    with tempfile.TemporaryDirectory() as folder:
        script, listed = Path(folder, "load.lua"), Path(folder, "requests")
        script.write_text(SCRIPT)
        listed.write_bytes(b"\n".join([request.replace(b"\r\n", b"~") for request in requests]))
        words = [
            "wrk",
            "-t1",
            f"-c{CLIENTS}",
            f"-d{max(1, round(seconds))}s",
            "-s",
            str(script),
            f"http://127.0.0.1:{port}/",
        ]
        found = subprocess.run(
            words, capture_output=True, text=True, check=True, env={**os.environ, "REQUESTS": str(listed)}
        ).stdout
    assert "Non-2xx" not in found, found
    return int(next(line for line in found.splitlines() if " requests in " in line).split()[0])


def post(path: str, body: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


def measured(server: Server, load: Callable[[float], int]) -> tuple[float, float]:
    """Calls per second, and microseconds of the server's processor for each."""
    before, began = server.spent(), time.perf_counter()
    done = load(SECONDS)
    return done / (time.perf_counter() - began), (server.spent() - before) / done * 1e6


def rounds(contestants: dict[str, tuple[Server, Callable[[float], int]]]) -> dict[str, tuple[float, float]]:
    """The best round of each, in turns."""
    best: dict[str, tuple[float, float]] = {}
    for _ in range(ROUNDS):
        for name, (server, load) in contestants.items():
            rate, cost = measured(server, load)
            known = best.get(name, (0.0, float("inf")))
            best[name] = max(rate, known[0]), min(cost, known[1])
    return best


def show(title: str, floor: str, found: dict[str, tuple[float, float]]) -> None:
    rate, cost = found[floor]
    table(title, ["", "calls/s", "of the floor", "server µs", "of the floor"], [
        (name, f"{own:,.0f}", f"{own / rate:.2f}", f"{micros:.1f}", f"{cost / micros:.2f}")
        for name, (own, micros) in found.items()
    ])  # fmt: skip


def http_listener(server: Server, dead: Server) -> None:
    many = [f"user:{number}" for number in range(1000)]
    hello = [b"GET /hello HTTP/1.1\r\nhost: x\r\n\r\n"]
    key = [post("/v1/check", f'{{"key":"{name}","limit":"1000000/second"}}') for name in many]
    tight = [post("/v1/check", f'{{"key":"{name}","limit":"1/hour"}}') for name in many]
    asked = [
        post("/v1/check", f'{{"request":{{"method":"GET","path":"/x","ip":"198.51.100.{n % 250}"}}}}')
        for n in range(1000)
    ]
    four = f'[{",".join([f"""{{"key":"{name}","limit":"1000000/second"}}""" for name in many[:4]])}]'

    def load(port: int, requests: list[bytes]) -> Callable[[float], int]:
        loader = wrk_load if shutil.which("wrk") else http_load
        return lambda seconds: loader(port, requests, seconds)

    by = "wrk" if shutil.which("wrk") else "a Python client, which is the slower side"
    show(f"HTTP, one request at a time on each of {CLIENTS} connections, by {by}", "hello", rounds({
        "hello": (server, load(server.http, hello)),
        "/v1/check, admitted": (server, load(server.http, key)),
        "/v1/check, refused": (server, load(server.http, tight)),
        "/v1/check, by the rules": (server, load(server.http, asked)),
        "/v1/check, four together": (server, load(server.http, [post("/v1/check", f'{{"checks":{four}}}')])),
        "/v1/check, store dead": (dead, load(dead.http, key)),
        "/v1/check, refused, store dead": (dead, load(dead.http, tight)),
    }))  # fmt: skip


def grpc_load(
    port: int, method: str, payload: bytes, seconds: float, gap: float = 0.0, callers: int = CLIENTS
) -> tuple[int, list[float]]:
    """How many answers came, and how long each took; with a ``gap``, calls begin at that interval."""
    import grpc

    async def run() -> tuple[int, list[float]]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(method)
            times: list[float] = []
            until = time.perf_counter() + seconds

            async def client() -> None:
                while time.perf_counter() < until:
                    began = time.perf_counter()
                    await call(payload)
                    times.append(time.perf_counter() - began)

            async def one() -> None:
                began = time.perf_counter()
                await call(payload)
                times.append(time.perf_counter() - began)

            if not gap:
                await asyncio.gather(*[client() for _ in range(callers)])
            else:
                tasks, due = [], time.perf_counter()
                while due < until:
                    due += gap
                    await asyncio.sleep(max(0.0, due - time.perf_counter()))
                    tasks.append(asyncio.ensure_future(one()))
                await asyncio.gather(*tasks)
            return len(times), times

    return asyncio.run(run())


def grpc_listener(server: Server, dead: Server) -> None:
    from envoy.service.ratelimit.v3 import rls_pb2

    def asked(*keys: str) -> bytes:
        request = rls_pb2.RateLimitRequest(domain="bench")
        for key in keys:
            request.descriptors.add().entries.add(key=key, value="42")
        return bytes(request.SerializeToString())

    def load(server: Server, method: str, payload: bytes) -> tuple[Server, Callable[[float], int]]:
        return server, lambda seconds: grpc_load(server.grpc, method, payload, seconds)[0]

    ask = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    found = rounds({
        "an empty method": load(server, "/bench.Empty/Call", b""),
        "admitted": load(server, ask, asked("user")),
        "refused": load(server, ask, asked("tight")),
        "two descriptors": load(server, ask, asked("user", "user")),
        "store dead": load(dead, ask, asked("user")),
    })  # fmt: skip
    show(f"gRPC, {CLIENTS} callers, ShouldRateLimit", "an empty method", found)
    for name, whom in (("admitted", server), ("store dead", dead)):
        peak, best = found[name][0], (float("inf"), float("inf"))
        for _ in range(ROUNDS):
            _, times = grpc_load(whom.grpc, ask, asked("user"), SECONDS, gap=2 / peak)
            times.sort()
            best = min(best, (times[int(len(times) * 0.99)] * 1e3, times[len(times) // 2] * 1e3))
        most, half = best
        print(f"{name}, at half of the peak ({peak / 2:,.0f}/s): half under {half:.2f} ms, 99 % under {most:.2f} ms")


def redis_rate(port: int, *words: str, calls: int = 300_000, clients: int = 50, ahead: int = 32) -> float:
    """Commands a second by redis-benchmark, which counts them itself."""
    options = ["-p", str(port), "-P", str(ahead), "-c", str(clients), "-n", str(calls), "-r", "10000", "-q"]
    command = ["redis-benchmark", *options, *words]
    if shutil.which("taskset"):
        command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout.replace("\r", "\n")
    return max(
        float(line.rpartition(": ")[2].split()[0]) for line in text.splitlines() if "requests per second" in line
    )


def evalsha_rate(port: int) -> float:
    import redis

    client = redis.Redis(port=port)
    digest = client.script_load("return redis.call('INCR', KEYS[1])")
    done, until = 0, time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        client.evalsha(digest, 1, "counter")
        done += 1
    return done / SECONDS


def resp_listener(server: Server, dead: Server) -> None:
    if not shutil.which("redis-benchmark") or not shutil.which("redis-server"):
        print("\nno redis-benchmark here: the Redis listener is not measured")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    if shutil.which("taskset"):
        command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
    peer = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(0.5)
    best = dict.fromkeys(
        (
            "redis-server INCR", "CL.THROTTLE, admitted", "CL.THROTTLE, refused", "CL.THROTTLE, store dead",
            "redis-py EVALSHA",
        ),
        0.0,
    )  # fmt: skip
    try:
        for _ in range(ROUNDS):
            for name, rate in (
                ("redis-server INCR", redis_rate(port, "INCR", "counter")),
                ("CL.THROTTLE, admitted", redis_rate(server.resp, "CL.THROTTLE", "k__rand_int__", "9999", "9999", "1")),
                ("CL.THROTTLE, refused", redis_rate(server.resp, "CL.THROTTLE", "one", "1", "1", "3600")),
                ("CL.THROTTLE, store dead", redis_rate(dead.resp, "CL.THROTTLE", "k__rand_int__", "9999", "9999", "1")),
                ("redis-py EVALSHA", evalsha_rate(port)),
            ):  # fmt: skip
                best[name] = max(best[name], rate)
    finally:
        peer.terminate()
        peer.wait()
    title = "Redis protocol, redis-benchmark -P 32 -c 50; redis-py one at a time"
    table(title, ["", "calls/s", "of INCR", "of EVALSHA"], [
        (name, f"{rate:,.0f}", f"{rate / best['redis-server INCR']:.2f}", f"{rate / best['redis-py EVALSHA']:.1f}")
        for name, rate in best.items()
    ])  # fmt: skip


def fleet(memory: Server) -> None:
    """Each listener on a live Redis, beside the same load in memory."""
    from envoy.service.ratelimit.v3 import rls_pb2

    if not shutil.which("redis-benchmark") or not shutil.which("redis-server"):
        print("\nno redis-server here: the service on a live Redis is not measured")
        return
    keys = [f'{{"key":"user:{number}","limit":"1000000/second"}}' for number in range(1000)]
    checks = [post("/v1/check", body) for body in keys]
    request = rls_pb2.RateLimitRequest(domain="bench")
    request.descriptors.add().entries.add(key="user", value="42")
    raw = bytes(request.SerializeToString())
    method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    loads: dict[str, Callable[[Server, float], int]] = {
        f"POST /v1/check, {FLEET_CLIENTS} connections":
            lambda server, seconds: http_load(server.http, checks, seconds, FLEET_CLIENTS),
        f"POST /v1/check, {FLEET_CLIENTS} connections, {AHEAD} pipelined":
            lambda server, seconds: http_load(server.http, checks, seconds, FLEET_CLIENTS, AHEAD),
        f"CL.THROTTLE, {FLEET_CLIENTS} connections": partial(throttle_load, FLEET_CLIENTS, 1),
        f"CL.THROTTLE, {FLEET_CLIENTS} connections, {AHEAD} pipelined": partial(throttle_load, FLEET_CLIENTS, AHEAD),
        f"Envoy RLS, {FLEET_CLIENTS} callers":
            lambda server, seconds: grpc_load(server.grpc, method, raw, seconds, callers=FLEET_CLIENTS)[0],
    }  # fmt: skip
    with redis_server() as url:
        live = Server(url)
        try:
            rows = []
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
            for name, load in loads.items():
                best = rounds({
                    which: (server, partial(load, server)) for which, server in (("memory", memory), ("live", live))
                })  # fmt: skip
                (rate, cost), (live_rate, live_cost) = best["memory"], best["live"]
                rows.append((name, f"{rate:,.0f}", f"{live_rate:,.0f}", f"{live_rate / rate:.2f}",
                             f"{cost:.1f}", f"{live_cost:.1f}", f"{cost / live_cost:.2f}"))  # fmt: skip
        finally:
            live.close()
    heads = ["", "memory, calls/s", "live Redis", "ratio", "memory, server µs", "live Redis", "ratio"]
    table("The service on a live Redis, beside memory; Redis shares the two cores with loader and server", heads, rows)


def throttle_load(clients: int, ahead: int, server: Server, seconds: float) -> int:
    """CL.THROTTLE calls by redis-benchmark, which makes a number of them, however long that takes."""
    calls = 30_000 * (1 + ahead // 4)
    redis_rate(
        server.resp, "CL.THROTTLE", "k__rand_int__", "9999", "9999", "1", calls=calls, clients=clients, ahead=ahead
    )
    return calls


def main() -> None:
    conditions()
    if hasattr(os, "sched_setaffinity"):
        before = os.sched_getaffinity(0)
    server, dead = Server(), Server("redis://127.0.0.1:1/0")
    try:
        os.sched_setaffinity(0, {min(before)})
        if "--fleet" not in sys.argv:
            http_listener(server, dead)
            grpc_listener(server, dead)
            os.sched_setaffinity(0, before)
            resp_listener(server, dead)
        os.sched_setaffinity(0, before)  # Redis takes the core that is free
        fleet(server)
    finally:
        os.sched_setaffinity(0, before)
        server.close()
        dead.close()


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(sys.argv[2:])
    else:
        main()

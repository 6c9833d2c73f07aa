"""Mixed load on every door, with reloads and a store that dies and comes back: no 500, no leak, no wrong answer."""

import http.client
import json
import os
import signal
import threading
import time
from contextlib import contextmanager

import grpc
import pytest
import redis
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from tests.real.command import serving
from tests.real.load import Lag
from tests.real.proxies import call, free_port
from tests.servers import Server

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
SECONDS = 24 if SHORT else 1800
EVERY = 3 if SHORT else 60  # seconds between two reloads
GROWTH = 1.05
RULES = """
[[rules]]
name = "per-ip"
by = "ip"
limit = "%d/minute"

[[rules]]
name = "search"
match = "GET /search"
by = "ip"
limit = "10/minute sliding_window"
"""


class Load:
    """Clients of every door that never stop; ``answers`` counts what they got, ``trouble`` what they never should.

    Each makes so many rounds a second: a soak looks for what time does, not for the most that can be borne.
    """

    def __init__(self, service, resp, rpc):
        self.service, self.resp, self.rpc = service, resp, rpc
        self.answers = {}
        self.trouble = []
        self.ended = threading.Event()
        works = (self.keys, self.requests, self.proxies, self.reservations, self.redis, self.envoy, self.dashboard)
        self.threads = [threading.Thread(target=self.run, args=(work,), daemon=True) for work in works]
        for thread in self.threads:
            thread.start()

    def run(self, work):
        try:
            work()
        except Exception as error:
            self.trouble.append(f"{work.__name__}: {error!r}")

    def note(self, door, what):
        self.answers[door, what] = self.answers.get((door, what), 0) + 1

    def rounds(self, a_second):
        number = 0
        while not self.ended.wait(1 / a_second):
            yield number
            number += 1

    def post(self, wire, path, body, **headers):
        wire.request("POST", path, json.dumps(body), headers)
        answer = wire.getresponse()
        found = answer.read()
        self.note("http", answer.status)
        return answer.status, json.loads(found) if found else None

    @contextmanager
    def http(self):
        wire = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=20)
        try:
            yield wire
        finally:
            wire.close()

    def keys(self):
        with self.http() as wire:
            for number in self.rounds(25):
                for part in range(4):
                    limit = "50/second" if part else f"{number % 20 + 1}/second"
                    self.post(wire, "/v1/check", {"key": f"k{(number * 4 + part) % 5000}", "limit": limit})

    def requests(self):
        with self.http() as wire:
            for number in self.rounds(25):
                asked = {"path": "/search" if number % 3 else "/", "ip": f"198.51.{number % 100}.1"}
                status, found = self.post(wire, "/v1/check", {"request": asked})
                if status == 200 and found["status"] not in (200, 429):
                    self.trouble.append(found)

    def proxies(self):
        """What nginx asks; the answer itself is the status."""
        with self.http() as wire:
            for number in self.rounds(25):
                told = {"X-Original-Method": "GET", "X-Original-URI": "/search"}
                told["X-Forwarded-For"] = f"203.0.113.{number % 9}"
                wire.request("GET", "/v1/auth/deny-403/original", headers=told)
                answer = wire.getresponse()
                answer.read()
                self.note("auth", answer.status)

    def reservations(self):
        with self.http() as wire:
            for number in self.rounds(10):
                asked = {"key": f"r{number % 500}", "limit": "10/minute", "cost": 5}
                status, found = self.post(wire, "/v1/reserve", asked)
                if status == 200 and found["allowed"]:
                    self.post(wire, "/v1/settle", {"reservation": found["reservation"], "actual": 2})

    def redis(self):
        with redis.Redis(port=self.resp, socket_timeout=20) as client:
            for number in self.rounds(10):
                pipe = client.pipeline(transaction=False)
                for one in range(32):
                    pipe.execute_command("CL.THROTTLE", f"r{number % 50}-{one % 8}", 2, 10, 60)
                for answer in pipe.execute(raise_on_error=False):
                    self.note("resp", answer[0] if isinstance(answer, list) else str(answer))

    def envoy(self):
        with grpc.insecure_channel(f"127.0.0.1:{self.rpc}") as channel:
            ask = rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit
            for number in self.rounds(20):
                request = rls_pb2.RateLimitRequest(domain="soak")
                entries = request.descriptors.add().entries
                entries.add(key="remote_address", value=f"192.0.2.{number % 5}")
                entries.add(key="path", value="/search")
                self.note("grpc", ask(request, timeout=20).overall_code)

    def dashboard(self):
        """Somebody who looks at the dashboard, and comes back."""
        for _ in self.rounds(0.2):
            with self.http() as wire:
                wire.request("GET", "/v1/live")
                answer = wire.getresponse()
                assert answer.readline() == b"event: history\n"
                for path in ("/", "/metrics", "/readyz"):
                    self.note("pages", call(self.service.port, "GET", path)[0])

    def close(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(30)
        return self.trouble


def decisions(port, key, limit, tries):
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    found = []
    for _ in range(tries):
        wire.request("POST", "/v1/check", json.dumps({"key": key, "limit": limit}))
        found.append(json.loads(wire.getresponse().read()))
    wire.close()
    return found


def admitted(port, key, limit, tries):
    return sum(decision["allowed"] for decision in decisions(port, key, limit, tries))


def is_stood_in_for(port):
    """Whether the service decides without its store."""
    (decision,) = decisions(port, "anybody", "1000000/day", 1)
    return bool(decision.get("reason"))


@pytest.mark.timeout(SECONDS + 240)
def test_hours_of_trouble_leave_no_trace(tmp_path):
    store, resp, rpc = Server(), free_port(), free_port()
    rules = tmp_path / "rules.toml"
    head = f'store = "{store.url}/0?deadline=5"\ntrusted_proxies = ["127.0.0.1"]\n'
    rules.write_text(head + RULES % 600)
    try:
        with serving(tmp_path, rules, "--resp", f"127.0.0.1:{resp}", "--grpc", f"127.0.0.1:{rpc}") as service:
            load = Load(service, resp, rpc)
            began, reloads, outages, memory = time.monotonic(), 0, 0, []
            while time.monotonic() - began < SECONDS:
                time.sleep(EVERY)
                reloads += 1
                rules.write_text(head + RULES % (600 + reloads))
                service.signal(signal.SIGHUP)
                if reloads % 4 == 2:
                    store.kill()
                    outages += 1
                    time.sleep(EVERY / 3)
                    lost = admitted(service.port, f"lost{reloads}", "20/day", 60)
                    assert lost == 10, "a store that is away leaves half of each limit"
                    store.start()
                    with Lag() as lag:
                        back_at = time.monotonic()
                        while is_stood_in_for(service.port):
                            assert time.monotonic() < back_at + 2.5 + lag.worst, "a probe finds it within two seconds"
                            time.sleep(0.05)
                assert admitted(service.port, f"exact{reloads}", "20/day", 60) == 20
                memory.append(service.memory())
                print(f"{time.monotonic() - began:6.0f} s  {memory[-1] / 2**20:.1f} MiB  "
                      f"{sum(load.answers.values())} answers", flush=True)  # fmt: skip
            assert load.close() == []
            expected = {"http": {200}, "auth": {200, 403}, "resp": {0, 1}, "grpc": {1, 2}, "pages": {200}}
            found = {door: {what for own, what in load.answers if own == door} for door in expected}
            away = load.answers.pop(("http", 503), 0)  # a reservation cannot be settled where nobody knows of it
            found["http"] -= {503}
            assert found == expected, load.answers
            assert outages >= 1
            assert service.text().count("rules reloaded") == reloads
            assert "failed" not in service.text()
            assert "Traceback" not in service.text()
            before = memory[len(memory) // 3]
            assert memory[-1] <= before * GROWTH, [round(size / 2**20, 1) for size in memory]
            print(f"{load.answers}, {away} unavailable, {reloads} reloads, {outages} outages, "
                  f"memory {before / 2**20:.1f} to {memory[-1] / 2**20:.1f} MiB")  # fmt: skip
    finally:
        store.close()

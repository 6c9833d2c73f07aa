"""Mixed load on every door, with reloads and a store that dies and comes back: no 500, no leak, no wrong answer."""

import http.client
import json
import os
import signal
import threading
import time

import pytest
import redis

from tests.real.command import serving
from tests.real.proxies import free_port
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
    """Clients that never stop; ``statuses`` counts what they got."""

    def __init__(self, port, resp):
        self.port, self.resp = port, resp
        self.statuses = {}
        self.trouble = []
        self.ended = threading.Event()
        self.threads = [
            threading.Thread(target=self.run, args=(work,)) for work in (self.keys, self.requests, self.redis)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, work):
        try:
            work()
        except Exception as error:
            self.trouble.append(repr(error))

    def http(self, path, bodies):
        wire = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        number = 0
        while not self.ended.is_set():
            wire.request("POST", path, bodies[number % len(bodies)])
            answer = wire.getresponse()
            answer.read()
            self.statuses[answer.status] = self.statuses.get(answer.status, 0) + 1
            number += 1
        wire.close()

    def keys(self):
        self.http("/v1/check", [json.dumps({"key": f"k{n}", "limit": "50/second"}) for n in range(500)])

    def requests(self):
        self.http("/v1/check", [
            json.dumps({"request": {"path": "/search" if n % 3 else "/", "ip": f"198.51.{n % 100}.1"}})
            for n in range(600)
        ])  # fmt: skip

    def redis(self):
        with redis.Redis(port=self.resp, socket_timeout=20) as client:
            while not self.ended.is_set():
                pipe = client.pipeline(transaction=False)
                for number in range(32):
                    pipe.execute_command("CL.THROTTLE", f"r{number}", 99, 100, 1)
                answers = pipe.execute(raise_on_error=False)
                wrong = [answer for answer in answers if not isinstance(answer, list)]
                assert not wrong, wrong[:3]

    def close(self):
        self.ended.set()
        for thread in self.threads:
            thread.join(30)
        return self.trouble


def admitted(port, key, limit, tries):
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    found = 0
    for _ in range(tries):
        wire.request("POST", "/v1/check", json.dumps({"key": key, "limit": limit}))
        found += json.loads(wire.getresponse().read())["allowed"]
    wire.close()
    return found


@pytest.mark.timeout(SECONDS + 120)
def test_hours_of_trouble_leave_no_trace(tmp_path):
    store, resp = Server(), free_port()
    rules = tmp_path / "rules.toml"
    rules.write_text(f'store = "{store.url}/0?deadline=1"\n' + RULES % 600)
    try:
        with serving(tmp_path, rules, "--resp", f"127.0.0.1:{resp}") as service:
            load = Load(service.port, resp)
            began, reloads, outages, memory = time.monotonic(), 0, 0, []
            while time.monotonic() - began < SECONDS:
                time.sleep(EVERY)
                reloads += 1
                rules.write_text(f'store = "{store.url}/0?deadline=1"\n' + RULES % (600 + reloads))
                service.signal(signal.SIGHUP)
                if reloads % 4 == 2:
                    store.kill()
                    outages += 1
                    time.sleep(EVERY / 3)
                    lost = admitted(service.port, f"lost{reloads}", "20/day", 60)
                    assert lost == 10, "a store that is away leaves half of each limit"
                    store.start()
                    time.sleep(2.5)  # a probe finds it within two seconds
                assert admitted(service.port, f"exact{reloads}", "20/day", 60) == 20
                memory.append(service.memory())
            assert load.close() == []
            assert set(load.statuses) == {200}, load.statuses
            assert outages >= 1
            assert service.text().count("rules reloaded") == reloads
            assert "failed" not in service.text()
            settled = memory[len(memory) // 3]
            assert memory[-1] <= settled * GROWTH, [round(size / 2**20, 1) for size in memory]
            print(f"{sum(load.statuses.values())} answers, {reloads} reloads, {outages} outages, "
                  f"memory {settled / 2**20:.1f} to {memory[-1] / 2**20:.1f} MiB")  # fmt: skip
    finally:
        store.close()

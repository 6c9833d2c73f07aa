"""The service under attack while a good client asks: its answers stay right, quick, and the memory bounded."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager

import pytest

from tests.real.attackers import command
from tests.real.command import serving
from tests.real.proxies import free_port

pytestmark = pytest.mark.real
SHORT = bool(os.environ.get("RATEKEEPER_REAL_SHORT"))
SECONDS = int(os.environ.get("ATTACK_SECONDS", "5" if SHORT else "600"))
ATTACKED_FOR, QUIET_FOR = 2.0, 1.0  # seconds, in turns: the machine may be busy with other things at any time
MEGABYTE = 1_048_576
TABLES = 64  # megabytes
# What may be kept beside the tables: incomplete requests of two listeners, unread responses, caches, the process.
BESIDE = 64 + 128
RULES = '[[rules]]\nname = "per-ip"\nby = "ip"\nlimit = "1000000/day"\n'


ECHO = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sock, _ = server.accept()
    while part := sock.recv(100):
        sock.sendall(part)
"""


@contextmanager
def echo():
    """A server that does nothing and is attacked by nobody: how long it takes is what the machine takes."""
    with subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE, text=True) as process:
        address = "127.0.0.1", int(process.stdout.readline())
        with socket.create_connection(address, timeout=30) as sock:
            yield sock


def quantiles(took):
    took = sorted(took)
    return took[len(took) // 2], took[len(took) * 99 // 100]


class GoodClient:
    """Asks over HTTP and RESP in turn, and knows every answer in advance."""

    def __init__(self, http_port, resp_port, beside):
        self.beside = beside
        self.http = http.client.HTTPConnection("127.0.0.1", http_port, timeout=30)
        self.resp = socket.create_connection(("127.0.0.1", resp_port), timeout=30)
        self.left = 1_000_000
        self.asked = 0

    def close(self):
        self.http.close()
        self.resp.close()

    def ask(self):
        """Seconds that one question took."""
        self.left -= 1
        self.asked += 1
        limit = "1000000/day fixed_window"
        began = time.perf_counter()
        if self.asked % 2:
            self.http.request("POST", "/v1/check", json.dumps({"key": "good", "limit": limit, "name": "good"}))
            body = json.loads(self.http.getresponse().read())
            answer = body["allowed"], body["remaining"]
        else:
            self.resp.sendall(command("RK.CHECK", "good", limit, "NAME", "good"))
            words = self.resp.recv(1000).split(b"\r\n")
            answer = words[1] == b":1", int(words[3][1:])
        took = time.perf_counter() - began
        assert answer == (True, self.left)
        return took

    def ask_beside(self):
        began = time.perf_counter()
        self.beside.sendall(b"x" * 50)
        self.beside.recv(100)
        return time.perf_counter() - began

    def ask_for(self, seconds):
        """How long each question took, and the server beside that does nothing."""
        until, took, beside = time.monotonic() + seconds, [], []
        while time.monotonic() < until:
            took.append(self.ask())
            beside.append(self.ask_beside())
            time.sleep(0.005)
        return took, beside


def test_a_good_client_is_served_while_others_attack(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES)
    resp_port = free_port()
    words = [tmp_path / "rules.toml", "--resp", f"127.0.0.1:{resp_port}", "--table-memory", TABLES, "--max-limits", 256]
    with (
        echo() as beside,
        serving(tmp_path, *words) as service,
        closing(GoodClient(service.port, resp_port, beside)) as client,
    ):
        client.ask_for(1)
        base = service.memory()
        seconds = SECONDS * (ATTACKED_FOR + QUIET_FOR) / ATTACKED_FOR
        attackers = [sys.executable, "-m", "tests.real.attackers", str(service.port), str(resp_port), f"{seconds:.0f}"]
        memory, took, took_beside, took_quiet = [], [], [], []
        with subprocess.Popen(attackers, stdout=subprocess.PIPE, text=True) as attack:
            while attack.poll() is None:
                more, more_beside = client.ask_for(ATTACKED_FOR)
                took += more
                took_beside += more_beside
                memory.append(service.memory())
                attack.send_signal(signal.SIGSTOP)
                try:
                    client.ask_for(0.1)  # what the attackers had sent is answered
                    took_quiet += client.ask_for(QUIET_FOR)[0]
                finally:
                    attack.send_signal(signal.SIGCONT)
            done = json.loads(attack.stdout.read())
        attacked, machine, quiet = quantiles(took), quantiles(took_beside), quantiles(took_quiet)
        for name, (p50, p99) in {"quiet": quiet, "attacked": attacked, "echo beside": machine}.items():
            print(f"{name}: p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")
        print(f"memory {base / MEGABYTE:.0f} -> {max(memory) / MEGABYTE:.0f} MB; {client.asked} answers; {done}")
        assert max(memory) - base < (TABLES + BESIDE) * MEGABYTE
        if not SHORT:  # the attackers share the machine: its lag is not ours
            assert attacked[1] <= 5 * max(quiet[1], machine[1])
        assert "Traceback" not in service.text()
        client.http.request("GET", "/metrics")
        page = client.http.getresponse().read()
        assert len(page) < 2 * MEGABYTE
        assert b'ratekeeper_faults_total{door="http"} 0' in page
    quick = ("names", "keys", "routes", "logs")
    for attacked in quick if SHORT else (*quick, "giant_bodies", "pipelines", "unread", "slow", "idle"):
        if attacked != "slow" or SECONDS > 60:
            assert done.get(attacked, 0) > 0, attacked

"""Several workers: exact together, replaced when they die, told to end and to reload."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ratekeeper
from ratekeeper.stores import SCHEMES
from tests.real.command import serving
from tests.real.load import Lag
from tests.real.proxies import call, free_port

pytestmark = pytest.mark.real


@pytest.fixture(params=["shm", "redis"])
def store(request):
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_server').url}/6?deadline=10"
    if "shm" not in SCHEMES:
        pytest.skip("no shared memory here")
    return "memory://"  # becomes shared memory by itself


def ask(port, key, limit):
    return call(port, "POST", "/v1/check?deny_status=429", json.dumps({"key": key, "limit": limit}))[0]


def fired(port, key, limit, threads=8, each=50):
    """Statuses of many calls at once, each on a connection of its own."""
    found = []
    crowd = [
        threading.Thread(target=lambda: found.extend([ask(port, key, limit) for _ in range(each)]))
        for _ in range(threads)
    ]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    return found


def test_workers_admit_exactly_the_limit_together_and_survive_a_death(tmp_path, store):
    with serving(tmp_path, "--store", store, "--workers", 2) as service:
        key = f"exact-{service.port}"
        found = fired(service.port, key, "40/day")
        assert (found.count(200), found.count(429)) == (40, 360)
        first, *_ = service.workers()
        os.kill(first, signal.SIGKILL)
        until = time.monotonic() + 20
        while first in service.workers() or len(service.workers()) < 2:
            assert time.monotonic() < until
            time.sleep(0.05)
        time.sleep(1.0)  # the new one opens its doors
        again = fired(service.port, key, "40/day", threads=4, each=20)
        assert set(again) == {429}
        assert service.close() == 0
        assert "and is replaced" in service.text()
        assert not Path(f"/dev/shm/ratekeeper.ratekeeper-{service.process.pid}").exists()


def test_memory_of_a_service_that_was_killed_is_removed_by_the_next(tmp_path):
    if "shm" not in SCHEMES:
        pytest.skip("no shared memory here")
    with serving(tmp_path, "--workers", 2) as service:
        ask(service.port, "k", "1/day")
        for process in [service.process.pid, *service.workers()]:
            os.kill(process, signal.SIGKILL)
        left = Path(f"/dev/shm/ratekeeper.ratekeeper-{service.process.pid}")
        assert left.exists()
    with serving(tmp_path, "--workers", 2) as service:
        assert not left.exists()
        assert [ask(service.port, "k", "1/day") for _ in range(2)] == [200, 429]


def test_workers_end_with_their_master_however_it_ends(tmp_path):
    with serving(tmp_path, "--workers", 2) as service:
        workers = service.workers()
        assert len(workers) == 2
        service.process.kill()
        until = time.monotonic() + 20
        while any(Path(f"/proc/{worker}").exists() for worker in workers):
            assert time.monotonic() < until, service.text()
            time.sleep(0.02)
        assert "has ended, so the worker ends too" in service.text()


def is_open(port):
    with socket.socket() as wire:
        return wire.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("wait", [0.1, 0.3, 0.5, "the first worker", "and again", "and again, as it is a race"])
def test_a_service_ends_even_if_it_is_told_to_while_it_starts(tmp_path, wait):
    port = free_port()
    words = [sys.executable, "-m", "ratekeeper", "serve", "--workers", "4", "--http", f"127.0.0.1:{port}"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as service:
        if isinstance(wait, float):
            time.sleep(wait)
        else:
            while not is_open(port):
                assert service.poll() is None
        service.terminate()
        try:
            assert service.wait(20) in (0, -signal.SIGTERM)  # the latter: before it could listen to signals
        finally:
            service.kill()


def test_a_bad_envoy_file_ends_the_service_before_its_workers_start(tmp_path):
    config = tmp_path / "ratelimit.yaml"
    config.write_text("domain: [")
    words = ["--workers", "2", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--envoy-config", str(config)]
    found = subprocess.run(
        [sys.executable, "-m", "ratekeeper", "serve", *words], capture_output=True, text=True, timeout=30, check=False
    )
    assert found.returncode == 2
    assert "ratelimit.yaml: expected YAML" in found.stderr
    assert "Traceback" not in found.stderr


def test_the_sample_rules_serve_with_workers(tmp_path):
    sample = Path(ratekeeper.__file__).parent / "service" / "sample.toml"
    with serving(tmp_path, sample, "--workers", 2) as service:
        asked = json.dumps({"request": {"path": "/api/search", "ip": "198.51.100.1"}})
        found = [call(service.port, "POST", "/v1/check?deny_status=429", asked)[0] for _ in range(30)]
        assert (found.count(200), found.count(429)) == (10, 20)


def test_a_kill_switch_reaches_all_workers_within_a_second(tmp_path, store):
    with serving(tmp_path, "--store", store, "--workers", 2, "--admin-token", "t") as service:
        key = f"killed-{service.port}"
        ask(service.port, key, "1/day")
        assert set(fired(service.port, key, "1/day", 4, 10)) == {429}
        with Lag() as lag:
            told_at = time.monotonic()
            status, *_ = call(service.port, "POST", "/v1/admin/kill", '{"killed": true}', authorization="Bearer t")
            assert status == 200
            while True:
                asked_at = time.monotonic()
                if set(fired(service.port, key, "1/day", 4, 10)) == {200}:
                    break
                assert asked_at < told_at + 1.0 + lag.worst


def test_systemd_hears_of_the_start_the_reload_and_the_end(tmp_path):
    place = str(tmp_path / "notify")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "a"\nlimit = "1/day"\n')
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wire:
        wire.bind(place)
        wire.settimeout(20)
        with serving(tmp_path, rules, environment={"NOTIFY_SOCKET": place}) as service:
            assert wire.recv(200).startswith(b"READY=1")
            service.signal(signal.SIGHUP)
            assert wire.recv(200).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert wire.recv(200) == b"READY=1"
            service.signal(signal.SIGTERM)
            assert wire.recv(200) == b"STOPPING=1"


@pytest.mark.parametrize("workers", [1, 2])
def test_a_reload_reaches_the_rules_and_a_bad_file_does_not(tmp_path, workers):
    rules = tmp_path / "rules.toml"
    text = 'trusted_proxies = ["127.0.0.1"]\n[[rules]]\nname = "a"\nby = "all"\nlimit = "{}"\n'
    rules.write_text(text.format("1/day"))
    with serving(tmp_path, rules, "--workers", workers) as service:
        asked = json.dumps({"request": {"path": "/"}})

        def statuses():
            return [call(service.port, "POST", "/v1/check?deny_status=429", asked)[0] for _ in range(2)]

        assert statuses() == [200, 429]
        for new, reloaded in (("limit = ", "not reloaded"), (text.format("3/week"), "rules reloaded")):
            rules.write_text(new)
            service.signal(signal.SIGHUP)
            until = time.monotonic() + 10
            told = 1 if reloaded == "not reloaded" else workers  # a bad file is stopped by the master
            while service.text().count(reloaded) < told:
                assert time.monotonic() < until, service.text()
                time.sleep(0.02)
            assert statuses() == ([429, 429] if reloaded == "not reloaded" else [200, 200])


def test_workers_let_go_of_what_reloads_leave(tmp_path):
    """By the last worker that had it, once it has recovered: two seconds for a limit of a second."""
    if "shm" not in SCHEMES:
        pytest.skip("no shared memory here")
    rules = tmp_path / "rules.toml"
    text = '[[rules]]\nname = "a"\nby = "all"\nlimit = "100 per {} milliseconds"\n'
    rules.write_text(text.format(1000))
    with serving(tmp_path, rules, "--workers", 2) as service:
        segment = Path(f"/dev/shm/ratekeeper.ratekeeper-{service.process.pid}")
        for number in range(1, 5):
            rules.write_text(text.format(1000 - number))
            service.signal(signal.SIGHUP)
            until = time.monotonic() + 20
            while service.text().count("rules reloaded") < 2 * number:
                assert time.monotonic() < until, service.text()
                time.sleep(0.02)
        while len(list(segment.glob("*.table"))) > 1:
            assert time.monotonic() < until, list(segment.iterdir())
            time.sleep(0.1)
        assert call(service.port, "POST", "/v1/check", json.dumps({"request": {"path": "/"}}))[0] == 200
        assert len(list(segment.glob("*.table"))) == 1

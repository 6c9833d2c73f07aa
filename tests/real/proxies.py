"""A real proxy in front of a small application, asking a real service: what each proxy's test needs."""

import http.client
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.servers import free_port

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = """
trusted_proxies = ["127.0.0.1"]

[[rules]]
name = "all"
by = "ip"
limit = "10/hour"

[[rules]]
name = "writes"
match = "POST /write"
by = "ip"
limit = "2/hour"
"""


class App(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    do_POST = do_GET

    def log_message(self, *words):
        pass


@contextmanager
def application():
    server = ThreadingHTTPServer(("127.0.0.1", 0), App)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def binary(name, *places):
    found = next((str(place) for place in places if Path(place).exists()), None) or shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} here")
    return found


@contextmanager
def started(words, port, folder):
    """A process that listens on ``port``."""
    log = (folder / "proxy.log").open("wb")
    process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        until = time.monotonic() + 20
        while True:
            try:
                call(
                    port, "GET", "/ready-or-not", wait=10
                )  # a slow first answer is counted, and must not be asked for twice
                break
            except OSError:
                assert process.poll() is None, (folder / "proxy.log").read_text()
                assert time.monotonic() < until, (folder / "proxy.log").read_text()
                time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait(20)
        log.close()


def call(port, method, path, body=None, wait=10, **headers):
    wire = http.client.HTTPConnection("127.0.0.1", port, timeout=wait)
    try:
        wire.request(method, path, body, headers)
        answer = wire.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        wire.close()


def filled(path, **words):
    """A deployed configuration with its places filled in."""
    text = path.read_text()
    for name, value in words.items():
        text = text.replace(name, str(value))
    return text


__all__ = ["DEPLOY", "RULES", "application", "binary", "call", "filled", "free_port", "started"]

"""Real servers for tests, on free ports of the loopback: started when first asked for, ended with the session."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

PLACES = f"{Path(sys.prefix, 'bin')}:/usr/local/bin:/usr/bin:/bin"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One redis-server or valkey-server process; ``options`` are those of its command line, without the dashes."""

    def __init__(self, name="redis-server", port=None, **options):
        self.binary = shutil.which(name, path=PLACES)
        if self.binary is None:
            pytest.skip(f"no {name} here")
        self.port = port or free_port()
        self.folder = tempfile.mkdtemp(prefix="ratekeeper-")
        self.options = {"save": "", "bind": "127.0.0.1", "enable-debug-command": "local", **options}
        self.start()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def start(self):
        words = [self.binary, "--port", str(self.port), "--dir", self.folder]
        for option, value in self.options.items():
            words += [f"--{option.replace('_', '-')}", str(value)]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait()

    def wait(self, seconds=20):
        """Until it answers, whatever it says."""
        until = time.monotonic() + seconds
        while True:
            try:
                with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                    probe.sendall(b"PING\r\n")
                    if probe.recv(100):
                        return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise

    def client(self, **options):
        import redis

        return redis.Redis(port=self.port, **options)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def redis_server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def valkey_server():
    server = Server("valkey-server")
    yield server
    server.close()


@pytest.fixture(scope="session", params=["redis_server", "valkey_server"])
def any_server(request):
    """Each kind of server in turn."""
    return request.getfixturevalue(request.param)

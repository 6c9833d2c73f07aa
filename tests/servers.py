"""Real servers for tests, on free ports of the loopback: started when first asked for, ended with the session."""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

# A run that is killed must leave no server behind: where there is setpriv, the kernel ends them with the thread, ours,
# that started them.
WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
PLACES = f"{Path(sys.prefix, 'bin')}:/usr/local/bin:/usr/bin:/bin"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def low_port():
    """A port whose cluster bus, 10000 above it, is a port too."""
    while True:
        port = free_port()
        if port < 55_000:
            return port
        port -= 20_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


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
        self.run(words)

    def run(self, words):
        self.process = subprocess.Popen([*WITH_US, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


class Cluster:
    """Three masters with a third of the slots each."""

    SHARES = ((0, 5460), (5461, 10922), (10923, 16383))

    def __init__(self):
        options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "appendonly": "no"}
        self.servers = [Server(port=low_port(), **options) for _ in self.SHARES]
        clients = [server.client() for server in self.servers]
        for client, (first, last) in zip(clients, self.SHARES, strict=True):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        until = time.monotonic() + 30
        for client in clients:
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                assert time.monotonic() < until, "the cluster does not come together"

    @property
    def url(self):
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers)

    def owner(self, slot):
        """The server that has a slot when the cluster is new."""
        return next(
            server for server, (first, last) in zip(self.servers, self.SHARES, strict=True) if first <= slot <= last
        )

    def close(self):
        for server in self.servers:
            server.close()


class Sentinel(Server):
    """A sentinel that watches one master under the name ``main``."""

    def __init__(self, master):
        self.master = master
        super().__init__()

    @property
    def url(self):
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def start(self):
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1",
            "sentinel down-after-milliseconds main 500",
            "sentinel failover-timeout main 3000",
        ]
        settings = Path(self.folder, "sentinel.conf")
        settings.write_text("\n".join(lines))
        self.run([self.binary, str(settings), "--sentinel", "--dir", self.folder])


@pytest.fixture(scope="session")
def redis_cluster():
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def redis_sentinel(redis_server):
    sentinel = Sentinel(redis_server)
    yield sentinel
    sentinel.close()


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

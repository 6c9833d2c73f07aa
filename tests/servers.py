"""Real servers on free ports of the loopback: started when a test first needs one, ended with the session."""

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

# A run that is killed must leave no server behind.  Where there is setpriv, the kernel ends a server together with the
# thread that started it.
END_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
FIRST_EPHEMERAL = 32_768  # from here on the system gives ports to clients: see ip_local_port_range
READY = re.compile(rb"[Rr]eady to accept connections|Sentinel ID is")  # what servers and sentinels log
SEARCH_PATH = f"{Path(sys.prefix, 'bin')}:/usr/local/bin:/usr/bin:/bin"


def free_port():
    """A port where nobody listens, and that no client is given until our server binds it.

    The port 10,000 above it is free too: there a server of a cluster has its bus.
    """
    while True:
        # Not random.randrange: pytest-randomly seeds it alike in all workers.
        port = random.SystemRandom().randrange(10_000, FIRST_EPHEMERAL - 10_000)
        with contextlib.suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port


@contextlib.contextmanager
def closed_port():
    """A port that refuses connections for as long as the block lasts: it is bound, but not listened on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Server:
    """One redis-server or valkey-server process.  ``options`` are those of its command line, without the dashes."""

    def __init__(self, name="redis-server", port=None, **options):
        self.binary = shutil.which(name, path=SEARCH_PATH)
        if self.binary is None:
            pytest.skip(f"no {name} here")
        self.folder = tempfile.mkdtemp(prefix="ratekeeper-")
        self.options = {"save": "", "bind": "127.0.0.1", "enable-debug-command": "local", **options}
        self.port = port or free_port()
        try:
            self.start()
        except OSError:
            if port:
                raise
            self.port = free_port()  # another process was quicker
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
        """Start the process, and return once it logs that it listens.  It ignores that its log is not read further."""
        self.process = subprocess.Popen([*END_WITH_PARENT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with self.process.stdout as lines:
            if not any(READY.search(line) for line in lines):
                raise OSError(f"{self.binary} ended with {self.process.wait()} on port {self.port}")

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
    """Three masters with a third of the slots each.  A master that is silent for ``patience`` milliseconds is dead."""

    SHARES = ((0, 5460), (5461, 10922), (10923, 16383))

    def __init__(self, patience=60_000, between=None, **options):
        options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "appendonly": "no", **options}
        self.proxies = []
        if between is None:
            self.servers = [Server(**options) for _ in self.SHARES]
        else:  # each node is reached through what ``between`` makes of its port, and says so
            ports = [free_port() for _ in self.SHARES]
            self.proxies = [between(port) for port in ports]
            self.servers = [
                Server(
                    port=port,
                    **options,
                    cluster_announce_port=proxy.port,
                    cluster_announce_bus_port=port + 10_000,
                    cluster_announce_ip="127.0.0.1",
                )
                for port, proxy in zip(ports, self.proxies, strict=True)
            ]
        clients = [server.client() for server in self.servers]
        for client, (first, last) in zip(clients, self.SHARES, strict=True):
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for client in clients[1:]:
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port)
        until = time.monotonic() + 30
        for client in clients:
            while b"cluster_state:ok" not in client.execute_command("CLUSTER", "INFO"):
                assert time.monotonic() < until, "the cluster does not come together"
                client.execute_command("WAIT", 1, 20)  # 20 ms, for a replica that does not exist
        for client in clients:  # a short timeout forms the cluster sooner; a long one then forgives a busy machine
            client.config_set("cluster-node-timeout", patience)

    @property
    def url(self):
        return "redis+cluster://" + ",".join(f"127.0.0.1:{each.port}" for each in self.proxies or self.servers)

    def owner(self, slot):
        """The server that has a slot when the cluster is new."""
        return next(
            server for server, (first, last) in zip(self.servers, self.SHARES, strict=True) if first <= slot <= last
        )

    def close(self):
        for each in (*self.proxies, *self.servers):
            each.close()


class Sentinel(Server):
    """A sentinel that watches one master, ``main``, and takes it for dead after ``patience`` milliseconds."""

    def __init__(self, master, patience=60_000):
        self.master, self.patience = master, patience
        super().__init__()

    @property
    def url(self):
        return f"redis+sentinel://127.0.0.1:{self.port}/main"

    def start(self):
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"sentinel monitor main 127.0.0.1 {self.master.port} 1",
            f"sentinel down-after-milliseconds main {self.patience}",
            "sentinel failover-timeout main 3000",
        ]
        settings = Path(self.folder, "sentinel.conf")
        settings.write_text("\n".join(lines))
        self.run([self.binary, str(settings), "--sentinel", "--dir", self.folder])


class Memcached:
    """One memcached process."""

    def __init__(self, port=None, *options):
        self.binary = shutil.which("memcached", path=SEARCH_PATH)
        if self.binary is None:
            pytest.skip("no memcached here: apt-get install memcached")
        self.options = options
        self.port = port or free_port()
        self.start()

    @property
    def url(self):
        return f"memcached://127.0.0.1:{self.port}"

    def start(self):
        words = [self.binary, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-u", "root", *self.options]
        self.process = subprocess.Popen([*END_WITH_PARENT, *words], stderr=subprocess.DEVNULL)
        while True:  # it says nothing when it listens
            assert self.process.poll() is None, f"memcached ended with {self.process.returncode}"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port)).close()
                return

    def kill(self):
        self.process.kill()
        self.process.wait()

    close = kill


@pytest.fixture(scope="session")
def memcached_server():
    server = Memcached()
    yield server
    server.close()


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


class PostgresServer:
    """One Postgres server process, in a folder of its own, on a loopback port; it trusts everybody.

    As Postgres does not run as root, root starts it as the user ``postgres``.  What a crash would lose is not synced.
    """

    def __init__(self, port=None, **options):
        self.bin = postgres_bin()
        if self.bin is None:
            pytest.skip("no Postgres server here: install the package postgresql, or run scripts/ensure-postgres")
        self.folder = tempfile.mkdtemp(prefix="ratekeeper-postgres-")
        self.port = port or free_port()
        self.options = {
            "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off", "full_page_writes": "off",
            "synchronous_commit": "off", "shared_buffers": "16MB", "dynamic_shared_memory_type": "mmap",
            "max_connections": "60", "autovacuum": "off", **options,
        }  # fmt: skip
        self.user = []
        if os.geteuid() == 0:
            self.user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(self.folder, "postgres", "postgres")
        subprocess.run(
            [*self.user, f"{self.bin}/initdb", "-D", f"{self.folder}/data", "-A", "trust", "-U", "postgres",
             "-E", "UTF8", "--locale=C", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip
        self.start()

    @property
    def url(self):
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self):
        words = [f"{self.bin}/postgres", "-D", f"{self.folder}/data", "-p", str(self.port)]
        for name, value in self.options.items():
            words += ["-c", f"{name}={value}"]
        with_parent = [*END_WITH_PARENT[:-1], *self.user[1:], "--"] if END_WITH_PARENT else self.user
        self.process = subprocess.Popen([*with_parent, *words], stderr=subprocess.PIPE, cwd="/")
        for line in self.process.stderr:
            if READY.search(line):
                break
        else:
            raise OSError(f"postgres ended with {self.process.wait()} on port {self.port}")
        self.reader = threading.Thread(target=self.read_log, daemon=True)
        self.reader.start()

    def read_log(self):
        """Read the log, as Postgres ends if nobody does: until the last of its processes is gone."""
        with self.process.stderr as lines:
            for _ in lines:
                pass

    def run(self, statement, **options):
        """The rows of one statement."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, **options) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join(30)  # its children end by themselves, and keep the shared memory until then

    def close(self):
        self.process.send_signal(signal.SIGQUIT)  # at once, but leaves no shared memory behind
        self.process.wait()
        self.reader.join(30)
        shutil.rmtree(self.folder, ignore_errors=True)


def postgres_bin():
    """The folder of the newest Postgres server, or None."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("postgres", path=SEARCH_PATH)
    return next((str(each) for each in folders if (each / "postgres").exists()), on_path and str(Path(on_path).parent))


@pytest.fixture(scope="session")
def postgres_server():
    server = PostgresServer()
    from ratekeeper.stores.postgres.migrate import migrate

    migrate(server.url)
    yield server
    server.close()

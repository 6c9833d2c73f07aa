"""A redis-server of the suite's own on a free port, a few words of its protocol, and a proxy that loses a reply."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisError(Exception):
    """An error reply of the server."""


class RedisClient:
    """One connection: commands in, replies as Python values."""

    def __init__(self, port: int, timeout: float = 30.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def command(self, *words: Any) -> Any:
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(p), p) for p in parts))
        return self.reply()

    def reply(self) -> Any:
        line = self.reader.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise RedisError(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        size = int(rest)
        if size < 0:
            return None
        if kind == b"*":
            return [self.reply() for _ in range(size)]
        return self.reader.read(size + 2)[:-2]

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


class RedisServer:
    """One process, which ends with ``close``."""

    def __init__(self) -> None:
        binary = shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            raise FileNotFoundError("redis-server: expected one in PATH, found none. Install Redis or Valkey.")
        self.binary, self.port = binary, free_port()
        self.folder = tempfile.mkdtemp(prefix="conformance-")
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = [self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError, RedisError):
                client = RedisClient(self.port)
                client.command("PING")
                client.close()
                return
            if self.process.poll() is not None or time.monotonic() > until:
                raise OSError(f"{self.binary} does not start on port {self.port}")
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def clear(self) -> None:
        client = RedisClient(self.port)
        client.command("FLUSHALL")
        client.close()

    def expiries(self) -> list[tuple[str, int | None]]:
        """Each key with the microseconds until it expires; None: it never does."""
        client = RedisClient(self.port)
        found: list[tuple[str, int | None]] = []
        for key in client.command("KEYS", "*"):
            left = client.command("PTTL", key)
            if left != -2:
                found.append((key.decode("utf-8", "replace"), None if left == -1 else left * 1000))
        client.close()
        return found

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class LossyProxy:
    """Forwards to a port.  After ``arm`` it swallows the next reply, and closes that connection."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.armed = False
        self.lost = 0
        self.lock = threading.Lock()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.sockets: list[socket.socket] = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def arm(self) -> None:
        self.armed = True

    def accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
                self.sockets += [near, far]
                threading.Thread(target=self.forward, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self.forward, args=(far, near, True), daemon=True).start()

    def forward(self, source: socket.socket, target: socket.socket, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while part := source.recv(65536):
                if is_reply:
                    with self.lock:
                        loses, self.armed = self.armed, False
                    if loses:
                        self.lost += 1
                        break
                target.sendall(part)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self.listener, *self.sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

"""What all servers share: a process on a free port, and a connection for each thread that calls."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from typing import Any

from conformance.limits import Answer, Limit, Promises
from conformance.redis_server import free_port
from conformance.session import Session, TargetFailed


class ServerSession(Session):
    """``command`` starts the server; {port} and {store} in its words are replaced.  None: it runs at ``port``."""

    def __init__(
        self,
        name: str,
        version: str,
        promises: Promises,
        command: list[str] | None,
        *,
        port: int | None = None,
        store: str | None = None,
        **options: Any,
    ) -> None:
        self.name, self.version, self.promises = name, version, promises
        self.port = port or free_port()
        self.limits: dict[str, list[Limit]] = {}
        self.connections = threading.local()
        self.opened: list[Any] = []
        self.process = None
        if command:
            words = [word.format(port=self.port, store=store or "") for word in command]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen(words, **(quiet | options))
            self.pid = self.process.pid
        self.await_port()

    def await_port(self) -> None:
        until = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if time.monotonic() > until or (self.process and self.process.poll() is not None):
                self.close()
                raise TargetFailed(f"{self.name}: expected a server on port {self.port}, found none.")
            time.sleep(0.05)

    def connect(self) -> Any:
        raise NotImplementedError

    def call(self, connection: Any, limiter: str, key: str, cost: int) -> Answer:
        raise NotImplementedError

    def connection(self) -> Any:
        if not hasattr(self.connections, "own"):
            self.connections.own = self.connect()
            self.opened.append(self.connections.own)
        return self.connections.own

    def open(self, name: str, limits: list[Limit]) -> None:
        self.limits[name] = limits

    def check(self, limiter: str, key: str, cost: int = 1) -> Answer:
        try:
            return self.call(self.connection(), limiter, key, cost)
        except OSError as error:
            self.__dict__["connections"] = threading.local()
            return Answer(False, error=f"{type(error).__name__}: {error}")

    def burst(self, limiter: str, key: str, calls: int, clients: int) -> int:
        admitted = [0] * clients
        gate = threading.Barrier(clients)

        def work(number: int) -> None:
            connection = self.connect()
            gate.wait()
            for _ in range(calls // clients):
                admitted[number] += self.call(connection, limiter, key, 1).allowed
            connection.close()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(admitted)

    def close(self) -> None:
        for connection in self.opened:
            connection.close()
        self.opened.clear()
        if self.process:
            self.process.kill()
            self.process.wait()

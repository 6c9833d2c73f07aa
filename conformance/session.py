"""What the laws see of a target: a session that opens limiters and checks keys, whatever lies behind it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from conformance.limits import Answer, Limit, Promises
from conformance.line_server import LineServer

PATIENCE = 120.0  # seconds for one answer of a target


class TargetFailed(Exception):
    """The target does not start, or broke the protocol."""


class Session:
    """One running target."""

    name: str
    version: str
    promises: Promises
    pid: int | None = None  # of the process that keeps the state, if there is one to look at

    def open(self, name: str, limits: list[Limit]) -> None:
        raise NotImplementedError

    def set_time(self, micros: int) -> None:
        raise NotImplementedError

    def check(self, limiter: str, key: str, cost: int = 1) -> Answer:
        raise NotImplementedError

    def burst(self, limiter: str, key: str, calls: int, clients: int) -> int:
        raise NotImplementedError

    def flood(self, limiter: str, prefix: str, keys: int) -> None:
        for number in range(keys):
            self.check(limiter, f"{prefix}{number}")

    def stored_keys(self) -> list[tuple[str, int | None]] | None:
        return None

    def collect(self) -> None:
        """Ask for a garbage collection, before memory is measured."""

    def fields(self, limiter: str, key: str) -> dict[str, Any]:
        """The header fields of an HTTP response by their lower-case names, and ``status``."""
        raise NotImplementedError

    def close(self) -> None:
        """End it."""


class ExchangeSession(Session):
    """A target that answers JSON objects."""

    def ask(self, **fields: Any) -> dict[str, Any]:
        raise NotImplementedError

    def expect(self, **fields: Any) -> dict[str, Any]:
        found = self.ask(**fields)
        if "error" in found and "allowed" not in found:
            raise TargetFailed(f"{fields['op']}: {found['error']}")
        return found

    def greet(self) -> None:
        found = self.expect(op="hello")
        self.name, self.version = found["name"], found["version"]
        self.promises = Promises.from_json(found["promises"])

    def open(self, name: str, limits: list[Limit]) -> None:
        self.expect(op="open", name=name, limits=[limit.to_json() for limit in limits])

    def set_time(self, micros: int) -> None:
        self.expect(op="time", now=micros)

    def check(self, limiter: str, key: str, cost: int = 1) -> Answer:
        return Answer.from_json(self.expect(op="check", limiter=limiter, key=key, cost=cost))

    def burst(self, limiter: str, key: str, calls: int, clients: int) -> int:
        return int(self.expect(op="burst", limiter=limiter, key=key, calls=calls, clients=clients)["admitted"])

    def flood(self, limiter: str, prefix: str, keys: int) -> None:
        self.expect(op="flood", limiter=limiter, prefix=prefix, keys=keys)

    def collect(self) -> None:
        self.expect(op="collect")

    def stored_keys(self) -> list[tuple[str, int | None]] | None:
        found = self.expect(op="stored")["keys"]
        return None if found is None else [(key, left) for key, left in found]


class CallableSession(ExchangeSession):
    """A Python target in this process."""

    def __init__(self, make: Callable[[str | None], Any], store: str | None = None) -> None:
        self.server = LineServer(make, store)
        self.pid = os.getpid()
        self.greet()

    def ask(self, **fields: Any) -> dict[str, Any]:
        return self.server.answer(fields)


class LineSession(ExchangeSession):
    """A program in any language, on its stdin and stdout."""

    def __init__(self, command: list[str], store: str | None = None, **options: Any) -> None:
        self.process = subprocess.Popen(
            [*command, *([store] if store else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.pid = self.process.pid
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()
        try:
            self.greet()
        except TargetFailed:
            self.close()
            raise

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put("")

    def send(self, **fields: Any) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(fields) + "\n")
            self.process.stdin.flush()
        except OSError as error:
            raise TargetFailed(f"{self.process.args!r} ended with {self.process.wait()}") from error

    def receive(self) -> dict[str, Any]:
        try:
            line = self.lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise TargetFailed(f"{self.process.args!r} did not answer within {PATIENCE} s") from None
        if not line:
            raise TargetFailed(f"{self.process.args!r} ended with {self.process.wait()}")
        return dict(json.loads(line))

    def ask(self, **fields: Any) -> dict[str, Any]:
        self.send(**fields)
        return self.receive()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def load(place: str) -> Callable[[str | None], Any]:
    """``module:name``, imported from the current folder too."""
    module, _, name = place.partition(":")
    if not name:
        raise ValueError(f"target: expected python:module:name, got python:{place}.")
    sys.path.insert(0, str(Path.cwd()))
    return getattr(import_module(module), name)

"""The options of ``ratekeeper serve``, and the bounds on what its clients can use up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ratekeeper.errors import InvalidInput, shown


@dataclass(frozen=True)
class Bounds:
    """How much of one worker its clients can use up, and for how long.  Sizes in bytes, times in seconds."""

    connections: int = 10_000  # of each listener
    waiting: int = 2_000  # responses that wait for the store
    pipelined: int = 128  # requests that one client may send before it reads a response
    head: int = 32_768
    body: int = 262_144
    unread: int = 262_144  # responses that one client has not read yet
    send_for: float = 10.0
    read_for: float = 10.0
    idle_for: float = 75.0
    streams: int = 64
    names: int = 1_024  # different limits that callers may name


@dataclass(frozen=True)
class Options:
    """One service: its rules, its addresses, its store and its tokens."""

    rules: Path | None = None
    envoy_config: Path | None = None
    http: str | None = "127.0.0.1:8080"
    grpc: str | None = None
    resp: str | None = None
    store: str | None = None
    workers: int = 1
    token: str | None = None  # required from callers of the API and from Redis clients
    admin_token: str | None = None  # required for changes: overrides, kill switch, reload
    drain: float = 0.0  # seconds between "not ready" and closing the listeners
    patience: float = 10.0  # seconds that requests under way may take to finish
    log_format: str = "text"
    state: Path | None = None  # folder for overrides and the counters of each worker
    bounds: Bounds = field(default_factory=Bounds)


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``:8080`` (every address) -> host and port."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidInput(f"{option}: expected HOST:PORT such as 127.0.0.1:8080, got {shown(text)}.")
    return host.strip("[]") or "0.0.0.0", int(port)

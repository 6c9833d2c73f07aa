"""What ``ratekeeper serve`` can be told, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ratekeeper.errors import InvalidInput, shown


@dataclass(frozen=True)
class Bounds:
    """How much a client can make one worker keep, and for how long.  Bytes and seconds."""

    connections: int = 10_000  # of each door
    waiting: int = 2_000  # answers that wait for a store
    ahead: int = 128  # requests that one client may send before it reads an answer
    head: int = 32_768
    body: int = 262_144
    unread: int = 262_144  # answers that a client has not read yet
    send_for: float = 10.0
    read_for: float = 10.0
    idle_for: float = 75.0
    streams: int = 64
    names: int = 1_024  # limits that callers made up


@dataclass(frozen=True)
class Options:
    """One service: what to decide by, where to listen, whom to believe."""

    rules: Path | None = None
    envoy_config: Path | None = None
    http: str | None = "127.0.0.1:8080"
    grpc: str | None = None
    resp: str | None = None
    store: str | None = None
    workers: int = 1
    token: str | None = None  # asked of callers of the API and of Redis clients
    admin_token: str | None = None  # asked of whoever changes something on the dashboard
    drain: float = 0.0  # seconds between "not ready" and closing the doors
    patience: float = 10.0  # seconds that answers under way may take to finish
    log_format: str = "text"
    state: Path | None = None  # where workers meet, and switches are kept
    bounds: Bounds = field(default_factory=Bounds)


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``:8080`` (every address) -> host and port."""
    host, found, port = text.rpartition(":")
    if not found or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidInput(f"{option}: expected HOST:PORT such as 127.0.0.1:8080, got {shown(text)}.")
    return host.strip("[]") or "0.0.0.0", int(port)

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
    held: int = 33_554_432  # requests of all clients that are not complete yet, for each listener
    words: int = 64  # of one command of a Redis client
    unread: int = 262_144  # responses that one client has not read yet
    send_for: float = 10.0
    read_for: float = 10.0
    idle_for: float = 75.0  # between two requests of an HTTP client
    resp_idle_for: float = 900.0  # between two commands of a Redis client; 0: for ever
    streams: int = 64
    names: int = 1_024  # different limits that callers may name
    tables: int = 268_435_456  # tables of the limits that callers name, of all workers together
    rule_tables: int = 268_435_456  # tables of the rules in the shared memory of several workers
    log: int = 1_024  # instants that a sliding_log or a concurrency limit of a caller may keep for each key


HEADER_STYLES = ("x-ratelimit", "ratelimit", "off")


@dataclass(frozen=True)
class EnvoyOptions:
    """How the limits of an ``envoy_config`` are answered: the variables of the environment of envoyproxy/ratelimit."""

    compat: bool = False  # count refused requests too, and answer as that service does in every respect
    shadow: bool = False  # refuse nothing
    quota: bool = False  # every limit has quota_mode
    metadata: bool = False  # add dynamic metadata to responses
    headers: str | None = None  # a style, or None for the usual one

    def __post_init__(self) -> None:
        if self.headers not in (None, *HEADER_STYLES):
            raise InvalidInput(f"--envoy-headers: expected {', '.join(HEADER_STYLES)}, got {shown(self.headers)}.")

    @property
    def header_style(self) -> str:
        return self.headers or ("off" if self.compat else "x-ratelimit")


@dataclass(frozen=True)
class Options:
    """One service: its rules, its addresses, its store and its tokens."""

    rules: Path | None = None
    envoy_config: Path | None = None
    envoy: EnvoyOptions = field(default_factory=EnvoyOptions)
    http: str | None = "127.0.0.1:8080"
    grpc: str | None = None
    resp: str | None = None
    store: str | None = field(default=None, repr=False)  # may hold a password
    workers: int = 1
    token: str | None = field(default=None, repr=False)  # required from callers of the API and from Redis clients
    admin_token: str | None = field(default=None, repr=False)  # required for changes: overrides, kill switch, reload
    allowed_hosts: tuple[str, ...] = ()  # names by which browsers may call the service, beside those of its network
    tls_cert: Path | None = None  # of every listener; the chain in PEM
    tls_key: Path | None = None
    tls_client_ca: Path | None = None  # then clients must show a certificate of these authorities
    drain: float = 0.0  # seconds between "not ready" and closing the listeners
    patience: float = 10.0  # seconds that requests under way may take to finish
    log_format: str = "text"
    state: Path | None = None  # folder for overrides and the counters of each worker
    bounds: Bounds = field(default_factory=Bounds)

    def __post_init__(self) -> None:
        check_token(self.token, "--token")
        check_token(self.admin_token, "--admin-token")
        for host in self.allowed_hosts:
            if not host or host != host.lower().rstrip(".") or set(host) & set("/:@* "):
                raise InvalidInput(
                    f"--allowed-host: expected a name in lower case such as limits.example.com, got {shown(host)}."
                )
        if self.envoy_config is None and self.envoy != EnvoyOptions():
            raise InvalidInput("serve: expected --envoy-config beside the other --envoy options, got none.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidInput("--tls-cert, --tls-key: expected both or none. Give the certificate and its key.")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidInput("--tls-client-ca: expected --tls-cert and --tls-key beside it, got none.")


def check_token(token: str | None, option: str) -> None:
    """Raise for a token that protects nothing, or that no header field can carry."""
    if token is not None and (not token or token != token.strip() or not (token.isascii() and token.isprintable())):
        what = "nothing" if not token.strip() else "another one"
        raise InvalidInput(
            f"{option}: expected a token of printable ASCII without spaces around it, got {what}. "
            "A variable of the environment that is set must not be empty."
        )


def parse_address(text: str, option: str) -> tuple[str, int]:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``:8080`` (every address) -> host and port."""
    host, separator, port = text.rpartition(":")
    if not separator or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidInput(f"{option}: expected HOST:PORT such as 127.0.0.1:8080, got {shown(text)}.")
    return host.strip("[]") or "0.0.0.0", int(port)

"""RedisSettings: where a Redis or Valkey store is, and its options, from a URL.

    redis://[user[:password]@]host[:port][/database]       rediss:// is the same over TLS
    unix://[user[:password]@]/path/to/socket[?db=0]
    redis+sentinel://[user[:password]@]host[:port],.../service[/database]
    redis+cluster://[user[:password]@]host[:port],...

Options are in the query string, or keywords of the store; a keyword takes precedence.
"""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.stores.options import LOCAL_SHARE, advice_on, expect_options, shown_part, shown_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ssl import SSLContext
    from typing import Any

    from ratekeeper.stores.redis.tls import TlsSession

    Address = tuple[str, int]  # a unix socket is (path, 0)

CONNECTS_FOR = 1.0  # seconds at least
FIRST_DEADLINE = 1.0  # seconds at least, for decisions before the first connection


def seconds(text: str) -> float:
    return float(text.removesuffix("s")) if not text.endswith("ms") else float(text[:-2]) / 1000


def switch(text: str) -> bool:
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}[
        text.lower()
    ]


def prefetch(text: str) -> str | int:
    return text if text == "auto" else int(text)


# The options of the query string: how each is read, and what an error says to write.
OPTIONS: dict[str, tuple[Any, str]] = {
    "prefix": (str, "text that key names begin with"),
    "client_name": (str, "text"),
    "secret": (str, "text that key digests are keyed with"),
    "db": (int, "a whole number"),
    "deadline": (seconds, "seconds, or milliseconds such as 50ms"),
    "first_deadline": (seconds, "seconds, or milliseconds such as 500ms"),
    "on_store_error": (str, "local, allow or deny"),
    "local_share": (float, "a number above 0, at most 1"),
    "deny_cache": (switch, "on or off"),
    "prefetch": (prefetch, "auto or a whole number"),
    "tls": (switch, "on or off"),
    "tls_ca": (str, "a file of certificates to trust"),
    "tls_certificate": (str, "a file"),
    "tls_key": (str, "a file"),
    "tls_verify": (switch, "on or off"),
    "sentinel_username": (str, "text"),
    "sentinel_password": (str, "text"),
}


class RedisSettings:
    """The settings of a store; ``shown`` is its name in logs and errors, without the password."""

    def __init__(self, url: str, **options: Any) -> None:
        parts = split(url)
        self.scheme = parts.scheme
        self.is_cluster = parts.scheme == "redis+cluster"
        place = f"store {parts.scheme}://"
        if "@" in parts.path + parts.query or "#" in url:
            raise InvalidStore(
                f"{place}: expected '@', '/', '?' and '#' in a password to be written as %40, %2F, %3F and %23."
            )
        given = {name: value for name, value in options.items() if value is not None}
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            read, wanted = OPTIONS.get(name, (None, ""))
            if read is None:
                got = shown_part(url, name)
                raise InvalidStore(f"{place}: expected a known option, got {got}.{advice_on(name, OPTIONS)}")
            value = parsed(read, text)
            if value is None:
                raise InvalidStore(f"{place}: expected {name} to be {wanted}, got {shown_part(url, text)}.")
            given.setdefault(name, value)
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise InvalidStore(
                f"{place}: expected a known option, got {shown(unknown[0])}.{advice_on(unknown[0], OPTIONS)}"
            )
        userinfo, _, hosts = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        self.username = unquote(user)
        self.password = unquote(password)
        if user and not password:  # other clients do not read redis://secret@host as a password: refuse to guess
            raise InvalidStore(f"{place}: expected user:password@ or :password@ before the host, got no password.")
        path = unquote(parts.path)
        if "@" in path or ":" in path:  # a password in the wrong place would be shown as a path
            raise InvalidStore(f"{place}: expected user:password@ before the host, got ':' or '@' after it.")
        self.service = ""
        database = path.strip("/")
        if self.scheme == "unix":
            self.addresses = [(path, 0)]
            database = ""
            if hosts:
                raise InvalidStore(f"{place}: expected unix://[user:password@]/path, got a host.")
            if not path:
                raise InvalidStore(f"{place}: expected the path of a socket, got nothing.")
        else:
            self.addresses = [
                address(word, place, 26379 if "sentinel" in self.scheme else 6379) for word in hosts.split(",")
            ]
        if self.scheme == "redis+sentinel":
            self.service, _, database = path.strip("/").partition("/")
            if not self.service:
                raise InvalidStore(f"{place}: expected the name of the service after the hosts, got nothing.")
        elif len(self.addresses) > 1 and not self.is_cluster:
            raise InvalidStore(
                f"{place}: expected one host, got {len(self.addresses)}. Use redis+cluster:// or redis+sentinel://."
            )
        if database and not database.isdecimal():
            raise InvalidStore(f"{place}: expected the number of a database, got {shown_part(url, database)}.")
        self.db = int(database) if database else given.get("db", 0)
        if self.is_cluster and self.db:
            raise InvalidStore(f"{place}: expected no database, as a cluster has one only, got {self.db}.")
        self.shown = f"{self.scheme}://{hosts}{parts.path}"
        self.prefix: str = given.get("prefix", "rk")
        self.client_name: str = given.get("client_name", "ratekeeper")
        self.secret: str = given.get("secret", "")
        self.deadline: float = given.get("deadline", 0.05)
        self.first_deadline: float = given.get("first_deadline", max(FIRST_DEADLINE, self.deadline))
        self.on_store_error: str = given.get("on_store_error", "local")
        self.has_fallback = True
        self.local_share: float = given.get("local_share", LOCAL_SHARE)
        self.deny_cache: bool = given.get("deny_cache", True)
        self.prefetch: str | int | None = given.get("prefetch")
        self.sentinel_username: str = given.get("sentinel_username", "")
        self.sentinel_password: str = given.get("sentinel_password", "")
        self.tls = trust(given) if given.get("tls", self.scheme == "rediss") else None
        self.validate(place)

    def validate(self, place: str) -> None:
        expect_options(
            place,
            on_store_error=self.on_store_error,
            deadline=self.deadline,
            first_deadline=self.first_deadline,
            local_share=self.local_share,
            prefetch=self.prefetch,
        )
        if len(self.secret.encode()) > 64:
            raise InvalidStore(f"{place}: expected a secret of at most 64 bytes, got {len(self.secret.encode())}.")
        if any(ord(letter) < 33 or ord(letter) > 126 for letter in self.prefix + self.client_name):
            raise InvalidStore(f"{place}: expected prefix and client_name of visible ASCII letters.")
        if self.is_cluster and "{}" in self.prefix:  # a server then hashes the whole name
            raise InvalidStore(
                f"{place}: expected a prefix without {{}}, got {shown(self.prefix)}. "
                "An empty tag spreads the keys of one caller over several slots."
            )

    @property
    def fallback(self) -> str:
        """What is used while the store cannot be asked, as the log shows it."""
        if not self.has_fallback:
            return "no fallback: callers wait for it, up to their own timeouts,"
        share = f" ({self.local_share * 100:g} % of each limit, per process)" if self.on_store_error == "local" else ""
        return f"on_store_error={self.on_store_error}{share}"

    def session(self, address: Address) -> TlsSession | None:
        """A new TLS session with the server at ``address``; None: what is sent there is plain."""
        if self.tls is None or self.scheme == "unix":
            return None
        from ratekeeper.stores.redis.tls import TlsSession

        return TlsSession(self.tls, address[0])

    @property
    def connects_for(self) -> float:
        """Seconds that a new connection may take.  Longer than callers wait, as it is made in the background."""
        return max(CONNECTS_FOR, self.deadline, self.first_deadline)


def split(url: str) -> Any:
    with suppress(ValueError):
        return urlsplit(url)
    raise InvalidStore(
        f"store: expected a URL such as 'redis://localhost:6379/0', got {shown_url(url, ('redis', 'rediss'))}."
    )


def parsed(read: Any, text: str) -> Any:
    """The value of an option; None if it cannot be read.  No error keeps the text: it may be a password."""
    with suppress(ValueError, KeyError):
        return read(text)
    return None


def address(word: str, place: str, port: int) -> Address:
    """``host``, ``host:port`` or ``[::1]:port``."""
    if "%" in word and not word.startswith("["):
        raise InvalidStore(f"{place}: expected host or host:port, got a '%'. Write '@' before the host.")
    host, colon, text = word.rpartition(":")
    if not colon or "]" in text:
        host, text = word, str(port)
    host = host.removeprefix("[").removesuffix("]") or "localhost"
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise InvalidStore(f"{place}: expected host or host:port, got another port than 1 to 65535.")
    return host, int(text)


def trust(options: dict[str, Any]) -> SSLContext:
    import ssl

    context = ssl.create_default_context(cafile=options.get("tls_ca"))
    if options.get("tls_certificate"):
        context.load_cert_chain(options["tls_certificate"], options.get("tls_key"))
    if not options.get("tls_verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

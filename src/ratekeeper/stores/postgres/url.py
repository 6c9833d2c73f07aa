"""PostgresSettings: where a Postgres store is, and its options, from a URL.

    postgresql://[user[:password]@]host[:port][,host[:port]...]/database[?option=value&...]

Our options and those of libpq (``sslmode``, ``passfile``, ``service``, ...) are in the query string.  Ours are keywords
of the store as well; a keyword takes precedence.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, unquote, urlsplit

from ratekeeper.errors import InvalidStore, shown
from ratekeeper.stores.options import LOCAL_SHARE, advice_on, expect_options, shown_part, shown_url
from ratekeeper.stores.redis.url import parsed, seconds, switch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONNECTS_FOR = 2.0  # seconds at least: a server starts a process for each connection
FIRST_DEADLINE = 1.0  # seconds at least, for decisions before the first connection
SCHEMES = ("postgresql", "postgres")

# The options of the query string: how each is read, and what an error says to write.
OPTIONS: dict[str, tuple[Any, str]] = {
    "schema": (str, "the name of a schema"),
    "secret": (str, "text that key digests are keyed with"),
    "deadline": (seconds, "seconds, or milliseconds such as 50ms"),
    "first_deadline": (seconds, "seconds, or milliseconds such as 500ms"),
    "on_store_error": (str, "local, allow or deny"),
    "local_share": (float, "a number above 0, at most 1"),
    "deny_cache": (switch, "on or off"),
    "prepare": (switch, "on or off"),
}
# Those of libpq that say where the server is and how to get in.  Others would change what a statement does.
OF_LIBPQ = (
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr", "keepalives",
    "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname", "options", "passfile", "password",
    "port", "requirepeer", "service", "sslcert", "sslcompression", "sslcrl", "sslkey", "sslmode", "sslpassword",
    "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
)  # fmt: skip
EXAMPLE = "postgresql://localhost:5432/app"


class PostgresSettings:
    """The settings of a store; ``shown`` is its name in logs and errors, without the password."""

    def __init__(self, url: str, **options: Any) -> None:
        try:
            parts = urlsplit(url)
        except ValueError:
            raise InvalidStore(f"store: expected a URL such as '{EXAMPLE}', got {shown_url(url, SCHEMES)}.") from None
        place = f"store {parts.scheme}://"
        userinfo, at, hosts = parts.netloc.rpartition("@")
        if "@" in parts.path or "#" in url or (":" in parts.path):
            raise InvalidStore(
                f"{place}: expected '@', '/', '?' and '#' in a password to be written as %40, %2F, %3F and %23."
            )
        given = {name: value for name, value in options.items() if value is not None}
        libpq: dict[str, str] = {}
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            if name in OF_LIBPQ:
                libpq[name] = text
                continue
            read, wanted = OPTIONS.get(name, (None, ""))
            if read is None:
                known = (*OPTIONS, *OF_LIBPQ)
                got = shown_part(url, name)
                raise InvalidStore(f"{place}: expected a known option, got {got}.{advice_on(name, known)}")
            value = parsed(read, text)
            if value is None:
                raise InvalidStore(f"{place}: expected {name} to be {wanted}, got {shown_part(url, text)}.")
            given.setdefault(name, value)
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise InvalidStore(
                f"{place}: expected a known option, got {shown(unknown[0])}.{advice_on(unknown[0], OPTIONS)}"
            )
        for host in hosts.split(","):
            port = host.rpartition(":")[2] if ":" in host and not host.endswith("]") else ""
            if port and not (port.isdecimal() and 0 < int(port) < 65536):
                raise InvalidStore(f"{place}: expected host or host:port, got another port than 1 to 65535.")
        self.database = unquote(parts.path.removeprefix("/"))
        if "/" in self.database:
            raise InvalidStore(f"{place}: expected one name of a database after the host, got a '/' in it.")
        if "," in hosts:
            libpq.setdefault("target_session_attrs", "read-write")  # after a failover, the server that takes writes
        libpq.setdefault("application_name", "ratekeeper")
        query = "&".join([f"{name}={quote(text, safe='')}" for name, text in libpq.items()])
        self.dsn = f"postgresql://{userinfo}{at}{hosts}{parts.path}?{query}"  # for libpq: with the password
        self.shown = f"postgresql://{hosts or libpq.get('host', '')}{parts.path}"
        self.schema: str = given.get("schema", "ratekeeper")
        self.secret: str = given.get("secret", "")
        self.deadline: float = given.get("deadline", 0.05)
        self.first_deadline: float = given.get("first_deadline", max(FIRST_DEADLINE, self.deadline))
        self.on_store_error: str = given.get("on_store_error", "local")
        self.has_fallback = True
        self.local_share: float = given.get("local_share", LOCAL_SHARE)
        self.deny_cache: bool = given.get("deny_cache", True)
        self.prepare: bool = given.get("prepare", True)
        self.is_cluster = False
        self.validate(place)

    def validate(self, place: str) -> None:
        expect_options(
            place,
            on_store_error=self.on_store_error,
            deadline=self.deadline,
            first_deadline=self.first_deadline,
            local_share=self.local_share,
        )
        if len(self.secret.encode()) > 64:
            raise InvalidStore(f"{place}: expected a secret of at most 64 bytes, got {len(self.secret.encode())}.")
        expect_schema(self.schema, place)

    @property
    def fallback(self) -> str:
        """What is used while the store cannot be asked, as the log shows it."""
        if not self.has_fallback:
            return "no fallback: callers wait for it, up to their own timeouts,"
        share = f" ({self.local_share * 100:g} % of each limit, per process)" if self.on_store_error == "local" else ""
        return f"on_store_error={self.on_store_error}{share}"

    @property
    def connects_for(self) -> float:
        """Seconds that a new connection may take.  Longer than callers wait, as it is made in the background."""
        return max(CONNECTS_FOR, self.deadline, self.first_deadline)


def expect_schema(schema: str, place: str) -> None:
    """Raise InvalidStore unless ``schema`` is a plain name: it becomes part of statements."""
    plain = schema.isascii() and schema.replace("_", "a").isalnum() and not schema[0].isdecimal()
    if not plain or schema != schema.lower() or len(schema) > 63 or schema.startswith("pg_"):
        raise InvalidStore(f"{place}: expected a schema of lower-case letters, digits and '_', got {shown(schema)}.")

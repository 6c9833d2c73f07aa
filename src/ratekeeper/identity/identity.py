"""Who is counted: a request -> the parts of a key, and the tier.

A source names where a part comes from: ``ip``, ``user``, ``api_key``, ``tier``, ``route``, ``host``, ``method``,
``all``, ``header:NAME``, ``cookie:NAME``, ``query:NAME``, ``jwt:CLAIM``, ``app:FACT`` (what the application verified
itself) or ``function:NAME``.  Where a part is missing, the address stands in for it under a tag of its own: a caller
without an identity is counted by address, never not at all, and never in somebody else's counter.

Law: no I/O; two different subjects never give one key.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import Any

from ratekeeper.identity.address import Addresses, ClientAddress
from ratekeeper.identity.jwt import NOTHING
from ratekeeper.identity.request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.identity.jwt import Claims, Tokens

    Part = Callable[["Caller"], str | None]

PLAIN = ("ip", "user", "api_key", "tier", "route", "host", "method", "all")
NAMED = ("header", "cookie", "query", "jwt", "app", "function")
SHARED = frozenset({"tier", "route", "host", "method", "all"})  # parts that do not tell callers apart
MISSING: Any = object()
LONGEST_PART = 512
MOST_NAMED = 1024  # secrets whose digest is remembered


class ApiKey:
    """Who holds a known API key."""

    __slots__ = ("tier", "user")

    def __init__(self, user: str | None = None, tier: str | None = None) -> None:
        self.user = user
        self.tier = tier


class Identity:
    """The configured ways to tell who somebody is."""

    def __init__(
        self,
        addresses: Addresses,
        *,
        user: Sequence[str] = (),
        api_key: Sequence[str] = ("header:X-Api-Key",),
        api_keys: Mapping[str, ApiKey] | None = None,
        tokens: Tokens | None = None,
        tier_from: Sequence[str] = (),
        tier_default: str = "default",
        functions: Mapping[str, Callable[[Request], Any]] | None = None,
    ) -> None:
        self.addresses = addresses
        self.tokens = tokens
        self.api_keys = api_keys  # by the SHA-256 of the key in hex; None: every key is believed
        self.functions = functions or {}
        self.named: dict[str, str] = {}
        self.user_sources = [(source, self.source(source)) for source in user]
        self.key_sources = [self.raw_source(source) for source in api_key]
        self.tier_sources = [self.tier_source(source) for source in tier_from]
        self.tier_default = tier_default
        self.sources = frozenset([*user, *tier_from])

    def add_user_source(self, source: str) -> None:
        """Read the user from ``source`` too, where no other source has it."""
        self.user_sources.append((source, self.source(source)))

    def source(self, source: str) -> Part:
        """What reads ``source``: text that may be shown nowhere, or None where it is missing."""
        kind, _, name = source.partition(":")
        if kind in ("header", "cookie", "query", "api_key"):  # may be secrets: only their digest goes on
            raw = self.raw_api_key if kind == "api_key" else self.raw_source(source)
            return lambda caller: self.believed(raw(caller))
        if kind in ("jwt", "app", "function"):
            read = self.plain_source(kind, name)
            return lambda caller: tagged(read(caller))
        return PLAIN_PARTS[kind]

    def plain_source(self, kind: str, name: str) -> Part:
        if kind == "jwt":
            return lambda caller: scalar(caller.claims.get(name))
        if kind == "app":
            return lambda caller: scalar((caller.request.facts or NOTHING).get(name))
        function = self.functions[name]
        return lambda caller: scalar(function(caller.request))

    def tier_source(self, source: str) -> Part:
        kind, _, name = source.partition(":")
        if kind == "api_key":
            return self.tier_of_key
        if kind == "header":
            return lambda caller: self.tier_of_proxy(caller, name.lower().encode("latin-1"))
        return self.plain_source(kind, name)

    def raw_source(self, source: str) -> Part:
        kind, _, name = source.partition(":")
        if kind == "header":
            header = name.lower().encode("latin-1")
            if header == b"authorization":
                return lambda caller: bearer(caller.request.value(header))
            return lambda caller: caller.request.value(header)
        if kind == "cookie":
            return lambda caller: cookie(caller.request, name)
        return lambda caller: query(caller.request, name)

    def raw_api_key(self, caller: Caller) -> str | None:
        for read in self.key_sources:
            if text := read(caller):
                return text
        return None

    def believed(self, secret: str | None) -> str | None:
        """The name for a secret: its holder if it is known, its digest if none are listed."""
        if secret is None:
            return None
        if self.api_keys is None:
            known = self.named.get(secret)
            if known is None:
                if len(self.named) >= MOST_NAMED:
                    self.named.clear()
                known = "key:" + blake2b(secret.encode("utf-8", "replace"), digest_size=16).hexdigest()
                if len(secret) <= LONGEST_PART:
                    self.named[secret] = known
            return known
        digest = sha256(secret.encode("utf-8", "replace")).hexdigest()
        holder = self.api_keys.get(digest)
        if holder is None:
            return None
        return "key:" + digest if holder.user is None else "user:" + holder.user

    def unverified(self, by: Sequence[object]) -> str | None:
        """The first source of a key that a client may make up as it likes: with a new one it is somebody else."""
        if self.api_keys is not None:  # then only those that are listed are believed
            return None
        for source in by:
            for own in [own for own, _ in self.user_sources] if source == "user" else [source]:
                if isinstance(own, str) and own.startswith(("header:", "cookie:", "query:", "api_key")):
                    return own
        return None

    def user(self, caller: Caller) -> str | None:
        for _, read in self.user_sources:
            if found := read(caller):
                return found
        return None

    def tier(self, caller: Caller) -> str:
        for read in self.tier_sources:
            if found := read(caller):
                return found
        return self.tier_default

    def tier_of_key(self, caller: Caller) -> str | None:
        secret = self.raw_api_key(caller)
        if secret is None or self.api_keys is None:
            return None
        known = self.api_keys.get(sha256(secret.encode("utf-8", "replace")).hexdigest())
        return None if known is None else known.tier

    def tier_of_proxy(self, caller: Caller, header: bytes) -> str | None:
        """Only a trusted proxy may say in a header what somebody pays for."""
        peer = self.addresses.known.get(caller.request.peer) or self.addresses.learn(caller.request.peer)
        return caller.request.value(header) if peer.trusted else None


class Caller:
    """Who sent one request; each answer is worked out when first asked for."""

    __slots__ = ("_claims", "_known", "_tier", "_user", "identity", "request")

    def __init__(self, identity: Identity, request: Request) -> None:
        self.identity = identity
        self.request = request
        self._known: Any = MISSING
        self._claims: Any = MISSING
        self._user: Any = MISSING
        self._tier: Any = MISSING

    @property
    def known(self) -> ClientAddress:
        if self._known is MISSING:
            self._known = self.identity.addresses.find(self.request)
        return self._known

    @property
    def claims(self) -> Claims:
        if self._claims is MISSING:
            tokens = self.identity.tokens
            token = bearer(self.request.value(tokens.header)) if tokens is not None else None
            self._claims = tokens.claims(token) if tokens is not None and token else NOTHING
        return self._claims

    @property
    def user(self) -> str | None:
        if self._user is MISSING:
            self._user = self.identity.user(self)
        return self._user

    @property
    def tier(self) -> str:
        if self._tier is MISSING:
            self._tier = self.identity.tier(self)
        return self._tier


PLAIN_PARTS: dict[str, Part] = {
    "ip": lambda caller: caller.known.subject,
    "user": lambda caller: caller.user,
    "tier": lambda caller: caller.tier,
    "route": lambda caller: caller.request.route,
    "host": lambda caller: caller.request.host or "-",
    "method": lambda caller: caller.request.method.upper()[:32],
    "all": lambda caller: "*",
}


def key_of(
    identity: Identity, by: Sequence[str | Callable[[Request], Any]], template: str = "/**"
) -> Callable[[Caller], str]:
    """What makes the key of a rule from a caller; the same number of parts every time, so that it is injective.

    ``template`` is the rule's own pattern: it names the route where the framework does not.
    """
    if list(by) == ["ip"]:
        return lambda caller: caller.known.subject
    if list(by) == ["all"]:
        return lambda caller: "*"
    if list(by) == ["user"]:
        return lambda caller: "=" + caller.user if caller.user else "@" + caller.known.subject

    def reader(source: str | Callable[[Request], Any]) -> tuple[Part, bool]:
        if callable(source):
            return named_function(source), True
        if source == "route":
            return lambda caller: caller.request.route or template, False
        return identity.source(source), source not in SHARED

    parts = [reader(source) for source in by]

    def part(caller: Caller, read: Part, personal: bool) -> str:
        found = read(caller)
        if found:
            return "=" + found if personal else found
        return "@" + caller.known.subject

    if len(parts) == 1:
        ((only, personal),) = parts
        return lambda caller: part(caller, only, personal)

    def joined(caller: Caller) -> str:
        found = [part(caller, read, personal) for read, personal in parts]
        return "".join([f"{len(text)}:{text}" for text in found])

    return joined


def named_function(function: Callable[[Request], Any]) -> Part:
    return lambda caller: tagged(scalar(function(caller.request)))


def tagged(name: str | None) -> str | None:
    """A name is never taken for the digest of a secret, whatever it says."""
    return "user:" + name if name else None


def scalar(value: object) -> str | None:
    """Text or a whole number as text; nothing else names anybody."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_PART else "digest:" + sha256(value.encode("utf-8", "replace")).hexdigest()
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**30 else None
    return None


def bearer(text: str | None) -> str | None:
    """The credentials of an Authorization header, whatever its scheme; the text itself if it has none."""
    if text is None:
        return None
    scheme, found, rest = text.partition(" ")
    if not found:
        return text
    return rest.strip() or None if scheme.isalnum() else None


def cookie(request: Request, name: str) -> str | None:
    found = None
    for line in request.values(b"cookie"):
        for pair in line.split(";"):
            own, _, value = pair.partition("=")
            if own.strip() == name:
                if found is not None:  # two of a name: whoever wrote the second wants to be somebody else
                    return None
                found = value.strip().strip('"')
    return found or None


def query(request: Request, name: str) -> str | None:
    from urllib.parse import parse_qsl

    try:
        found = [value for own, value in parse_qsl(request.query.decode("latin-1"), max_num_fields=100) if own == name]
    except ValueError:
        return None
    return found[0] if len(found) == 1 else None

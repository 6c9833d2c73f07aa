"""Identify the client: a request -> the parts of a key, and the tier.

A source names where a part comes from: ``ip``, ``user``, ``api_key``, ``tier``, ``route``, ``host``, ``method``,
``all``, ``header:NAME``, ``cookie:NAME``, ``query:NAME``, ``jwt:CLAIM``, ``app:FACT`` (what the application verified
itself) or ``function:NAME``.  If a request lacks a part, the client's address replaces it, under a tag of its own.  So
a client without an identity is counted by address: it is never left out, and never in another client's counter.

``name_of`` is the one place where a value of the application, a function or a token becomes a name.  A value that names
no client raises: it never becomes another identity.

Law: no I/O; two different subjects never have the same key.
"""

from __future__ import annotations

from hashlib import blake2b, sha256
from typing import Any

from ratekeeper.errors import InvalidInput, InvalidKey, did_you_mean
from ratekeeper.identity.address import Addresses, ClientAddress
from ratekeeper.identity.jwt import NO_CLAIMS
from ratekeeper.identity.request import Request
from ratekeeper.keys import KINDS, advice, encode, is_uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.identity.jwt import Claims, Tokens

    Reader = Callable[["Caller"], str | None]

PLAIN = ("ip", "user", "api_key", "tier", "route", "host", "method", "all")
NAMED = ("header", "cookie", "query", "jwt", "app", "function")
SHARED = frozenset({"tier", "route", "host", "method", "all"})  # parts that many clients have in common
EXAMPLES = {
    "header": "header:X-Api-Key",
    "cookie": "cookie:session",
    "query": "query:key",
    "jwt": "jwt:sub",
    "app": "app:user",
    "function": "function:NAME",
}
SUBJECT = "ratekeeper.subject"  # the fact that the function of a route's limit returned
MISSING: Any = object()
LONGEST_PART = 512
MOST_CACHED = 1024  # digests of secrets


class ApiKey:
    """The user and the tier of a listed API key."""

    __slots__ = ("tier", "user")

    def __init__(self, user: str | None = None, tier: str | None = None) -> None:
        self.user = user
        self.tier = tier


class Identity:
    """The configured ways to identify a client."""

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
        self.sources = frozenset([*user, *tier_from])
        self._api_keys = api_keys  # by the SHA-256 of the key in hex; None: every key is believed
        self._functions = {} if functions is None else functions  # a rule that is read later may import more
        self._digests: dict[str, str] = {}
        self.user_sources = [(source, self.source(source)) for source in user]
        self._key_readers = [self._raw_source(source) for source in api_key]
        self._tier_readers = [self._tier_source(source) for source in tier_from]
        self._tier_default = tier_default

    def source(self, source: str) -> Reader:
        """Return the function that reads ``source``; it returns None if a request lacks it."""
        kind, _, name = source.partition(":")
        if kind in ("header", "cookie", "query", "api_key"):  # may be secrets: only their digest leaves this file
            raw = self._raw_api_key if kind == "api_key" else self._raw_source(source)
            return lambda caller: self._name_of_secret(raw(caller))
        if kind in ("jwt", "app", "function"):
            read, place = self._verified_source(kind, name), place_of(kind, name)
            return lambda caller: name_of(read(caller), place)
        return PLAIN_PARTS[kind]

    def add_user_source(self, source: str) -> None:
        """Take the user from ``source`` too, if the sources before it name nobody."""
        self.user_sources.append((source, self.source(source)))

    def unverified(self, by: Sequence[object]) -> str | None:
        """Return the first source in ``by`` that a client may make up: with a new value it becomes a new client."""
        for source in by:
            if source == "host":
                return "host"
            if self._api_keys is not None:  # only listed keys are believed
                continue
            for name in [name for name, _ in self.user_sources] if source == "user" else [source]:
                if isinstance(name, str) and name.startswith(("header:", "cookie:", "query:", "api_key")):
                    return name
        return None

    def user(self, caller: Caller) -> str | None:
        """Return the user who sent the request; None if no source names one."""
        for _, read in self.user_sources:
            if name := read(caller):
                return name
        return None

    def tier(self, caller: Caller) -> str:
        """Return the tier of the caller."""
        for read in self._tier_readers:
            if tier := read(caller):
                return tier
        return self._tier_default

    def _verified_source(self, kind: str, name: str) -> Callable[[Caller], Any]:
        """Return the function that reads a value of any type, which is still to be checked."""
        if kind == "jwt":
            return lambda caller: in_tuples(caller.claims.get(name))
        if kind == "app":
            return lambda caller: (caller.request.facts or NO_CLAIMS).get(name)
        function = self._functions[name]
        return lambda caller: function(caller.request)

    def _tier_source(self, source: str) -> Reader:
        kind, _, name = source.partition(":")
        if kind == "api_key":
            return self._tier_of_key
        if kind == "header":
            return lambda caller: self._tier_of_proxy(caller, name.lower().encode("latin-1"))
        read, place = self._verified_source(kind, name), place_of(kind, name)
        return lambda caller: tier_name(read(caller), place)

    def _raw_source(self, source: str) -> Reader:
        kind, _, name = source.partition(":")
        if kind == "header":
            header = name.lower().encode("latin-1")
            if header == b"authorization":
                return lambda caller: bearer(caller.request.value(header))
            return lambda caller: caller.request.value(header)
        if kind == "cookie":
            return lambda caller: cookie(caller.request, name)
        return lambda caller: query(caller.request, name)

    def _raw_api_key(self, caller: Caller) -> str | None:
        for read in self._key_readers:
            if text := read(caller):
                return text
        return None

    def _name_of_secret(self, secret: str | None) -> str | None:
        """The name that stands for a secret: the user of a listed key; the digest if no keys are listed."""
        if secret is None:
            return None
        if self._api_keys is None:
            name = self._digests.get(secret)
            if name is None:
                if len(self._digests) >= MOST_CACHED:
                    self._digests.clear()
                name = "key:" + blake2b(secret.encode("utf-8", "replace"), digest_size=16).hexdigest()
                if len(secret) <= LONGEST_PART:
                    self._digests[secret] = name
            return name
        digest = sha256(secret.encode("utf-8", "replace")).hexdigest()
        key = self._api_keys.get(digest)
        if key is None:
            return None
        return "key:" + digest if key.user is None else "user:" + key.user

    def _tier_of_key(self, caller: Caller) -> str | None:
        secret = self._raw_api_key(caller)
        if secret is None or self._api_keys is None:
            return None
        key = self._api_keys.get(sha256(secret.encode("utf-8", "replace")).hexdigest())
        return None if key is None else key.tier

    def _tier_of_proxy(self, caller: Caller, header: bytes) -> str | None:
        """The tier in a header, which only a trusted proxy may set."""
        return caller.request.value(header) if self.addresses.trusts(caller.request) else None


class Caller:
    """The sender of one request; each attribute is computed when it is first read."""

    __slots__ = ("_claims", "_client_address", "_tier", "_user", "identity", "request")

    def __init__(self, identity: Identity, request: Request) -> None:
        self.identity = identity
        self.request = request
        self._client_address: Any = MISSING
        self._claims: Any = MISSING
        self._user: Any = MISSING
        self._tier: Any = MISSING

    @property
    def client_address(self) -> ClientAddress:
        if self._client_address is MISSING:
            self._client_address = self.identity.addresses.find(self.request)
        return self._client_address

    @property
    def claims(self) -> Claims:
        if self._claims is MISSING:
            tokens = self.identity.tokens
            token = bearer(self.request.value(tokens.header)) if tokens is not None else None
            self._claims = tokens.claims(token) if tokens is not None and token else NO_CLAIMS
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


PLAIN_PARTS: dict[str, Reader] = {
    "ip": lambda caller: caller.client_address.subject,
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
    """Return the function that makes a rule's key from a caller.

    The key always has the same number of parts, so that it is injective.  ``template`` is the rule's own pattern, which
    names the route if the framework does not.
    """
    if list(by) == ["ip"]:
        return lambda caller: caller.client_address.subject
    if list(by) == ["all"]:
        return lambda caller: "*"
    if list(by) == ["user"]:
        return lambda caller: "=" + user if (user := caller.user) else "@" + caller.client_address.subject

    def reader(source: str | Callable[[Request], Any]) -> tuple[Reader, bool]:
        if callable(source):
            return lambda caller: name_of(source(caller.request), "by"), True
        if source == "route":
            return lambda caller: caller.request.route or template, False
        return identity.source(source), source not in SHARED

    readers = [reader(source) for source in by]
    is_single = len(readers) == 1

    def key(caller: Caller) -> str:
        joined = ""
        for read, is_personal in readers:
            text = read(caller)
            if not text:
                text = "@" + caller.client_address.subject
            elif is_personal:
                text = "=" + text
            if is_single:
                return text
            joined += f"{len(text)}:{text}"
        return joined

    return key


def source_advice(source: str, plain: Sequence[str], named: Sequence[str]) -> str:
    """Say how to correct a source that is not valid; empty if there is nothing to suggest."""
    kind, _, name = source.partition(":")
    if kind in named and not name:
        return f"A name is missing, as in {EXAMPLES[kind]!r}."
    return did_you_mean(kind, [*plain, *named]).strip()


def place_of(kind: str, name: str) -> str:
    """Where a value came from, for errors about it."""
    if kind == "app":
        return "by" if name == SUBJECT else f"facts[{name!r}]"
    return f"{kind}:{name}"  # of a token or a function


def name_of(value: Any, place: str) -> str | None:
    """The text that names a client, injectively; None for None and empty text, which name nobody.

    The tag before the colon keeps a number apart from the same digits as text, and both from digests of secrets.
    Anything that is no key raises InvalidKey.
    """
    if value is None:
        return None
    if isinstance(value, str):
        if not value:
            return None
        return "user:" + value if len(value) <= LONGEST_PART else "long:" + digest(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**30:
        return f"int:{value:d}"
    if is_uuid(value):
        return f"uuid:{value}"
    try:
        return "bytes:" + encode(value).hex()  # type: ignore[union-attr]
    except InvalidKey:
        raise InvalidKey(
            f"{place}: expected {KINDS} that names the client, or None to count it by address, "
            f"got {kind_of(value)}.{advice(value)}"
        ) from None


def tier_name(value: Any, place: str) -> str | None:
    """The name of a tier; None is the default tier."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:d}"
    raise InvalidInput(f"{place}: expected text that names a tier, or None for the default tier, got {kind_of(value)}.")


def kind_of(value: Any) -> str:
    """The type of a value that is not shown, as it may be a secret."""
    is_empty = isinstance(value, (bytes, bytearray, memoryview, tuple)) and not len(value)
    return f"{'empty ' if is_empty else ''}{type(value).__name__}"


def written(name: str | None) -> str | None:
    """The name as a rules file can write it, where a number or a UUID is text."""
    if name is not None and name.startswith(("int:", "uuid:")):
        return "user:" + name.partition(":")[2]
    return name


def in_tuples(value: Any) -> Any:
    """A value of JSON, its lists as tuples."""
    return tuple(map(in_tuples, value)) if isinstance(value, list) else value


def digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def bearer(text: str | None) -> str | None:
    """The credentials of an Authorization header, whatever its scheme; the whole text if it has no scheme."""
    if text is None:
        return None
    scheme, space, credentials = text.partition(" ")
    if not space:
        return text
    return credentials.strip() or None if scheme.isalnum() else None


def cookie(request: Request, name: str) -> str | None:
    value = None
    for line in request.values(b"cookie"):
        for pair in line.split(";"):
            key, _, text = pair.partition("=")
            if key.strip() == name:
                if value is not None:  # a client that sends two may want to be counted as another client
                    return None
                value = text.strip().strip('"')
    return value or None


def query(request: Request, name: str) -> str | None:
    from urllib.parse import parse_qsl

    try:
        pairs = parse_qsl(request.query.decode("latin-1"), max_num_fields=100)
    except ValueError:
        return None
    values = [value for key, value in pairs if key == name]
    return values[0] if len(values) == 1 else None

"""``[identity]``, ``[tiers]`` and ``trusted_proxies`` of a rules file -> Identity."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ratekeeper.errors import InvalidInput
from ratekeeper.identity.address import Addresses, parse_address
from ratekeeper.identity.identity import NAMED, ApiKey, Identity
from ratekeeper.identity.jwt import PUBLIC, SECRETS, Tokens, fetch_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ratekeeper.rules.parse_values import ValueParser
    from ratekeeper.rules.validate import Place


class IdentityParser:
    """Reads who a client is.  ``warnings`` are about settings that do nothing, or too little."""

    def __init__(self, root: Place, content: dict[str, Any], values: ValueParser, folder: Path) -> None:
        self.root = root
        self.content = content
        self.values = values
        self.folder = folder
        self.warnings: list[str] = []
        self.tiers: dict[str, Any] | None = content.get("tiers")

    def identity(self) -> Identity:
        table = self.content.get("identity", {})
        place = self.root.key("identity")
        trusted = self.values.networks(
            self.root.key("trusted_proxies"), self.content.get("trusted_proxies", ()), trust=True
        )
        header = self.content.get("client_header", "X-Forwarded-For")
        if "client_header" in self.content and not trusted:
            self.warnings.append(f"client_header: {header!r} is ignored, because trusted_proxies is empty.")
        drops = self.content.get("proxies_drop_underscores", False)
        if drops and not trusted:
            self.warnings.append("proxies_drop_underscores is ignored, because trusted_proxies is empty.")
        users = self.values.sources(place.key("user"), table.get("user", ()), NAMED, ("api_key",))
        tokens = self.tokens(place.key("jwt"), table["jwt"]) if "jwt" in table else None
        tier_from: list[str] = []
        if self.tiers is not None:
            where = self.root.key("tiers").key("from")
            tier_from = self.values.sources(
                where, self.tiers.get("from", ()), ("jwt", "app", "function", "header"), ("api_key",)
            )
            if any(source.startswith("header:") for source in tier_from) and not trusted:
                where.refuse(
                    "trusted_proxies beside a tier from a header",
                    None,
                    "Without a trusted proxy, any client could choose its tier.",
                )
        claims = [source for source in [*users, *tier_from, *self.counted_by()] if source.startswith("jwt:")]
        if claims and tokens is None:
            self.warnings.append(
                f"identity: {claims[0]!r} is ignored, because there is no [identity.jwt] to verify tokens with. "
                "Clients are counted by the next source, or by address."
            )
        keys = table.get("api_keys")
        for digest in keys or {}:
            if not re.fullmatch("[0-9a-f]{64}", digest):
                place.key("api_keys").refuse(
                    "the SHA-256 of a key, 64 hex digits in lower case", None, "Never write the key itself."
                )
        return Identity(
            Addresses(trusted.texts, header, table.get("ipv4_prefix", 32), table.get("ipv6_prefix", 64), drops),
            user=users,
            api_key=self.values.sources(
                place.key("api_key"), table.get("api_key", "header:X-Api-Key"), ("header", "cookie", "query"), ()
            ),
            api_keys=None
            if keys is None
            else {digest: ApiKey(owner.get("user"), owner.get("tier")) for digest, owner in keys.items()},
            tokens=tokens,
            tier_from=tier_from,
            tier_default=self.tiers["default"] if self.tiers is not None else "default",
            functions=self.values.functions,
        )

    def counted_by(self) -> list[str]:
        """Every source that a rule counts by; of rules that the schema does not allow, what can be read."""
        rules = [table for table in self.content["rules"] if isinstance(table, dict)]
        given = [table.get("by", ()) for table in rules]
        lists = [[by] if isinstance(by, str) else by for by in given if isinstance(by, (str, list, tuple))]
        return [source for sources in lists for source in sources if isinstance(source, str)]

    def tokens(self, place: Place, table: dict[str, Any]) -> Tokens:
        kinds = ("secret_env", "secret", "key", "key_file", "jwks_file", "jwks_url")
        present = [kind for kind in kinds if kind in table]
        if len(present) != 1:
            place.refuse(f"one of {', '.join(kinds)}", present or None, "It verifies the tokens.")
        kind, value = present[0], table[present[0]]
        key: str | bytes | None = None
        jwks: Callable[[], str | bytes] | None = None
        if kind == "secret_env":
            import os

            key = os.environ.get(value)
            if not key:
                place.key(kind).refuse("an environment variable that is set", value, "Export it before the start.")
        elif kind in ("secret", "key"):
            key = value
        elif kind == "key_file":
            key = self.file(place.key(kind), value)
        elif kind == "jwks_file":
            content = self.file(place.key(kind), value)
            jwks = lambda: content  # noqa: E731
        else:
            if not is_safe_source(value):
                place.key(kind).refuse(
                    "an https URL", value, "Whoever can change the keys can sign tokens for any user."
                )
            jwks = lambda: fetch_url(value)  # noqa: E731
        defaults = SECRETS[:1] if kind in ("secret_env", "secret") else PUBLIC
        allowed = SECRETS if kind in ("secret_env", "secret") else PUBLIC
        algorithms = table.get("algorithms", list(defaults))
        for number, algorithm in enumerate(algorithms):
            if algorithm not in allowed:
                place.key("algorithms").key(number).refuse(
                    f"an algorithm that fits {kind} ({', '.join(allowed)})",
                    algorithm,
                    "With others, tokens could be forged.",
                )
        if allowed is SECRETS and key is not None and len(key) < 32:
            self.warnings.append(
                "identity.jwt: the secret is shorter than 32 bytes, so it can be guessed from one token."
            )
        try:
            return Tokens(
                algorithms=algorithms,
                key=key,
                jwks=jwks,
                fetched=kind == "jwks_url",
                issuer=table.get("issuer"),
                audience=table.get("audience"),
                leeway=self.values.micros(place.key("leeway"), table.get("leeway", 0)) / 1_000_000,
                header=table.get("header", "Authorization"),
            )
        except InvalidInput:
            raise
        except Exception as error:
            place.key(kind).refuse("keys that can be read", None, f"{type(error).__name__}: {error}"[:120])

    def file(self, place: Place, name: str) -> str:
        try:
            return (self.folder / name).read_text("utf-8")
        except OSError as error:
            place.refuse("a file that can be read", name, f"{error.strerror}.")


def is_safe_source(url: str) -> bool:
    """Whether nobody on the way can change what a URL answers: https, or plain http on this host."""
    try:
        parts = urlsplit(url)
        host, named = parts.hostname or "", parts.netloc.removesuffix(f":{parts.port}").lower()
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host)
    address = parse_address(host)
    is_loopback = host == "localhost" if address is None else address.is_loopback
    return parts.scheme == "http" and is_loopback and named in (host, f"[{host}]")

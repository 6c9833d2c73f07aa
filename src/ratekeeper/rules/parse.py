"""A rules file -> Settings, or one error that names the place, what was expected, what was found and what to do.

``schema.py`` says what may stand where, ``shape.py`` whether it does; here is what a schema cannot say.  A file is
taken whole or refused whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidLimit, did_you_mean, shown
from ratekeeper.identity.address import UNIX, Addresses, Networks
from ratekeeper.identity.identity import NAMED, PLAIN, ApiKey, Identity
from ratekeeper.identity.jwt import PUBLIC, SECRETS, Tokens, fetch_url
from ratekeeper.limit import parse_limits
from ratekeeper.rules.files import read
from ratekeeper.rules.match import Pattern
from ratekeeper.rules.rule import ANY_TIER, THIRTY_SECONDS, Cost, Exempt, Penalty, Rule
from ratekeeper.rules.schema import BODIES, RULES
from ratekeeper.rules.settings import Response, Settings
from ratekeeper.rules.validate import Place, fits, sentence
from ratekeeper.units import parse_period, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit, LimitSet

    Render = Callable[["HttpVerdict"], tuple[str, bytes]]
    Functions = Mapping[str, Callable[[Request], Any]]

__all__ = ["Response", "Settings", "parse", "read"]
HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
METHODS = re.compile(r"\*|[A-Z]+(,[A-Z]+)*")
PLACEHOLDERS = ("retry_after", "limit", "rule")


def parse(
    found: Mapping[str, Any], name: str = "rules", functions: Functions | None = None, folder: Path | None = None
) -> Settings:
    """What a rules file says.  ``functions`` are those it may name; relative files lie in ``folder``."""
    root = Place(f"{name}: ")
    found = dict(found)
    fits(root, found, RULES)
    functions = functions or {}
    if not (isinstance(functions, Mapping) and all(callable(function) for function in functions.values())):
        raise InvalidInput(f"functions: expected a dictionary of functions by their names, got {shown(functions)}.")
    reader = RulesParser(root, found, functions, folder or Path())
    identity = reader.identity()
    rules = reader.rules()
    reader.look_for_holes(rules, identity)
    response = reader.response()
    return Settings(
        rules=rules,
        identity=identity,
        store=found.get("store", "memory://"),
        exempt=reader.exempt(root.key("exempt"), found.get("exempt", ())),
        response=response,
        secret=found.get("secret"),
        warnings=tuple(reader.warnings),
    )


class RulesParser:
    """Reads what fits the schema, with the settings that other settings depend on at hand."""

    def __init__(self, root: Place, found: dict[str, Any], functions: Functions, folder: Path) -> None:
        self.root = root
        self.found = found
        self.functions = functions
        self.folder = folder
        self.warnings: list[str] = []
        self.tiers: dict[str, Any] | None = found.get("tiers")

    def identity(self) -> Identity:
        found = self.found.get("identity", {})
        place = self.root.key("identity")
        trusted = self.networks(self.root.key("trusted_proxies"), self.found.get("trusted_proxies", ()), trust=True)
        header = self.found.get("client_header", "X-Forwarded-For")
        if "client_header" in self.found and not trusted:
            self.warnings.append(f"client_header: {header!r} is believed from nobody: trusted_proxies is empty.")
        users = self.sources(place.key("user"), found.get("user", ()), NAMED, ("api_key",))
        tokens = self.tokens(place.key("jwt"), found["jwt"]) if "jwt" in found else None
        tier_from: list[str] = []
        if self.tiers is not None:
            where = self.root.key("tiers").key("from")
            tier_from = self.sources(
                where, self.tiers.get("from", ()), ("jwt", "app", "function", "header"), ("api_key",)
            )
            if any(source.startswith("header:") for source in tier_from) and not trusted:
                where.refuse(
                    "trusted_proxies beside a tier from a header", None, "Else any client could choose its tier."
                )
        claims = [source for source in [*users, *tier_from] if source.startswith("jwt:")]
        if claims and tokens is None:
            self.warnings.append(
                f"identity: {claims[0]!r} is never believed: there is no [identity.jwt] to verify a token with. "
                "Callers are counted by the next source, or by address."
            )
        keys = found.get("api_keys")
        for digest in keys or {}:
            if not re.fullmatch("[0-9a-f]{64}", digest):
                place.key("api_keys").refuse(
                    "the SHA-256 of a key, 64 hex digits in lower case", None, "Never write the key itself."
                )
        return Identity(
            Addresses(trusted.texts, header, found.get("ipv4_prefix", 32), found.get("ipv6_prefix", 64)),
            user=users,
            api_key=self.sources(
                place.key("api_key"), found.get("api_key", "header:X-Api-Key"), ("header", "cookie", "query"), ()
            ),
            api_keys=None
            if keys is None
            else {digest: ApiKey(own.get("user"), own.get("tier")) for digest, own in keys.items()},
            tokens=tokens,
            tier_from=tier_from,
            tier_default=self.tiers["default"] if self.tiers is not None else "default",
            functions=self.functions,
        )

    def tokens(self, place: Place, found: dict[str, Any]) -> Tokens:
        kinds = ("secret_env", "secret", "key", "key_file", "jwks_file", "jwks_url")
        given = [kind for kind in kinds if kind in found]
        if len(given) != 1:
            place.refuse(f"one of {', '.join(kinds)}", given or None, "It verifies the tokens.")
        kind, value = given[0], found[given[0]]
        key: str | bytes | None = None
        jwks: Callable[[], str | bytes] | None = None
        if kind == "secret_env":
            import os

            key = os.environ.get(value)
            if not key:
                place.key(kind).refuse("a variable that is set", value, "Export it before the start.")
        elif kind in ("secret", "key"):
            key = value
        elif kind == "key_file":
            key = self.file(place.key(kind), value)
        elif kind == "jwks_file":
            content = self.file(place.key(kind), value)
            jwks = lambda: content  # noqa: E731
        else:
            if not value.startswith(("https://", "http://127.0.0.1", "http://localhost", "http://[::1]")):
                place.key(kind).refuse("an https URL", value, "Who can change the keys can be anybody.")
            jwks = lambda: fetch_url(value)  # noqa: E731
        own = SECRETS[:1] if kind in ("secret_env", "secret") else PUBLIC
        fitting = SECRETS if kind in ("secret_env", "secret") else PUBLIC
        algorithms = found.get("algorithms", list(own))
        for number, algorithm in enumerate(algorithms):
            if algorithm not in fitting:
                place.key("algorithms").key(number).refuse(
                    f"an algorithm that fits {kind} ({', '.join(fitting)})",
                    algorithm,
                    "Others would let tokens be forged.",
                )
        if fitting is SECRETS and key is not None and len(key) < 32:
            self.warnings.append(
                "identity.jwt: the secret is shorter than 32 bytes, so it can be guessed from one token."
            )
        try:
            return Tokens(
                algorithms=algorithms,
                key=key,
                jwks=jwks,
                fetched=kind == "jwks_url",
                issuer=found.get("issuer"),
                audience=found.get("audience"),
                leeway=self.micros(place.key("leeway"), found.get("leeway", 0)) / 1_000_000,
                header=found.get("header", "Authorization"),
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

    def sources(
        self, place: Place, found: str | Sequence[str], named: Sequence[str], plain: Sequence[str]
    ) -> list[str]:
        sources = [found] if isinstance(found, str) else list(found)
        for number, source in enumerate(sources):
            kind, colon, name = source.partition(":")
            here = place if isinstance(found, str) else place.key(number)
            if not (source in plain or (kind in named and colon and name)):
                words = [*plain, *[f"{kind}:NAME" for kind in named]]
                here.refuse(f"one of {', '.join(words)}", source, did_you_mean(kind, [*plain, *named]).strip())
            if kind == "header" and not HEADER.fullmatch(name):
                here.refuse("the name of a header behind 'header:'", source)
            if kind == "function" and name not in self.functions:
                here.refuse(f"a function that was given ({', '.join(self.functions) or 'none was'})", source,
                            "Pass it: Policy.load(path, functions={...}).")  # fmt: skip
        return sources

    def networks(self, place: Place, found: Sequence[str], *, trust: bool = False) -> Networks:
        for number, text in enumerate(found):
            here = place.key(number)
            if text == UNIX:
                continue
            try:
                network = ip_network(text, strict=False)
            except ValueError:
                here.refuse("an address or a network such as '10.0.0.0/8'", text,
                            "Name the proxies: whoever is trusted chooses addresses." if trust else "")  # fmt: skip
            if trust and network.prefixlen == 0:
                here.refuse(
                    "the networks of your proxies", text, "To trust everybody lets any client choose its address."
                )
        return Networks(found)

    def exempt(self, place: Place, found: Sequence[str]) -> Exempt:
        for number, text in enumerate(found):
            if text in ("user:", "tier:"):
                place.key(number).refuse(f"a name behind {text!r}", text)
        users = frozenset(text[5:] for text in found if text.startswith("user:"))
        tiers = frozenset(text[5:] for text in found if text.startswith("tier:"))
        rest = [text for text in found if not text.startswith(("user:", "tier:"))]
        return Exempt(self.networks(place, rest), frozenset("user:" + user for user in users), tiers)

    def micros(self, place: Place, value: str | float) -> int:
        try:
            return parse_period(value, "time") if isinstance(value, str) else to_micros(value, "time")
        except InvalidLimit as error:
            place.refuse("a length of time such as '10 minutes'", value, sentence(str(error).partition(": ")[2]))

    def response(self) -> Response:
        found = self.found.get("response", {})
        place = self.root.key("response")
        if "message" in found:
            self.message(place.key("message"), found["message"])
        body: Any = found.get("body", "json")
        render: Any = None
        if body not in BODIES:
            if not callable(body):
                self.sources(place.key("body"), body, ("function",), BODIES)
            body, render = "json", body if callable(body) else self.functions[body.partition(":")[2]]
        return Response(
            headers=tuple(found.get("headers", Response.headers)),
            body=body,
            render=render,
            jitter=self.micros(place.key("jitter"), found.get("jitter", 0)),
            cors=tuple(found.get("cors", ())),
            count_preflights=found.get("count_preflights", False),
            message=found.get("message"),
        )

    def message(self, place: Place, text: str) -> str:
        try:
            plain = all(
                name is None or (name in PLACEHOLDERS and not form and not conversion)
                for _, name, form, conversion in Formatter().parse(text)
            )
        except ValueError:
            plain = False
        if not plain:
            place.refuse(f"text with no placeholders but {', '.join('{' + name + '}' for name in PLACEHOLDERS)}", text,
                         "Double a brace that is meant as one.")  # fmt: skip
        return text

    def rules(self) -> tuple[Rule, ...]:
        names: dict[str, int] = {}
        made = []
        for number, found in enumerate(self.found["rules"]):
            place = Place(self.root.key("rules").key(number).text, found["name"])
            if found["name"] in names:
                place.key("name").refuse("a name of its own", found["name"], f"rules[{names[found['name']]}] has it.")
            names[found["name"]] = number
            made.append(self.rule(place, found))
        return tuple(made)

    def leases(self, place: Place, found: dict[str, Any]) -> None:
        """What is given back when a response is done must have been taken for one, and be enforced."""
        limits = self.limits(place, found).values() if "limit" in found else ()
        leased = [limit for limit in limits if limit.is_leased]
        if leased and found.get("counts") == "messages":
            place.key("counts").refuse(f"'requests' with '{leased[0]}'", "messages", "A message holds nothing.")
        if leased and (found.get("mode") == "shadow" or found.get("enforce_percent", 100) != 100):
            word = "mode" if found.get("mode") == "shadow" else "enforce_percent"
            place.key(word).refuse(
                f"every request to be held by '{leased[0]}'", found[word], "Enforce it, or take it out."
            )

    def rule(self, place: Place, found: dict[str, Any]) -> Rule:
        by = found.get("by", "ip")
        sources: tuple[Any, ...] = (by,) if isinstance(by, str) or callable(by) else tuple(by)
        self.sources(place.key("by"), [source for source in sources if isinstance(source, str)], NAMED, PLAIN)
        if "limit" not in found and "allow_from" not in found:
            place.refuse("'limit' or 'allow_from'", None, "A rule needs something to decide.")
        if "limit" not in found:
            for name in ("penalty", "grace", "warn_at", "algorithm", "cost"):
                if name in found:
                    place.key(name).refuse("a limit beside it", found[name], "Without one it does nothing.")
        allow_from = self.networks(place.key("allow_from"), found["allow_from"]) if "allow_from" in found else None
        if found.get("counts") == "messages" and found.get("mode") != "off" and allow_from is not None:
            place.key("allow_from").refuse(
                "a rule that counts requests", None, "Messages are let in by their handshake."
            )
        if "message" in found:
            self.message(place.key("message"), found["message"])
        penalty = found.get("penalty")
        self.leases(place, found)
        return Rule(
            name=found["name"],
            patterns=self.patterns(place, found),
            by=sources,
            limits=self.limits(place, found),
            tier_default=self.tiers["default"] if self.tiers is not None else ANY_TIER,
            cost=self.cost(place.key("cost"), found.get("cost", 1)),
            counts=found.get("counts", "requests"),
            scope=found.get("scope", "fleet"),
            mode=found.get("mode", "enforce"),
            enforce_percent=found.get("enforce_percent", 100),
            warn_at=found.get("warn_at"),
            grace=found.get("grace", 0),
            penalty=self.penalty(place.key("penalty"), penalty) if penalty else None,
            allow_from=allow_from,
            exempt=self.exempt(place.key("exempt"), found["exempt"]) if "exempt" in found else None,
            on_store_error=found.get("on_store_error", self.found.get("on_store_error", "local")),
            max_delay=self.micros(place.key("max_delay"), found["max_delay"])
            if "max_delay" in found
            else THIRTY_SECONDS,
            message=found.get("message"),
            headers=found.get("headers", True),
        )

    def patterns(self, place: Place, found: dict[str, Any]) -> tuple[Pattern, ...]:
        given = found.get("match", "/**")
        texts = [given] if isinstance(given, str) else list(given)
        for number, text in enumerate(texts):
            here = place.key("match") if isinstance(given, str) else place.key("match").key(number)
            words = text.split()
            paths = [word for word in words if word.startswith("/")]
            methods = [word for word in words if not word.startswith("/")]
            if len(paths) > 1 or len(methods) > 1 or (paths and words[-1] is not paths[0]):
                here.refuse("methods and a path such as 'GET,POST /api/**'", text)
            if methods and not METHODS.fullmatch(methods[0]):
                here.refuse("methods and a path such as 'GET,POST /api/**'", text, "A path begins with '/'.")
            if paths and ("?" in paths[0] or "#" in paths[0]):
                here.refuse("a path without a query", text, "Queries do not tell routes apart.")
            parts = Pattern(text).segments
            if parts.count("**") > 1 or (paths and paths[0].count("**") > 1):
                here.refuse("'**' once in a path", text)
            if set("".join(parts)) & set("{}<>"):
                here.refuse("each '{' closed by a '}', as in '/users/{id}'", text)
        return tuple([Pattern(text, found.get("host")) for text in texts])

    def limits(self, place: Place, found: dict[str, Any]) -> dict[str, Limit | LimitSet]:
        if "limit" not in found:
            return {}
        given = found["limit"]
        where = place.key("limit")
        if not isinstance(given, dict):
            return {ANY_TIER: self.limit(where, given, found.get("algorithm"))}
        if self.tiers is None:
            where.refuse(
                "a limit for everybody, as there is no [tiers]", given, "Add [tiers] with 'from' and 'default'."
            )
        default = self.tiers["default"]
        if default not in given:
            near = did_you_mean(default, given).strip()
            where.refuse(f"a limit for the default tier {default!r} too", sorted(given), near)
        return {tier: self.limit(where.key(tier), own, found.get("algorithm")) for tier, own in given.items()}

    def limit(self, place: Place, given: Any, algorithm: str | None) -> Limit | LimitSet:
        try:
            return parse_limits(given, algorithm)
        except InvalidInput as error:
            head, _, rest = str(error).partition(": expected ")
            advice = rest.partition(" To refuse everybody")[0]
            cure = (
                " To switch the rule off, write mode = 'off'; to refuse everybody, allow_from = []."
                if advice != rest
                else ""
            )
            place.refuse((advice or head).rstrip(".") + f" ({shown(given)})", None, cure.strip())

    def cost(self, place: Place, given: Any) -> Cost:
        if isinstance(given, int):
            return Cost(constant=given)
        if callable(given):
            return Cost(source="function", function=given)
        found: dict[str, Any] = {"from": given} if isinstance(given, str) else given
        here = place if isinstance(given, str) else place.key("from")
        (source,) = self.sources(here, [found["from"]], ("header", "function"), ("body",))
        kind, _, name = source.partition(":")
        most = found.get("most")
        return Cost(
            source=kind,
            name=name,
            function=self.functions[name] if kind == "function" else None,
            per=found.get("per", 1),
            most=most,
            missing=found.get("missing", most or 1),
        )

    def penalty(self, place: Place, found: dict[str, Any]) -> Penalty:
        within = self.micros(place.key("within"), found["within"])
        block = self.micros(place.key("block"), found["block"])
        for name, value in (("within", within), ("block", block)):
            if not 1_000 <= value <= 400 * 86_400_000_000:
                place.key(name).refuse("a time from 1 millisecond to 400 days", found[name])
        return Penalty(found["after"], within, block)

    def look_for_holes(self, rules: tuple[Rule, ...], identity: Identity) -> None:
        """Warn of rules that a client can slip out of by writing something else."""
        for rule in rules:
            source = identity.unverified(rule.by)
            if source and rule.limits and not is_covered(rule, rules):
                self.warnings.append(
                    f"rule {rule.name!r} counts by {source!r}, which a client may change at will. "
                    "Add a rule by ip for everything beside it."
                )


def is_covered(rule: Rule, rules: Iterable[Rule]) -> bool:
    """Whether whoever slips out of ``rule`` still meets a rule by address."""
    return any(
        other is not rule and other.mode == "enforce" and bool(other.limits) and list(other.by) == ["ip"]
        and any(pattern.text == "/**" and pattern.methods is None for pattern in other.patterns)
        for other in rules
    )  # fmt: skip

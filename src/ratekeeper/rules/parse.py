"""The content of a rules file -> Settings, or an InvalidRules that names the place, what was expected and what to do.

``schema.py`` says what a file may contain, and ``validate.py`` checks it; here is what a schema cannot say.  A file is
accepted as a whole or refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ratekeeper.errors import InvalidInput, InvalidLimit, did_you_mean, shown
from ratekeeper.http.body import MEDIA, PRESETS, renderer, wrong_placeholder
from ratekeeper.http.body import PLACEHOLDERS as BODY_PLACEHOLDERS
from ratekeeper.identity.address import UNIX, Addresses, Networks, parse_address
from ratekeeper.identity.identity import NAMED, PLAIN, ApiKey, Identity, source_advice
from ratekeeper.identity.jwt import PUBLIC, SECRETS, Tokens, fetch_url
from ratekeeper.rules.closed import parse_rule_limits
from ratekeeper.rules.computed import LimitFunction, NotLoadable, load_function, name_of_function
from ratekeeper.rules.condition import EXPECTED as CONDITION
from ratekeeper.rules.condition import Condition
from ratekeeper.rules.match import Pattern
from ratekeeper.rules.rule import ANY_TIER, THIRTY_SECONDS, Cost, Exempt, Penalty, Rule
from ratekeeper.rules.schema import BODIES, RULES
from ratekeeper.rules.settings import Response, Settings
from ratekeeper.rules.validate import Attempts, Place, fits, sentence
from ratekeeper.units import parse_period, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.limit import Limit, LimitSet

    Render = Callable[["HttpVerdict"], tuple[str, bytes]]
    Functions = Mapping[str, Callable[[Request], Any]]

HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
METHODS = re.compile(r"\*|[A-Z]+(,[A-Z]+)*")
PLACEHOLDERS = ("retry_after", "limit", "rule")


def parse(
    content: Mapping[str, Any], name: str = "rules", functions: Functions | None = None, folder: Path | None = None
) -> Settings:
    """Understand the content of a rules file.  It may name ``functions``, and files relative to ``folder``."""
    root = Place(f"{name}: ", locate=getattr(content, "locate", None))
    content = with_modes(content)
    functions = functions or {}
    if not (isinstance(functions, Mapping) and all(callable(function) for function in functions.values())):
        raise InvalidInput(f"functions: expected a dictionary of functions by their names, got {shown(functions)}.")
    attempt = Attempts()
    attempt(fits, root, content, RULES)
    unfit = {mistake.keys[1] for mistake in attempt.mistakes if len(mistake.keys) > 1 and mistake.keys[0] == "rules"}
    if len(unfit) < len({mistake.keys[:2] for mistake in attempt.mistakes}):
        attempt.finish()  # what is wrong outside of the rules would make other settings look wrong
    parser = RulesParser(root, content, functions, folder or Path())
    identity = attempt(parser.identity)
    rules = attempt(parser.rules, unfit)
    response = attempt(parser.response)
    exempt = attempt(parser.exempt, root.key("exempt"), content.get("exempt", ()))
    attempt.finish()
    parser.warn_of_missing_identity(rules, exempt, identity)
    parser.warn_of_chosen_costs(rules)
    parser.warn_of_unverified_sources(rules, identity)
    return Settings(
        rules=rules,
        identity=identity,
        store=content.get("store", "memory://"),
        exempt=exempt,
        response=response,
        secret=content.get("secret"),
        on_store_error=content.get("on_store_error", "local"),
        tier_default=parser.tiers["default"] if parser.tiers is not None else None,
        warnings=tuple(parser.warnings),
    )


def with_modes(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content, where YAML's ``mode: off``, which is False, is the mode that was written."""
    copied, rules = dict(content), content.get("rules")
    if isinstance(rules, (list, tuple)):
        copied["rules"] = [
            {**rule, "mode": "off"} if isinstance(rule, dict) and rule.get("mode") is False else rule for rule in rules
        ]
    return copied


class RulesParser:
    """Reads content that the schema allows; some settings depend on others, which are kept here."""

    def __init__(self, root: Place, content: dict[str, Any], functions: Functions, folder: Path) -> None:
        self.root = root
        self.content = content
        self.functions = dict(functions)  # those that were given, and those that were imported
        self.folder = folder
        self.warnings: list[str] = []
        self.tiers: dict[str, Any] | None = content.get("tiers")

    def identity(self) -> Identity:
        table = self.content.get("identity", {})
        place = self.root.key("identity")
        trusted = self.networks(self.root.key("trusted_proxies"), self.content.get("trusted_proxies", ()), trust=True)
        header = self.content.get("client_header", "X-Forwarded-For")
        if "client_header" in self.content and not trusted:
            self.warnings.append(f"client_header: {header!r} is ignored, because trusted_proxies is empty.")
        users = self.sources(place.key("user"), table.get("user", ()), NAMED, ("api_key",))
        tokens = self.tokens(place.key("jwt"), table["jwt"]) if "jwt" in table else None
        tier_from: list[str] = []
        if self.tiers is not None:
            where = self.root.key("tiers").key("from")
            tier_from = self.sources(
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
            Addresses(trusted.texts, header, table.get("ipv4_prefix", 32), table.get("ipv6_prefix", 64)),
            user=users,
            api_key=self.sources(
                place.key("api_key"), table.get("api_key", "header:X-Api-Key"), ("header", "cookie", "query"), ()
            ),
            api_keys=None
            if keys is None
            else {digest: ApiKey(owner.get("user"), owner.get("tier")) for digest, owner in keys.items()},
            tokens=tokens,
            tier_from=tier_from,
            tier_default=self.tiers["default"] if self.tiers is not None else "default",
            functions=self.functions,
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
                leeway=self.micros(place.key("leeway"), table.get("leeway", 0)) / 1_000_000,
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

    def sources(
        self, place: Place, given: str | Sequence[str], named: Sequence[str], unnamed: Sequence[str]
    ) -> list[str]:
        sources = [given] if isinstance(given, str) else list(given)
        for number, source in enumerate(sources):
            kind, colon, name = source.partition(":")
            here = place if isinstance(given, str) else place.key(number)
            if not (source in unnamed or (kind in named and colon and name)):
                words = [*unnamed, *[f"{kind}:NAME" for kind in named]]
                here.refuse(f"one of {', '.join(words)}", source, source_advice(source, unnamed, named))
            if kind == "header" and not HEADER.fullmatch(name):
                here.refuse("the name of a header behind 'header:'", source)
            if kind == "function":
                self.expect_function(here, source)
        return sources

    def expect_function(self, place: Place, source: str) -> Callable[..., Any]:
        """The function ``function:NAME``, which was given, or ``function:MODULE:NAME``, which is imported once."""
        name = source.removeprefix("function:")
        if name in self.functions:
            return self.functions[name]
        if ":" not in name:
            place.refuse(f"a function that was given ({', '.join(self.functions) or 'none was'})", source,
                         "Pass it: Policy.load(path, functions={...}); or name its module: "
                         "'function:MODULE:NAME'.")  # fmt: skip
        try:
            function = self.functions[name] = load_function(name)
        except NotLoadable as error:
            place.refuse("a function that can be imported", source, str(error))
        return function

    def networks(self, place: Place, texts: Sequence[str], *, trust: bool = False) -> Networks:
        for number, text in enumerate(texts):
            item = place.key(number)
            if text == UNIX:
                continue
            try:
                network = ip_network(text, strict=False)
            except ValueError:
                advice = "Name your proxies: a trusted proxy can choose any client address." if trust else ""
                item.refuse("an address or a network such as '10.0.0.0/8'", text, advice)
            if trust and network.prefixlen == 0:
                item.refuse(
                    "the networks of your proxies",
                    text,
                    "If every address is trusted, any client can choose its address.",
                )
        return Networks(texts)

    def exempt(self, place: Place, texts: Sequence[str]) -> Exempt:
        paths = []
        functions: list[Any] = [text for text in texts if callable(text)]
        for number, text in enumerate(texts):
            if callable(text):
                continue
            if text.startswith("function:"):
                functions.append(self.expect_function(place.key(number), text))
            if text in ("user:", "tier:"):
                place.key(number).refuse(f"a name behind {text!r}", text)
            if text.startswith("/") or " /" in text:
                self.pattern(place.key(number), text)
                paths.append(Pattern(text, exact=True))
        texts = [text for text in texts if not (callable(text) or text.startswith("function:"))]
        users = frozenset(text[5:] for text in texts if text.startswith("user:"))
        tiers = frozenset(text[5:] for text in texts if text.startswith("tier:"))
        others = [text for text in texts if not text.startswith(("user:", "tier:", "/")) and " /" not in text]
        users = frozenset("user:" + user for user in users)
        return Exempt(self.networks(place, others), users, tiers, tuple(paths), tuple(functions))

    def micros(self, place: Place, value: str | float) -> int:
        try:
            return parse_period(value, "time") if isinstance(value, str) else to_micros(value, "time")
        except InvalidLimit as error:
            place.refuse("a length of time such as '10 minutes'", value, sentence(str(error).partition(": ")[2]))

    def response(self) -> Response:
        table = self.content.get("response", {})
        place = self.root.key("response")
        if "message" in table:
            self.message(place.key("message"), table["message"])
        body: Any = table.get("body", "json")
        render: Any = None
        if isinstance(body, dict):
            self.template(place.key("body"), body)
            body, render = "json", renderer(body)
        elif body in PRESETS:
            body, render = "json", renderer(PRESETS[body], MEDIA.get(body, "application/json"))
        elif body not in BODIES:
            if not callable(body):
                self.sources(place.key("body"), body, ("function",), (*BODIES, *PRESETS))
            body, render = "json", body if callable(body) else self.functions[body.partition(":")[2]]
        headers = table.get("headers", Response.headers)
        return Response(
            headers=() if isinstance(headers, dict) else tuple(headers),
            header_names=headers if isinstance(headers, dict) else {},
            body=body,
            render=render,
            jitter=self.micros(place.key("jitter"), table.get("jitter", 0)),
            cors=tuple(table.get("cors", ())),
            count_preflights=table.get("count_preflights", False),
            message=table.get("message"),
        )

    def template(self, place: Place, value: Any) -> None:
        """Refuse a template of the body with a placeholder that there is not."""
        attempt = Attempts()
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, (dict, list, tuple)):
                attempt(self.template, place.key(name), item)
            elif isinstance(item, str) and wrong_placeholder(item):
                names = ", ".join(f"{{{name}}}" for name in BODY_PLACEHOLDERS)
                attempt(place.key(name).refuse, f"text with no placeholders but {names}", item,
                        "Double a brace that is not a placeholder.")  # fmt: skip
            elif not isinstance(item, (str, int, float)):
                attempt(place.key(name).refuse, "text, a number, true, false, a list or a table", item)
        attempt.finish()

    def message(self, place: Place, text: str) -> str:
        try:
            is_valid = all(
                name is None or (name in PLACEHOLDERS and not form and not conversion)
                for _, name, form, conversion in Formatter().parse(text)
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            place.refuse(f"text with no placeholders but {', '.join('{' + name + '}' for name in PLACEHOLDERS)}", text,
                         "Double a brace that is not a placeholder.")  # fmt: skip
        return text

    def rules(self, unfit: set[Any]) -> tuple[Rule, ...]:
        """The rules, except for those with the numbers ``unfit``: they have mistakes that were found before."""
        names: dict[str, int] = {}
        rules = []
        attempt = Attempts()
        for number, table in enumerate(self.content["rules"]):
            if number in unfit:
                continue
            place = self.root.key("rules").key(number).of_rule(table["name"])
            if table["name"] in names:
                other = f"rules[{names[table['name']]}] has it."
                attempt(place.key("name").refuse, "a name of its own", table["name"], other)
            names[table["name"]] = number
            rules.append(attempt(self.rule, place, table))
        attempt.finish()
        return tuple(rules)

    def leases(self, place: Place, table: dict[str, Any], limits: dict[str, Limit | LimitSet]) -> None:
        """Refuse leases that no response would give back: of messages, and of rules that are not enforced."""
        leased = [limit for limit in limits.values() if limit.is_leased]
        if leased and "count_when" in table:
            place.key("count_when").refuse(
                f"a limit per time, as a lease of '{leased[0]}' ends with the response", table["count_when"]
            )
        if leased and table.get("counts") == "messages":
            place.key("counts").refuse(f"'requests' with '{leased[0]}'", "messages", "A message holds no lease.")
        if leased and (table.get("mode") == "shadow" or table.get("enforce_percent", 100) != 100):
            word = "mode" if table.get("mode") == "shadow" else "enforce_percent"
            place.key(word).refuse(
                f"every request to hold a lease of '{leased[0]}'", table[word], "Enforce the rule, or remove it."
            )

    def rule(self, place: Place, table: dict[str, Any]) -> Rule:
        attempt = Attempts()
        by = table.get("by", "ip")
        sources: tuple[Any, ...] = (by,) if isinstance(by, str) or callable(by) else tuple(by)
        named = [source for source in sources if isinstance(source, str)]
        attempt(self.sources, place.key("by"), named, NAMED, PLAIN)
        attempt(self.expect_limit, place, table)
        allow_from = None
        if "allow_from" in table:
            allow_from = attempt(self.networks, place.key("allow_from"), table["allow_from"])
        if table.get("counts") == "messages" and table.get("mode") != "off" and allow_from is not None:
            message = "The handshake decides for the messages."
            attempt(place.key("allow_from").refuse, "a rule that counts requests", None, message)
        if "message" in table:
            attempt(self.message, place.key("message"), table["message"])
        function = attempt(self.limit_function, place.key("limit"), table)
        limits = attempt(self.limits, place, table) if function is None else {}
        if limits:
            attempt(self.leases, place, table, limits)
        patterns, exclusions = attempt(self.patterns, place, table) or ((), ())
        count_when = attempt(self.condition, place.key("count_when"), table) if "count_when" in table else None
        cost = attempt(self.cost, place.key("cost"), table.get("cost", 1))
        penalty = attempt(self.penalty, place.key("penalty"), table["penalty"]) if table.get("penalty") else None
        exempt = attempt(self.exempt, place.key("exempt"), table["exempt"]) if "exempt" in table else None
        max_delay = THIRTY_SECONDS
        if "max_delay" in table:
            max_delay = attempt(self.micros, place.key("max_delay"), table["max_delay"])
        attempt.finish()
        return Rule(
            name=table["name"],
            patterns=patterns,
            by=sources,
            limits=limits,
            tier_default=self.tiers["default"] if self.tiers is not None else ANY_TIER,
            cost=cost,
            counts=table.get("counts", "requests"),
            scope=table.get("scope", "fleet"),
            mode=table.get("mode", "enforce"),
            enforce_percent=table.get("enforce_percent", 100),
            warn_at=table.get("warn_at"),
            grace=table.get("grace", 0),
            penalty=penalty,
            allow_from=allow_from,
            exempt=exempt,
            on_store_error=table.get("on_store_error", self.content.get("on_store_error", "local")),
            max_delay=max_delay,
            message=table.get("message"),
            headers=table.get("headers", True),
            exclusions=exclusions + (exempt.paths if exempt is not None else ()),
            is_default=table.get("default", False),
            limit_function=function,
            count_when=count_when,
        )

    def expect_limit(self, place: Place, table: dict[str, Any]) -> None:
        if "limit" in table:
            return
        if "allow_from" not in table:
            place.refuse("'limit' or 'allow_from'", None, "A rule needs one of them.")
        for name in ("penalty", "grace", "warn_at", "algorithm", "window", "timezone", "cost", "count_when"):
            if name in table:
                place.key(name).refuse("a limit beside it", table[name], "Without a limit it does nothing.")

    def limit_function(self, place: Place, table: dict[str, Any]) -> LimitFunction | None:
        """The function that computes the limit of each request, if there is one."""
        given = table.get("limit")
        if isinstance(given, str) and given.startswith("function:"):
            function, name = self.expect_function(place, given), given[9:]
        elif callable(given):
            function, name = given, name_of_function(given)
        else:
            return None
        timezone = table.get("timezone", self.content.get("timezone"))
        return LimitFunction(function, name, table.get("algorithm"), table.get("window"), timezone)

    def condition(self, place: Place, table: dict[str, Any]) -> Condition:
        given = table["count_when"]
        if table.get("counts") == "messages":
            place.refuse("a rule that counts requests", given, "A message has no response.")
        if isinstance(given, str) and given.startswith("function:"):
            given = self.expect_function(place, given)
        try:
            condition = Condition(given)
        except ValueError:
            place.refuse(CONDITION, given)
        return condition

    def patterns(self, place: Place, table: dict[str, Any]) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        """The patterns of a rule, and those that begin with ``!``, which it excludes."""
        given = table.get("match", "/**")
        texts = [given] if isinstance(given, str) else list(given)
        attempt = Attempts()
        for number, text in enumerate(texts):
            item = place.key("match") if isinstance(given, str) else place.key("match").key(number)
            attempt(self.pattern, item, text.removeprefix("!"))
        attempt.finish()
        included = [text for text in texts if not text.startswith("!")] or ["/**"]
        excluded = [text[1:] for text in texts if text.startswith("!")]
        host = table.get("host")
        return (
            tuple([Pattern(text, host) for text in included]),
            tuple([Pattern(text, exact=True) for text in excluded]),
        )

    def pattern(self, item: Place, text: str) -> None:
        """Refuse a text that is no pattern."""
        words = text.split()
        paths = [word for word in words if word.startswith("/")]
        methods = [word for word in words if not word.startswith("/")]
        if not words or len(paths) > 1 or len(methods) > 1 or (paths and words[-1] is not paths[0]):
            item.refuse("methods and a path such as 'GET,POST /api/**'", text)
        if methods and not METHODS.fullmatch(methods[0]):
            item.refuse("methods and a path such as 'GET,POST /api/**'", text, "A path begins with '/'.")
        if paths and ("?" in paths[0] or "#" in paths[0]):
            item.refuse("a path without a query", text, "The query is not part of a route.")
        parts = Pattern(text).segments
        if parts.count("**") > 1 or (paths and paths[0].count("**") > 1):
            item.refuse("'**' once in a path", text)
        if set("".join(parts)) & set("{}<>"):
            item.refuse("each '{' closed by a '}', as in '/users/{id}'", text)

    def limits(self, place: Place, table: dict[str, Any]) -> dict[str, Limit | LimitSet]:
        given = table.get("limit")
        if given is None or (isinstance(given, str) and given.startswith("function:")):
            return {}
        limit_place = place.key("limit")
        if not isinstance(given, dict):
            return self.calendars(place, table, {ANY_TIER: self.limit(limit_place, given, table)})
        if self.tiers is None:
            limit_place.refuse(
                "a limit for everybody, as there is no [tiers]", given, "Add [tiers] with 'from' and 'default'."
            )
        default = self.tiers["default"]
        if default not in given:
            suggestion = did_you_mean(default, given).strip()
            limit_place.refuse(f"a limit for the default tier {default!r} too", sorted(given), suggestion)
        limits = {tier: self.limit(limit_place.key(tier), limit, table) for tier, limit in given.items()}
        return self.calendars(place, table, limits)

    def calendars(
        self, place: Place, table: dict[str, Any], limits: dict[str, Limit | LimitSet]
    ) -> dict[str, Limit | LimitSet]:
        """The limits; refuse a time zone that none of them has."""
        if "timezone" in table and not any(part.timezone for limit in limits.values() for part in limit.parts):
            place.key("timezone").refuse(
                "a calendar limit beside it",
                table["timezone"],
                "Write limit = '1000/day calendar', limit = '1000/month', or window = 'calendar'.",
            )
        return limits

    def limit(self, place: Place, given: Any, table: dict[str, Any]) -> Limit | LimitSet:
        algorithm, window = table.get("algorithm"), table.get("window")
        timezone = table.get("timezone", self.content.get("timezone"))
        if window is not None and algorithm not in (None, "fixed_window"):
            place.refuse(f"fixed_window or no algorithm beside window = {window!r}", algorithm)
        try:
            return parse_rule_limits(given, algorithm, window, timezone)
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
        table: dict[str, Any] = {"from": given} if isinstance(given, str) else given
        source_place = place if isinstance(given, str) else place.key("from")
        (source,) = self.sources(source_place, [table["from"]], ("header", "function"), ("body",))
        kind, _, name = source.partition(":")
        most = table.get("most")
        return Cost(
            source=kind,
            name=name,
            function=self.functions[name] if kind == "function" else None,
            per=table.get("per", 1),
            most=most,
            missing=table.get("missing", most or 1),
        )

    def penalty(self, place: Place, table: dict[str, Any]) -> Penalty:
        within = self.micros(place.key("within"), table["within"])
        block = self.micros(place.key("block"), table["block"])
        for name, value in (("within", within), ("block", block)):
            if not 1_000 <= value <= 400 * 86_400_000_000:
                place.key(name).refuse("a time from 1 millisecond to 400 days", table[name])
        return Penalty(table["after"], within, block)

    def warn_of_missing_identity(self, rules: tuple[Rule, ...], exempt: Exempt, identity: Identity) -> None:
        """Warn of users and tiers that nothing in the file can name."""
        for rule in rules:
            if "user" in rule.by and not identity.user_sources:
                self.warnings.append(
                    f"rule {rule.name!r} counts by 'user', but identity.user does not say who that is, so each client "
                    "is counted by address. Add [identity] with user = 'jwt:sub', 'app:user' or another source."
                )
            if "tier" in rule.by and self.tiers is None:
                self.warnings.append(
                    f"rule {rule.name!r} counts by 'tier', but there is no [tiers], so all clients are counted "
                    "together. Add [tiers] with 'from' and 'default'."
                )
        for where, clients in [("exempt", exempt), *[(f"rule {rule.name!r}", rule.exempt) for rule in rules]]:
            if clients is not None and clients.users and not identity.user_sources:
                self.warnings.append(
                    f"{where} exempts users, but identity.user does not say who they are, so none is exempt. "
                    "Add [identity] with user = 'jwt:sub', 'app:user' or another source."
                )
            if clients is not None and clients.tiers and not (self.tiers and self.tiers.get("from")):
                self.warnings.append(
                    f"{where} exempts tiers, but tiers.from does not say who is in them. Add [tiers] with 'from'."
                )

    def warn_of_chosen_costs(self, rules: tuple[Rule, ...]) -> None:
        """Warn of costs that a client can lower by what it sends, or leaves out."""
        for rule in rules:
            if rule.cost.source == "body" and rule.cost.most is None:
                self.warnings.append(
                    f"rule {rule.name!r} takes its cost from the body, but a client can send a body without stating "
                    f"its length, which costs {rule.cost.missing}. Write cost = {{ from = 'body', most = N }}: "
                    "then such a body costs N."
                )
            elif rule.cost.source == "header" and not self.content.get("trusted_proxies"):
                self.warnings.append(
                    f"rule {rule.name!r} takes its cost from the header {rule.cost.name!r}, which a client can write "
                    "itself. Let a trusted proxy set the header, and name the proxy in trusted_proxies."
                )

    def warn_of_unverified_sources(self, rules: tuple[Rule, ...], identity: Identity) -> None:
        """Warn of rules that a client can avoid by sending another value."""
        for rule in rules:
            source = identity.unverified(rule.by)
            if source and rule.has_limit and not is_covered(rule, rules):
                self.warnings.append(
                    f"rule {rule.name!r} counts by {source!r}, which a client can change at will. "
                    "Add a rule by ip for every path beside it."
                )


def is_covered(rule: Rule, rules: Iterable[Rule]) -> bool:
    """Whether a client that avoids ``rule`` still meets a rule by address."""
    return any(
        other is not rule and other.mode == "enforce" and other.has_limit and other.count_when is None
        and list(other.by) == ["ip"]
        and any(pattern.text == "/**" and pattern.methods is None for pattern in other.patterns)
        for other in rules
    )  # fmt: skip


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

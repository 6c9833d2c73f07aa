"""What a rules file may say: one JSON Schema, which checks files here and completes them in editors.

``title`` is what an error says it expected at that place.  ``python -m ratekeeper.rules.schema`` writes the copy,
``rules.schema.json``, that is installed with the package; a test compares the two.
"""

from __future__ import annotations

from typing import Any

from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.http.body import PRESETS
from ratekeeper.http.headers import HEADER_WORDS
from ratekeeper.identity.identity import NAMED, PLAIN
from ratekeeper.units import WINDOW_WORDS

Schema = dict[str, Any]

DIALECTS = ("x-ratelimit", "x-ratelimit-delta", "draft-11", "draft-7", "draft-6", "draft-3")
BODIES = ("json", "problem", "text", "none")
STORE_ERRORS = ("allow", "deny", "local")


def text(title: str, description: str, **more: Any) -> Schema:
    return {"type": "string", "minLength": 1, "title": title, "description": description, **more}


def choice(words: tuple[str, ...], description: str) -> Schema:
    return {"enum": list(words), "title": one_of(words), "description": description}


def whole(title: str, description: str, least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "title": title, "description": description}


def either(title: str, description: str, *forms: Schema) -> Schema:
    return {"anyOf": list(forms), "title": title, "description": description}


def many(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def one_of(words: tuple[str, ...]) -> str:
    return ", ".join(repr(word) for word in words[:-1]) + f" or {words[-1]!r}"


def table(title: str, description: str, properties: dict[str, Schema], *required: str) -> Schema:
    return {
        "type": "object",
        "title": title,
        "description": description,
        "properties": properties,
        "additionalProperties": False,
        "required": list(required),
    }


STRING: Schema = {"type": "string", "minLength": 1}
SOURCES = f"{', '.join(PLAIN)}, or {', '.join(f'{kind}:NAME' for kind in NAMED)}"
LIMIT = "a limit such as '100/minute', or 'unlimited'"
LENGTH = "a length of time such as '10 minutes'"
TIMEZONE = "a time zone such as 'Europe/Berlin'"
NETWORKS = "a list of addresses and networks such as ['10.0.0.0/8']"
EXEMPT = "a list of networks, 'user:NAME', 'tier:NAME', 'function:NAME' and paths such as '/health'"
FUNCTION_NAME = "NAME of a function that was given, or MODULE:NAME of one that is imported"
SOURCE_LIST = either("a source or a list of them", "", STRING, many(STRING, minItems=1))
TIME = either(LENGTH, "", STRING, {"type": "number", "minimum": 0})
LIMITS = either(f"{LIMIT}, or a list of limits", "", STRING, many(STRING, minItems=1))


def described(schema: Schema, description: str, title: str | None = None) -> Schema:
    return {**schema, "description": description, **({"title": title} if title else {})}


RULE = table(
    "a rule",
    "What it matches, by what it counts, and how much it allows. Every rule that matches a request applies.",
    {
        "name": text(
            "a name of printable ASCII without quotes and backslashes",
            "Unique. It names the counters, so a renamed rule starts with new ones. Clients see it in headers.",
            pattern=r"^[ !#-\[\]-~]{1,64}$",
        ),
        "match": either(
            "a pattern such as 'GET /api/users/{id}', '/admin/**', or a list of them",
            "Methods (optional, with commas) and a path: * and {name} are one segment, ** is any number. "
            "A pattern that begins with ! excludes requests. Default: everything.",
            STRING,
            many(STRING, minItems=1),
        ),
        "default": {
            "type": "boolean",
            "title": "true or false",
            "description": "Apply only to requests that no other enforced limit matches by its path. Default: false.",
        },
        "host": text("a host such as 'api.example.com' or '*.example.com'", "Only requests to this host."),
        "by": described(
            {**SOURCE_LIST, "callable": True},
            "What to count by; several sources together make one key. If a source is missing, the address is used.",
            f"{SOURCES}, or a list of them",
        ),
        "limit": either(
            f"{LIMIT}, a list of limits, a table of them by tier, or 'function:NAME'",
            "How much is allowed. All limits of a list hold together; a table has a limit, or a list, for each tier. "
            f"A function computes the limit of each request: {FUNCTION_NAME}. A count of 0 admits nobody.",
            {**STRING, "callable": True},
            many(STRING, minItems=1),
            {"type": "object", "additionalProperties": LIMITS, "minProperties": 1},
        ),
        "algorithm": choice(
            tuple(ALGORITHMS), "The algorithm of each limit that does not name its own. Default: gcra."
        ),
        "window": choice(
            tuple(WINDOW_WORDS),
            "How windows of limits without an algorithm start: with the days, weeks, months or years of 'timezone', "
            "or with the first request.",
        ),
        "timezone": text(TIMEZONE, "The time zone of this rule's calendar limits. Default: that of the file."),
        "cost": either(
            "a whole number, 'body', 'header:NAME', 'function:NAME', or a table with 'from'",
            "The cost of one request. A cost of 0 only looks: it takes nothing and is not refused. Default: 1.",
            {"type": "integer", "minimum": 0, "maximum": 10**12},
            {"type": "string", "minLength": 1, "callable": True},
            table(
                "a table with 'from'",
                "A cost that depends on the request.",
                {
                    "from": text("'body', 'header:NAME' or 'function:NAME'", "Where the number comes from."),
                    "per": whole("a whole number of at least 1", "Divide the number by this, rounded up.", 1, 10**12),
                    "most": whole("a whole number of at least 1", "Upper bound for one request's cost.", 1, 10**12),
                    "missing": whole(
                        "a whole number of at least 1",
                        "The cost if the request states none. Default: most, else 1.",
                        1,
                        10**12,
                    ),
                },
                "from",
            ),
        ),
        "count_when": {
            **text(
                "a condition such as 'status >= 400', or 'function:NAME'",
                "Count only requests with such a response: 'status' compared by ==, !=, <, <=, > or >=, joined by "
                "'and' and 'or', or a function of the response. Until the response is known, the request counts.",
            ),
            "callable": True,
        },
        "counts": choice(("requests", "messages"), "Count requests and handshakes, or each message of a WebSocket."),
        "scope": choice(
            ("fleet", "instance"),
            "Count in the store, for all instances, or in each process by itself. Default: fleet.",
        ),
        "mode": choice(("enforce", "shadow", "off"), "shadow counts and reports, but never refuses."),
        "enforce_percent": {
            "type": "number",
            "minimum": 0,
            "maximum": 100,
            "title": "a number from 0 to 100",
            "description": "Enforce for this share of the keys, always the same ones; the others are in shadow.",
        },
        "warn_at": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "title": "a share from 0 to 1",
            "description": "Send a warning header once this share of the limit is used.",
        },
        "grace": whole(
            "a whole number from 0 to 1000", "Allow this many violations per period with a warning.", 0, 1000
        ),
        "penalty": table(
            "a table such as { after = 5, within = '10 minutes', block = '1 hour' }",
            "After N refusals within a period, block the client for a time.",
            {
                "after": whole("a whole number from 1 to 1000", "The number of refusals.", 1, 1000),
                "within": described(TIME, "The period in which they are counted."),
                "block": described(TIME, "How long the client is blocked."),
            },
            "after",
            "within",
            "block",
        ),
        "allow_from": described(many(STRING), "Only these addresses may call; others get 403.", NETWORKS),
        "exempt": described(
            many({**STRING, "callable": True}),
            "Clients and paths exempt from this rule; a function of the request says whether it is.",
            EXEMPT,
        ),
        "on_store_error": choice(
            STORE_ERRORS, "If the store does not answer: allow, deny with 503, or count in this process (local)."
        ),
        "max_delay": described(
            TIME, "The longest wait in a leaky bucket's queue; longer ones are refused. Default: 30 seconds."
        ),
        "message": text("text", "The message for a refused client; may contain {retry_after}, {limit} and {rule}."),
        "headers": {
            "type": "boolean",
            "title": "true or false",
            "description": "Whether responses carry headers for this rule. Default: true.",
        },
    },
    "name",
)

RULES: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    **table(
        "a table of settings and rules",
        "Rules of ratekeeper.",
        {
            "store": text(
                "a URL such as 'memory://' or 'redis://host:6379/0'", "Where counters live. Default: memory://."
            ),
            "timezone": text(TIMEZONE, "The time zone of calendar limits that do not name their own. Default: UTC."),
            "on_store_error": choice(STORE_ERRORS, "The default for rules without their own. Default: local."),
            "trusted_proxies": described(
                many(STRING), "Proxies whose client_header is trusted; 'unix' is a UNIX socket.", NETWORKS
            ),
            "client_header": text(
                "the name of a header, such as 'X-Forwarded-For' or 'Forwarded'",
                "The one header in which trusted proxies write the client's address. Default: X-Forwarded-For.",
                pattern=r"^[!#$%&'*+.^`|~0-9A-Za-z-]+$",
            ),
            "proxies_drop_underscores": {
                "type": "boolean",
                "title": "true or false",
                "description": "Whether the trusted proxies drop header names with underscores, as nginx does. Behind "
                "a WSGI server that does not, no header of a proxy is believed without it. Default: false.",
            },
            "secret": text("text", "Key for the client names in logs. Default: random in each process."),
            "exempt": described(
                many({**STRING, "callable": True}),
                "Clients and paths exempt from every rule; a function of the request says whether it is.",
                EXEMPT,
            ),
            "identity": table(
                "a table",
                "How clients are identified.",
                {
                    "user": described(
                        SOURCE_LIST, "Where the user comes from: the first source that is present and verified."
                    ),
                    "api_key": described(SOURCE_LIST, "Where an API key is sent. Default: header:X-Api-Key."),
                    "api_keys": {
                        "type": "object",
                        "title": "a table of SHA-256 digests in hex, each with { user, tier }",
                        "description": "The keys that are accepted; without this table, every key is.",
                        "additionalProperties": table(
                            "a table with user and tier",
                            "The owner of the key.",
                            {
                                "user": text("a name", "Counted under this name."),
                                "tier": text("a tier", "The tier of the owner."),
                            },
                        ),
                    },
                    "ipv4_prefix": whole(
                        "a whole number from 8 to 32", "Count IPv4 addresses by this prefix. Default: 32.", 8, 32
                    ),
                    "ipv6_prefix": whole(
                        "a whole number from 16 to 128", "Count IPv6 addresses by this prefix. Default: 64.", 16, 128
                    ),
                    "jwt": table(
                        "a table with one of secret_env, key, key_file, jwks_file and jwks_url",
                        "How tokens are verified.",
                        {
                            "secret_env": text(
                                "the name of an environment variable", "Holds the secret for HS256, HS384 or HS512."
                            ),
                            "secret": text("text", "The secret itself; it is safer in the environment."),
                            "key": text("a public key in PEM", "For RS, PS, ES and EdDSA."),
                            "key_file": text("a file", "The public key in PEM."),
                            "jwks_file": text("a file", "Public keys as a JSON Web Key Set."),
                            "jwks_url": text("a URL", "Public keys as a JSON Web Key Set, fetched in the background."),
                            "algorithms": described(
                                many(STRING, minItems=1),
                                "Accepted signature algorithms. Default: those that fit the key.",
                                "a list of algorithms",
                            ),
                            "issuer": text("text", "The iss a token must carry."),
                            "audience": described(
                                SOURCE_LIST, "The aud a token must carry.", "text or a list of texts"
                            ),
                            "leeway": described(TIME, "Tolerance for exp and nbf. Default: none."),
                            "header": text("the name of a header", "Where the token is. Default: Authorization."),
                        },
                    ),
                },
            ),
            "tiers": table(
                "a table with from and default",
                "Which limit of a table of limits a client gets.",
                {
                    "from": described(
                        SOURCE_LIST,
                        "jwt:CLAIM, api_key, app:FACT, function:NAME, or header:NAME if a trusted proxy sends it.",
                    ),
                    "default": text("the name of a tier", "The tier of all other clients, and of unknown tiers."),
                },
                "default",
            ),
            "response": table(
                "a table",
                "What responses tell clients.",
                {
                    "headers": either(
                        "a list of dialects, or a table of names such as { limit = 'X-Limit', remaining = 'X-Left' }",
                        "Header dialects, or names of your own; an empty list sends none but Retry-After. "
                        "Default: x-ratelimit and draft-11.",
                        described(many(choice(DIALECTS, "A dialect.")), "", "a list of dialects"),
                        table(
                            "a table of names",
                            "Header fields under names of your own.",
                            {
                                word: text("the name of a header", about, pattern=r"^[!#$%&'*+.^`|~0-9A-Za-z-]+$")
                                for word, about in HEADER_WORDS.items()
                            },
                        ),
                    ),
                    "body": either(
                        f"{', '.join(repr(word) for word in (*BODIES, *PRESETS))}, 'function:NAME' or a template",
                        "Body of a refusal: a preset, a table of texts with placeholders, or a function of the verdict "
                        "that returns a media type and bytes. Default: json.",
                        {**STRING, "callable": True},
                        {"type": "object", "minProperties": 1},
                    ),
                    "jitter": described(TIME, "Add a random time up to this to Retry-After. Default: none."),
                    "cors": described(
                        many(STRING), "Origins that may read refusals and headers; '*' is all.", "a list of origins"
                    ),
                    "count_preflights": {
                        "type": "boolean",
                        "title": "true or false",
                        "description": "Whether CORS preflights count. Default: false.",
                    },
                    "message": text("text", "For rules without a message of their own."),
                },
            ),
            "rules": described(
                many(RULE), "In the order in which explain and logs list them.", "a list of rules ([[rules]] in TOML)"
            ),
        },
        "rules",
    ),
}


def published(schema: Any = RULES) -> Any:
    """The schema for other tools: without the words that only Python callers can use."""
    if isinstance(schema, dict):
        return {name: published(value) for name, value in schema.items() if name != "callable"}
    return [published(item) for item in schema] if isinstance(schema, list) else schema


def main() -> None:
    import json
    from pathlib import Path

    target = Path(__file__).parents[1] / "rules.schema.json"
    target.write_text(json.dumps(published(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(target)


if __name__ == "__main__":
    main()

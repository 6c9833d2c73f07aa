"""The JSON bodies of the API: parsed and checked.  A misspelt field is an error, never a default."""

from __future__ import annotations

import re
from json import JSONDecoder, dumps, loads
from typing import TYPE_CHECKING, Any

from ratekeeper.check import to_cost
from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.identity.request import Request

if TYPE_CHECKING:
    from ratekeeper.service.http.server import Call

REQUEST_FIELDS = frozenset({"method", "path", "ip", "headers", "host", "route", "size", "user", "tier", "facts"})
DEEPEST_KEY = 8  # lists inside each other
LONGEST = {"method": 40, "path": 16_384, "ip": 100, "host": 300, "route": 300, "user": 1_000, "tier": 200}
MOST_FACTS = 100
ESCAPED_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

scan: Any = JSONDecoder().scan_once  # type: ignore[attr-defined]  # the core of loads(), for text that begins with its value


def body_of(call: Call) -> dict[str, Any]:
    """The JSON object in the body of a call."""
    try:
        text = call.body.decode()
        try:
            body, end = scan(text, 0)
        except StopIteration:  # white space first, or no JSON at all
            body, end = loads(text), len(text)
        if end != len(text) and text[end:].strip(" \t\r\n"):
            raise ValueError
        if ESCAPED_SURROGATE.search(text) is not None:
            expect_text(call.path, body)
    except InvalidInput:
        raise
    except (ValueError, RecursionError):
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got something else.") from None
    if body.__class__ is not dict:
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got {type(body).__name__}.")
    return body


def expect_text(path: str, value: Any) -> None:
    """Raise for half of a surrogate pair, which no encoding has a byte for: neither a page nor a log could show it."""
    try:
        dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{path}: expected text, got half of a surrogate pair (\\ud800 to \\udfff).") from None


def expect_fields(body: dict[str, Any], fields: frozenset[str]) -> None:
    """Reject an unknown field: a misspelt cost must not become 1."""
    for name in body:
        if name not in fields:
            names = ", ".join(sorted(fields))
            raise InvalidInput(f"{shown(name)}: expected one of {names}.{did_you_mean(name, fields)}")


def tuple_of(parts: list[Any], depth: int = 0) -> tuple[Any, ...]:
    """A key of several parts as a tuple."""
    if depth > DEEPEST_KEY:
        raise InvalidInput(f"key: expected at most {DEEPEST_KEY} lists inside each other.")
    return tuple([tuple_of(part, depth + 1) if part.__class__ is list else part for part in parts])


def request_of(fields: Any) -> Request:
    """The request that a body describes."""
    if not isinstance(fields, dict):
        raise InvalidInput(f"request: expected an object with method, path, ip, headers, got {shown(fields)}.")
    expect_fields(fields, REQUEST_FIELDS)
    for name, longest in LONGEST.items():
        text = fields.get(name, "")
        if not isinstance(text, str):
            raise InvalidInput(f"request.{name}: expected text, got {shown(text)}.")
        if len(text) > longest:
            raise InvalidInput(f"request.{name}: expected at most {longest} characters, got {len(text)}.")
    if not fields.get("route", "").isprintable():
        raise InvalidInput(f"request.route: expected printable text, got {shown(fields['route'])}.")
    headers = fields.get("headers", {})
    if not (isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values())):
        raise InvalidInput(f"request.headers: expected an object with texts, got {shown(headers)}.")
    facts = fields.get("facts", {})
    if not isinstance(facts, dict):
        raise InvalidInput(f"request.facts: expected an object, got {shown(facts)}.")
    if len(facts) > MOST_FACTS:
        raise InvalidInput(f"request.facts: expected at most {MOST_FACTS} of them, got {len(facts)}.")
    facts = {**facts, **{name: fields[name] for name in ("user", "tier") if name in fields}}
    size = fields.get("size")
    return Request(
        fields.get("method", "GET"),
        fields.get("path", "/"),
        fields.get("ip"),
        headers,
        host=fields.get("host"),
        route=fields.get("route"),
        size=None if size is None else to_cost(size, least=0),
        facts=facts or None,
    )

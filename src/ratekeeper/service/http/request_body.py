"""The JSON bodies of the API: parsed and checked.  A misspelt field is an error, never a default."""

from __future__ import annotations

from json import JSONDecoder, loads
from typing import TYPE_CHECKING, Any

from ratekeeper.check import to_cost
from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.identity.request import Request

if TYPE_CHECKING:
    from ratekeeper.service.http.server import Call

REQUEST_FIELDS = frozenset({"method", "path", "ip", "headers", "host", "route", "size", "user", "tier", "facts"})
DEEPEST_KEY = 8  # lists inside each other

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
    except (ValueError, RecursionError):
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got something else.") from None
    if body.__class__ is not dict:
        raise InvalidInput(f"{call.path}: expected a JSON object in the body, got {type(body).__name__}.")
    return body


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
    for name in ("method", "path", "ip", "host", "route", "user", "tier"):
        if not isinstance(fields.get(name, ""), str):
            raise InvalidInput(f"request.{name}: expected text, got {shown(fields[name])}.")
    headers = fields.get("headers", {})
    if not (isinstance(headers, dict) and all(isinstance(text, str) for text in headers.values())):
        raise InvalidInput(f"request.headers: expected an object with texts, got {shown(headers)}.")
    facts = fields.get("facts", {})
    if not isinstance(facts, dict):
        raise InvalidInput(f"request.facts: expected an object, got {shown(facts)}.")
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

"""The body of a refusal from a template: a table of texts with placeholders, as in a rules file, or one of the presets.

A text that is one placeholder alone becomes its value, so that numbers stay numbers; without a value, the entry is left
out.  Placeholders inside of longer texts are replaced.  No I/O but the clock.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import ceil
from string import Formatter
from time import time
from typing import TYPE_CHECKING, Any

from ratekeeper.http.verdict import TITLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.http.verdict import HttpVerdict

PLACEHOLDERS = {
    "status": "the HTTP status, a number",
    "error": "a word for programs: rate_limited, forbidden, unavailable or invalid_cost",
    "ERROR": "the same in capital letters",
    "title": "a short sentence that is the same for every refusal with this status",
    "message": "the text of the rule's message, or ours",
    "rule": "the name of the rule that refused, unless its headers are off",
    "limit": "the limit that refused, a number",
    "remaining": "what is left of it, a number",
    "retry_after": "whole seconds, as in Retry-After",
    "retry_at": "that instant in Unix seconds",
    "retry_at_iso": "that instant as 2026-11-18T02:10:30Z",
    "reset_at": "when the full limit is available again, in Unix seconds",
    "reset_at_iso": "that instant as 2026-11-18T02:10:30Z",
}
PRESETS: dict[str, Any] = {  # by name: the template; its media type where that is not application/json
    "json-camel": {
        "error": "{error}", "message": "{message}", "limit": "{limit}", "retryAfter": "{retry_after}",
        "resetAt": "{reset_at_iso}",
    },
    "error-object": {
        "error": {
            "code": "{ERROR}", "message": "{message}", "retryAfter": "{retry_after}", "resetAt": "{reset_at_iso}",
        },
    },
    "detail": {"detail": "{message}"},
    "jsonapi": {
        "errors": [{
            "code": "{error}", "title": "{title}", "detail": "{message}", "meta": {"retryAfter": "{retry_after}"},
        }],
    },
    "graphql": {"errors": [{"message": "{message}", "extensions": {"code": "{ERROR}", "retryAfter": "{retry_after}"}}]},
}  # fmt: skip
MEDIA = {"jsonapi": "application/vnd.api+json"}


def renderer(template: Any, media: str = "application/json") -> Callable[[HttpVerdict], tuple[str, bytes]]:
    """A function that makes the media type and the body of a refusal."""

    def render(verdict: HttpVerdict) -> tuple[str, bytes]:
        return media, json.dumps(filled(template, values_of(verdict))).encode()

    return render


def values_of(verdict: HttpVerdict) -> dict[str, Any]:
    """What a refused client may know, by placeholder; None for what does not apply."""
    refusing, status, wait, now = verdict.refusing_limit, verdict.status, verdict.wait, time()
    error, title = TITLES[status]
    values: dict[str, Any] = dict.fromkeys(PLACEHOLDERS)
    values |= {"status": status, "error": error, "ERROR": error.upper(), "title": title, "message": verdict.message}
    if wait:
        values |= {"retry_after": wait, "retry_at": ceil(now + wait)}
    if refusing is not None:
        label, decision = refusing
        resets = [each.reset_after for _, each in verdict.limits if not each.allowed]
        reset_at = ceil(now + max(wait, *resets))
        values |= {"rule": label.rule.name, "limit": label.capacity, "remaining": decision.remaining}
        values["reset_at"] = reset_at
    for name in ("retry_at", "reset_at"):
        if values[name] is not None:
            values[name + "_iso"] = instant(values[name])
    return values


def instant(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def filled(template: Any, values: dict[str, Any]) -> Any:
    """The template with its placeholders replaced."""
    if isinstance(template, dict):
        items = [(name, filled(value, values)) for name, value in template.items()]
        return {name: value for name, value in items if value is not None}
    if isinstance(template, (list, tuple)):
        return [filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if (name := lone_placeholder(template)) is not None:
        return values[name]
    shown = {name: "" if value is None else value for name, value in values.items()}
    return template.format(**shown)


def lone_placeholder(text: str) -> str | None:
    name = text[1:-1]
    return name if text == f"{{{name}}}" and name in PLACEHOLDERS else None


def wrong_placeholder(text: str) -> bool:
    """Whether the text has a placeholder that there is not, or a brace that is not closed."""
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return True
    return any(name is not None and (name not in PLACEHOLDERS or form or change) for _, name, form, change in parts)

"""``[response]`` of a rules file -> Response."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.http.body import MEDIA, PRESETS, renderer, wrong_placeholder
from ratekeeper.http.body import PLACEHOLDERS as BODY_PLACEHOLDERS
from ratekeeper.rules.schema import BODIES
from ratekeeper.rules.settings import Response
from ratekeeper.rules.validate import Attempts

if TYPE_CHECKING:
    from ratekeeper.rules.parse_values import ValueParser
    from ratekeeper.rules.validate import Place


def parse_response(place: Place, table: dict[str, Any], values: ValueParser) -> Response:
    if "message" in table:
        values.message(place.key("message"), table["message"])
    body: Any = table.get("body", "json")
    render: Any = None
    if isinstance(body, dict):
        expect_placeholders(place.key("body"), body)
        body, render = "json", renderer(body)
    elif body in PRESETS:
        body, render = "json", renderer(PRESETS[body], MEDIA.get(body, "application/json"))
    elif body not in BODIES:
        if not callable(body):
            values.sources(place.key("body"), body, ("function",), (*BODIES, *PRESETS))
        body, render = "json", body if callable(body) else values.functions[body.partition(":")[2]]
    headers = table.get("headers", Response.headers)
    return Response(
        headers=() if isinstance(headers, dict) else tuple(headers),
        header_names=headers if isinstance(headers, dict) else {},
        body=body,
        render=render,
        jitter=values.micros(place.key("jitter"), table.get("jitter", 0)),
        cors=tuple(table.get("cors", ())),
        count_preflights=table.get("count_preflights", False),
        message=table.get("message"),
    )


def expect_placeholders(place: Place, value: Any) -> None:
    """Refuse a template of the body with a placeholder that there is not."""
    attempt = Attempts()
    for name, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, (dict, list, tuple)):
            attempt(expect_placeholders, place.key(name), item)
        elif isinstance(item, str) and wrong_placeholder(item):
            names = ", ".join(f"{{{name}}}" for name in BODY_PLACEHOLDERS)
            attempt(place.key(name).refuse, f"text with no placeholders but {names}", item,
                    "Double a brace that is not a placeholder.")  # fmt: skip
        elif not isinstance(item, (str, int, float)):
            attempt(place.key(name).refuse, "text, a number, true, false, a list or a table", item)
    attempt.finish()

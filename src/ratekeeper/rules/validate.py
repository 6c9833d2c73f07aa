"""Checks what was read against the schema, and names the place of each mistake."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from ratekeeper.errors import InvalidRules, did_you_mean, shown

if TYPE_CHECKING:
    from ratekeeper.rules.schema import Schema

KINDS: dict[str, tuple[Any, str]] = {
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
    "array": ((list, tuple), "a list"),
    "object": (dict, "a table"),
}


class Place:
    """A place in a rules file, for errors.  ``rule`` is the name of the rule there, if any."""

    __slots__ = ("rule", "text")

    def __init__(self, text: str, rule: str = "") -> None:
        self.text = text
        self.rule = rule

    def key(self, name: object) -> Place:
        joined = f"[{name}]" if isinstance(name, int) else f".{name}"
        return Place(
            f"{self.text}{joined}" if not self.text.endswith(": ") else f"{self.text}{joined.lstrip('.')}", self.rule
        )

    def refuse(self, expected: str, value: object = None, advice: str = "") -> NoReturn:
        got = f", got {shown(value)}" if value is not None else ""
        of = f" (rule {self.rule!r})" if self.rule else ""
        place = self.text.removesuffix(": ") + of
        raise InvalidRules(f"{place}: expected {expected}{got}.{' ' + advice if advice else ''}", place=place)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def fits(place: Place, value: Any, schema: Schema) -> None:
    """Raise InvalidRules if the schema does not allow ``value`` at this place."""
    title = schema.get("title")
    if callable(value) and schema.get("callable"):
        return
    if "anyOf" in schema:
        forms = schema["anyOf"]
        fitting = [form for form in forms if is_kind(value, form)]
        if not fitting and not (callable(value) and any(form.get("callable") for form in forms)):
            place.refuse(title or "another form", value)
        if fitting:
            fits(place, value, fitting[0] if fitting[0].get("title") else {**fitting[0], "title": title})
        return
    if "enum" in schema:
        if value not in schema["enum"]:
            place.refuse(title or "", value, did_you_mean(str(value), schema["enum"]).strip())
        return
    if not is_kind(value, schema):
        place.refuse(title or KINDS[schema["type"]][1], value)
    if isinstance(value, str):
        pattern = schema.get("pattern", "^.*$").removeprefix("^").removesuffix("$")  # in Python $ lets a newline pass
        if len(value) < schema.get("minLength", 0) or not re.fullmatch(pattern, value, re.DOTALL):
            place.refuse(title or "text", value)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get("minimum", value) <= value <= schema.get("maximum", value):
            place.refuse(title or "a number", value)
    elif isinstance(value, dict):
        fits_table(place, value, schema)
    elif isinstance(value, (list, tuple)):
        if len(value) < schema.get("minItems", 0):
            place.refuse(title or "at least one", list(value))
        for number, item in enumerate(value):
            rule = item.get("name", "") if isinstance(item, dict) else place.rule
            inner = place.key(number)
            fits(Place(inner.text, rule if isinstance(rule, str) else ""), item, schema["items"])


def fits_table(place: Place, value: dict[str, Any], schema: Schema) -> None:
    properties: dict[str, Schema] = schema.get("properties", {})
    for name, item in value.items():
        if name in properties:
            fits(place.key(name), item, properties[name])
        elif schema.get("additionalProperties") is False:
            suggestion = did_you_mean(str(name), properties).strip()
            place.refuse(f"one of {', '.join(properties)}", name, suggestion or "Take it out.")
        elif isinstance(schema.get("additionalProperties"), dict):
            fits(place.key(name), item, schema["additionalProperties"])
    for name in schema.get("required", ()):
        if name not in value:
            place.refuse(f"{name!r}: {properties[name].get('title', 'a value')}", None, "It is missing.")
    if len(value) < schema.get("minProperties", 0):
        place.refuse(schema.get("title") or "at least one entry", value)


def is_kind(value: Any, schema: Schema) -> bool:
    if callable(value):
        return bool(schema.get("callable"))
    if "enum" in schema and "type" not in schema:
        return True
    kind = schema.get("type")
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    return kind is None or isinstance(value, KINDS[kind][0])

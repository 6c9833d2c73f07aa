"""Checks what was read against the schema, and names the place of each mistake."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NoReturn

from ratekeeper.errors import InvalidRules, did_you_mean, shown
from ratekeeper.rules.short_turns import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ratekeeper.rules.lines import Keys, Locate
    from ratekeeper.rules.schema import Schema

KINDS: dict[str, tuple[Any, str]] = {
    "string": (str, "text"),
    "integer": (int, "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": (bool, "true or false"),
    "array": ((list, tuple), "a list"),
    "object": (dict, "a table"),
}


# Their values may be secrets or hold a password: errors name only the type.
YAML = re.compile(r"[^:]*\.ya?ml: ")
SECRET_KEYS = re.compile(r"\b(store|secret|key|jwks_url)(\[\d+\]|\.\w+)*$")


class Place:
    """A place in a rules file, for errors.  ``rule`` is the name of the rule there, if any."""

    __slots__ = ("keys", "locate", "rule", "text")

    def __init__(self, text: str, rule: str = "", keys: Keys = (), locate: Locate | None = None) -> None:
        self.text = text
        self.rule = rule
        self.keys = keys
        self.locate = locate

    def key(self, name: str | int) -> Place:
        joined = f"[{name}]" if isinstance(name, int) else f".{name}"
        text = f"{self.text}{joined}" if not self.text.endswith(": ") else f"{self.text}{joined.lstrip('.')}"
        return Place(text, self.rule, (*self.keys, name), self.locate)

    def of_rule(self, rule: object) -> Place:
        """The same place, where errors name the rule."""
        return Place(self.text, rule if isinstance(rule, str) else "", self.keys, self.locate)

    def refuse(
        self, expected: str, value: object = None, advice: str = "", error: type[InvalidRules] = InvalidRules
    ) -> NoReturn:
        got = f", got {shown(value)}" if value is not None else ""
        if value is not None and SECRET_KEYS.search(self.text):
            got = f", got {type(value).__name__}"
        if isinstance(value, bool) and YAML.match(self.text):
            advice = f"{advice} YAML reads on, off, yes and no as true and false: put quotes around the word.".lstrip()
        line = self.locate(self.keys) if self.locate is not None else None
        place = self.text.removesuffix(": ")
        if self.rule:
            place += f" (rule {self.rule!r})"
        if line is not None:
            place += f", line {line}"
        message = f"{place}: expected {expected}{got}.{' ' + advice if advice else ''}"
        raise error(message, place=place, keys=self.keys, line=line)


class NeedlessKey(InvalidRules):
    """A key that means nothing and resembles nothing: the rest of the file is read as if it were not there."""


class Attempts:
    """Calls that go on after a mistake, so that a file's mistakes are told all at once."""

    def __init__(self, *mistakes: InvalidRules) -> None:
        self.mistakes = list(mistakes)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns; None after a mistake, which ``finish`` raises."""
        try:
            return function(*arguments)
        except InvalidRules as error:
            self.mistakes += error.mistakes
            return None

    def finish(self) -> None:
        """Raise the mistakes so far, as one error."""
        if self.mistakes:
            raise together(self.mistakes)


def together(mistakes: Sequence[InvalidRules]) -> InvalidRules:
    """One error for all mistakes; a mistake that is alone stays as it is."""
    if len(mistakes) == 1:
        return mistakes[0]
    lines = "".join(f"\n  {mistake}" for mistake in mistakes)
    return InvalidRules(f"{len(mistakes)} mistakes:{lines}", mistakes=tuple(mistakes))


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
        attempt = Attempts()
        for number, item in enumerate(value):
            pause()
            rule = item.get("name", "") if isinstance(item, dict) else place.rule
            attempt(fits, place.key(number).of_rule(rule), item, schema["items"])
        attempt.finish()


def fits_table(place: Place, value: dict[str, Any], schema: Schema) -> None:
    properties: dict[str, Schema] = schema.get("properties", {})
    attempt = Attempts()
    for name, item in value.items():
        if name in properties:
            attempt(fits, place.key(name), item, properties[name])
        elif schema.get("additionalProperties") is False:
            suggestion = did_you_mean(str(name), properties).strip()
            kind = InvalidRules if suggestion else NeedlessKey
            expected = f"one of {', '.join(properties)}"
            attempt(unknown(place, name).refuse, expected, name, suggestion or "Take it out.", kind)
        elif isinstance(schema.get("additionalProperties"), dict):
            attempt(fits, place.key(name), item, schema["additionalProperties"])
    for name in schema.get("required", ()):
        if name not in value:
            title = properties[name].get("title", "a value")
            attempt(place.refuse, f"{name!r}: {title}", None, "It is missing.")
    attempt.finish()
    if len(value) < schema.get("minProperties", 0):
        place.refuse(schema.get("title") or "at least one entry", value)


def unknown(place: Place, name: str) -> Place:
    """The table around an unknown key, at the line of the key."""
    return Place(place.text, place.rule, (*place.keys, name), place.locate)


def without(value: Any, keys: Keys) -> Any:
    """A copy of ``value`` in which the key at this place is missing."""
    first, *rest = keys
    if isinstance(value, dict):
        return {
            name: without(item, tuple(rest)) if rest and name == first else item
            for name, item in value.items()
            if rest or name != first
        }
    return [without(item, tuple(rest)) if number == first else item for number, item in enumerate(value)]


def is_kind(value: Any, schema: Schema) -> bool:
    if callable(value):
        return bool(schema.get("callable"))
    if "enum" in schema and "type" not in schema:
        return True
    kind = schema.get("type")
    if kind in ("integer", "number") and isinstance(value, bool):
        return False
    return kind is None or isinstance(value, KINDS[kind][0])

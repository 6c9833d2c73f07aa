"""A parser of structured fields (RFC 9651) for the types that rate-limit fields use: items with parameters.

Law: any text gives a result or None, never an exception; one mistake makes the whole field invalid, as the RFC says.
No clock, no I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_CHARACTERS = 8_192
NUMBER = re.compile(r"-?\d{1,15}(?![\d.])|-?\d{1,12}\.\d{1,3}(?!\d)", re.A)
STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")
BYTES = re.compile(r":[A-Za-z0-9+/]*={0,2}:")
KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
COMMA = re.compile(r"[ \t]*,[ \t]*")


class Token(str):
    """An unquoted word."""

    __slots__ = ()


class Item(NamedTuple):
    """A value and its parameters; of two parameters with one name, the last counts."""

    value: object
    parameters: dict[str, object]


class Malformed(ValueError):
    """The field is invalid."""


def parse_list(text: str) -> list[Item] | None:
    """The items of ``"a";r=1, "b";r=2``; None if the text is not a list, or has inner lists."""
    return parse_field(text, list_items)


def parse_dictionary(text: str) -> dict[str, Item] | None:
    """The items of ``limit=10, reset=7`` by name; None if the text is not a dictionary, or has inner lists."""
    return parse_field(text, dictionary_items)


def parse_field(text: str, parse):  # type: ignore[no-untyped-def]
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        return parse(text.strip(" "))
    except Malformed:
        return None


def list_items(text: str) -> list[Item]:
    items: list[Item] = []
    at = 0
    while text:
        item, at = take_item(text, at)
        items.append(item)
        if at == len(text):
            break
        at = expect(COMMA, text, at).end()
    return items


def dictionary_items(text: str) -> dict[str, Item]:
    items: dict[str, Item] = {}
    at = 0
    while text:
        name = expect(KEY, text, at)
        at = name.end()
        if text.startswith("=", at):
            items[name[0]], at = take_item(text, at + 1)
        else:
            parameters, at = take_parameters(text, at)
            items[name[0]] = Item(True, parameters)
        if at == len(text):
            break
        at = expect(COMMA, text, at).end()
    return items


def expect(pattern: re.Pattern[str], text: str, at: int) -> re.Match[str]:
    match = pattern.match(text, at)
    if match is None:
        raise Malformed
    return match


def take_item(text: str, at: int) -> tuple[Item, int]:
    value, at = take_value(text, at)
    parameters, at = take_parameters(text, at)
    return Item(value, parameters), at


def take_parameters(text: str, at: int) -> tuple[dict[str, object], int]:
    parameters: dict[str, object] = {}
    while text.startswith(";", at):
        at += 1
        while text.startswith(" ", at):
            at += 1
        name = expect(KEY, text, at)
        at = name.end()
        value: object = True
        if text.startswith("=", at):
            value, at = take_value(text, at + 1)
        parameters[name[0]] = value
    return parameters, at


def take_value(text: str, at: int) -> tuple[object, int]:
    letter = text[at : at + 1]
    if letter == '"':
        match = expect(STRING, text, at)
        return re.sub(r"\\(.)", r"\1", match[1]), match.end()
    if letter == "?":
        match = expect(re.compile(r"\?[01]"), text, at)
        return match[0] == "?1", match.end()
    if letter == ":":
        match = expect(BYTES, text, at)
        return match[0][1:-1].encode(), match.end()
    if letter == "@":
        match = expect(NUMBER, text, at + 1)
        return int(match[0].partition(".")[0]), match.end()
    if letter == "-" or letter.isdecimal():
        match = expect(NUMBER, text, at)
        return (float(match[0]) if "." in match[0] else int(match[0])), match.end()
    match = expect(TOKEN, text, at)
    return Token(match[0]), match.end()

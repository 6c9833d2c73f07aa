"""Structured fields (RFC 9651), as far as rate-limit fields need them: text -> items with parameters.

Law: whatever the text, an answer or None, never an exception; one mistake voids the whole field, as the RFC wants.
No clock, no I/O.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MOST_LETTERS = 8_192
NUMBER = re.compile(r"-?\d{1,15}(?![\d.])|-?\d{1,12}\.\d{1,3}(?!\d)", re.A)
STRING = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
TOKEN = re.compile(r"[A-Za-z*][A-Za-z0-9!#$%&'*+.^_`|~:/-]*")
BYTES = re.compile(r":[A-Za-z0-9+/]*={0,2}:")
KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
COMMA = re.compile(r"[ \t]*,[ \t]*")


class Token(str):
    """A bare word, as opposed to a quoted string."""

    __slots__ = ()


class Item(NamedTuple):
    """A bare value and its parameters; of doubled parameters the last counts."""

    value: object
    parameters: dict[str, object]


class Malformed(ValueError):
    """The field is void."""


def parse_list(text: str) -> list[Item] | None:
    """``"a";r=1, "b";r=2`` -> its items; None if it is no list of plain items."""
    return read(text, members)


def parse_dictionary(text: str) -> dict[str, Item] | None:
    """``limit=10, reset=7`` -> its items by name; None if it is no dictionary of plain items."""
    return read(text, entries)


def read(text: str, parse):  # type: ignore[no-untyped-def]
    if len(text) > MOST_LETTERS:
        return None
    try:
        return parse(text.strip(" "))
    except Malformed:
        return None


def members(text: str) -> list[Item]:
    found: list[Item] = []
    at = 0
    while text:
        item, at = take_item(text, at)
        found.append(item)
        if at == len(text):
            break
        at = expect(COMMA, text, at).end()
    return found


def entries(text: str) -> dict[str, Item]:
    found: dict[str, Item] = {}
    at = 0
    while text:
        name = expect(KEY, text, at)
        at = name.end()
        if text.startswith("=", at):
            found[name[0]], at = take_item(text, at + 1)
        else:
            parameters, at = take_parameters(text, at)
            found[name[0]] = Item(True, parameters)
        if at == len(text):
            break
        at = expect(COMMA, text, at).end()
    return found


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
    found: dict[str, object] = {}
    while text.startswith(";", at):
        at += 1
        while text.startswith(" ", at):
            at += 1
        name = expect(KEY, text, at)
        at = name.end()
        value: object = True
        if text.startswith("=", at):
            value, at = take_value(text, at + 1)
        found[name[0]] = value
    return found, at


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

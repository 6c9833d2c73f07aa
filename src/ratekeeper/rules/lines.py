"""Where each setting of a rules file is written: its keys -> the number of its line.  Only mistakes need this."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

Keys = tuple[str | int, ...]
Locate = Callable[[Keys], int | None]
TOML_PART = re.compile(r"\"((?:\\.|[^\"\\])*)\"|'([^']*)'|([\w-]+)")
TOML_TABLE = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
TOML_KEY = re.compile(r"\s*((?:\"[^\"]*\"|'[^']*'|[\w-]+)(?:\s*\.\s*(?:\"[^\"]*\"|'[^']*'|[\w-]+))*)\s*=")
JSON_TOKEN = re.compile(r"\"(?:\\.|[^\"\\])*\"|[{}\[\],:]|[^\s{}\[\],:\"]+")


def locator(text: str, suffix: str) -> Locate:
    """A function that finds the line of a setting, or of the nearest table around it; None if there is none."""
    lines: dict[Keys, int] = {}

    def locate(keys: Keys) -> int | None:
        if not lines:
            lines.update(READERS[suffix](text))
        for end in range(len(keys), 0, -1):
            if keys[:end] in lines:
                return lines[keys[:end]]
        return None

    return locate


def toml_lines(text: str) -> dict[Keys, int]:
    """The lines of tables and keys; what is inside of an inline table or a text counts as its key."""
    lines: dict[Keys, int] = {}
    tables: dict[Keys, int] = {}  # how many entries a list of tables has so far
    prefix: Keys = ()
    quotes = ""  # of a text over several lines
    for number, line in enumerate(text.splitlines(), 1):
        if not quotes and (header := TOML_TABLE.match(line)):
            prefix = ()
            parts = toml_parts(header[2])
            for depth, part in enumerate(parts):
                prefix = (*prefix, part)
                if header[1] == "[[" and depth == len(parts) - 1:
                    tables[prefix] = tables.get(prefix, 0) + 1
                if prefix in tables:
                    prefix = (*prefix, tables[prefix] - 1)
            lines[prefix] = number
        elif not quotes and (key := TOML_KEY.match(line)):
            lines[(*prefix, *toml_parts(key[1]))] = number
        for mark in ('"""', "'''"):
            if line.count(mark) % 2 and quotes in ("", mark):
                quotes = "" if quotes else mark
    return lines


def toml_parts(dotted: str) -> list[str]:
    return [match[1] or match[2] or match[3] or "" for match in TOML_PART.finditer(dotted)]


def yaml_lines(text: str) -> dict[Keys, int]:
    import yaml

    lines: dict[Keys, int] = {}

    def visit(node: Any, keys: Keys, number: int) -> None:
        lines.setdefault(keys, number)
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                if isinstance(name, yaml.ScalarNode):
                    visit(value, (*keys, name.value), name.start_mark.line + 1)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                visit(value, (*keys, index), value.start_mark.line + 1)

    visit(yaml.compose(text, Loader=yaml.SafeLoader), (), 1)
    return lines


def json_lines(text: str) -> dict[Keys, int]:
    from json import loads

    lines: dict[Keys, int] = {}
    ends = [match.end() for match in re.finditer("\n", text)]
    keys: list[str | int | None] = []  # the place in each object and list that is open; None: a name follows
    for token in JSON_TOKEN.finditer(text):
        word = token[0]
        if word in "}]":
            keys.pop()
        elif word == ",":
            keys[-1] = keys[-1] + 1 if isinstance(keys[-1], int) else None
        elif word == ":":
            continue
        else:
            if keys and keys[-1] is None:
                keys[-1] = loads(word)
                lines[tuple(keys)] = bisect_right(ends, token.start()) + 1  # type: ignore[arg-type]
                continue
            lines.setdefault(tuple(keys), bisect_right(ends, token.start()) + 1)  # type: ignore[arg-type]
            if word in "{[":
                keys.append(None if word == "{" else 0)
    return lines


READERS: dict[str, Callable[[str], dict[Keys, int]]] = {
    ".toml": toml_lines,
    ".yaml": yaml_lines,
    ".yml": yaml_lines,
    ".json": json_lines,
}

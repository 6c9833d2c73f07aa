"""Reads a rules file: TOML, YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidRules, shown
from ratekeeper.rules.lines import locator

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.rules.lines import Locate


class RulesContent(dict[str, Any]):
    """The content of a rules file, where each setting is written in it, and its text."""

    locate: Locate
    text: str


def read(path: str | Path) -> RulesContent:
    """The contents of a .toml, .yaml, .yml or .json file."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is not UTF-8").lower()
        raise InvalidRules(f"cannot read {path.name}: {reason}.", place=str(path)) from error
    suffix = path.suffix.lower()
    content = RulesContent(read_text(text, suffix, path.name))
    content.locate, content.text = locator(text, suffix), text
    return content


class DuplicateKey(ValueError):
    """A key that is given twice in one table.  Taking either would silently ignore the other."""


def without_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    table: dict[Any, Any] = {}
    for name, value in pairs:
        if name in table:
            raise DuplicateKey(f"{shown(name)} is given twice in one table. Keep one of them")
        table[name] = value
    return table


def reason_of(error: Exception) -> str:
    """What a parser says, on one line, without the lines of the file that YAML shows."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is not None and problem:
        context = getattr(error, "context", None)
        return f"{f'{context}, ' if context else ''}{problem} at line {mark.line + 1}, column {mark.column + 1}"
    return " ".join(str(error).split()) or type(error).__name__


def read_text(text: str, suffix: str, name: str) -> dict[str, Any]:
    if suffix == ".toml":
        import tomllib

        load: Callable[[str], Any] = tomllib.loads
        wrong: type[Exception] = tomllib.TOMLDecodeError
    elif suffix == ".json":
        import json

        load, wrong = (lambda text: json.loads(text, object_pairs_hook=without_duplicates)), ValueError
    elif suffix in (".yaml", ".yml"):
        try:
            import yaml
        except ImportError as error:  # pragma: no cover - the suite has every extra
            raise InvalidRules(
                f"{name}: expected PyYAML to be installed. pip install 'ratekeeper[yaml]'.", place=name
            ) from error

        class Loader(yaml.SafeLoader):
            def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
                names = [name for name, _ in node.value if name.tag != "tag:yaml.org,2002:merge"]
                without_duplicates([(name.value, None) for name in names if isinstance(name, yaml.ScalarNode)])
                return super().construct_mapping(node, deep)

        load, wrong = (lambda text: yaml.load(text, Loader)), yaml.YAMLError
    else:
        raise InvalidRules(f"{name}: expected a name that ends in .toml, .yaml, .yml or .json.", place=name)
    cause = ""
    try:
        content = load(text)
    except (wrong, DuplicateKey, RecursionError) as error:
        cause = reason_of(error)
    if cause:  # raised here, because the first error holds the text of the file, with its secrets
        raise InvalidRules(f"{name}: expected {suffix[1:].upper()}, but {cause[:200]}.", place=name)
    if not isinstance(content, dict):
        raise InvalidRules(f"{name}: expected a table of settings and rules, got {type(content).__name__}.", place=name)
    return content

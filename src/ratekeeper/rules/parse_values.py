"""The values that several parts of a rules file share: sources of identity, functions, networks, times and patterns.

Each method refuses what it cannot read, at its place in the file.
"""

from __future__ import annotations

import re
from ipaddress import ip_network
from string import Formatter
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidLimit
from ratekeeper.identity.address import UNIX, Networks
from ratekeeper.identity.identity import source_advice
from ratekeeper.rules.computed import NotLoadable, load_function
from ratekeeper.rules.match import Pattern
from ratekeeper.rules.rule import Exempt
from ratekeeper.rules.validate import Place, sentence
from ratekeeper.units import parse_period, to_micros

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.identity.request import Request

    Functions = Mapping[str, Callable[[Request], Any]]

HEADER = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")
METHODS = re.compile(r"\*|[A-Z]+(,[A-Z]+)*")
PLACEHOLDERS = ("retry_after", "limit", "rule")


class ValueParser:
    """Reads values; ``functions`` are those that were given, and those that the file names and that were imported."""

    def __init__(self, functions: Functions) -> None:
        self.functions = dict(functions)

    def sources(
        self, place: Place, given: str | Sequence[str], named: Sequence[str], unnamed: Sequence[str]
    ) -> list[str]:
        sources = [given] if isinstance(given, str) else list(given)
        for number, source in enumerate(sources):
            kind, colon, name = source.partition(":")
            here = place if isinstance(given, str) else place.key(number)
            if not (source in unnamed or (kind in named and colon and name)):
                words = [*unnamed, *[f"{kind}:NAME" for kind in named]]
                here.refuse(f"one of {', '.join(words)}", source, source_advice(source, unnamed, named))
            if kind == "header" and not HEADER.fullmatch(name):
                here.refuse("the name of a header behind 'header:'", source)
            if kind == "function":
                self.expect_function(here, source)
        return sources

    def expect_function(self, place: Place, source: str) -> Callable[..., Any]:
        """The function ``function:NAME``, which was given, or ``function:MODULE:NAME``, which is imported once."""
        name = source.removeprefix("function:")
        if name in self.functions:
            return self.functions[name]
        if ":" not in name:
            place.refuse(f"a function that was given ({', '.join(self.functions) or 'none was'})", source,
                         "Pass it: Policy.load(path, functions={...}); or name its module: "
                         "'function:MODULE:NAME'.")  # fmt: skip
        try:
            function = self.functions[name] = load_function(name)
        except NotLoadable as error:
            place.refuse("a function that can be imported", source, str(error))
        return function

    def networks(self, place: Place, texts: Sequence[str], *, trust: bool = False) -> Networks:
        for number, text in enumerate(texts):
            item = place.key(number)
            if text == UNIX:
                continue
            try:
                network = ip_network(text, strict=False)
            except ValueError:
                advice = "Name your proxies: a trusted proxy can choose any client address." if trust else ""
                item.refuse("an address or a network such as '10.0.0.0/8'", text, advice)
            if trust and network.prefixlen == 0:
                item.refuse(
                    "the networks of your proxies",
                    text,
                    "If every address is trusted, any client can choose its address.",
                )
        return Networks(texts)

    def exempt(self, place: Place, texts: Sequence[str]) -> Exempt:
        paths = []
        functions: list[Any] = [text for text in texts if callable(text)]
        for number, text in enumerate(texts):
            if callable(text):
                continue
            if text.startswith("function:"):
                functions.append(self.expect_function(place.key(number), text))
            if text in ("user:", "tier:"):
                place.key(number).refuse(f"a name behind {text!r}", text)
            if text.startswith("/") or " /" in text:
                self.pattern(place.key(number), text)
                paths.append(Pattern(text, exact=True))
        texts = [text for text in texts if not (callable(text) or text.startswith("function:"))]
        users = frozenset(text[5:] for text in texts if text.startswith("user:"))
        tiers = frozenset(text[5:] for text in texts if text.startswith("tier:"))
        others = [text for text in texts if not text.startswith(("user:", "tier:", "/")) and " /" not in text]
        users = frozenset("user:" + user for user in users)
        return Exempt(self.networks(place, others), users, tiers, tuple(paths), tuple(functions))

    def pattern(self, item: Place, text: str) -> None:
        """Refuse a text that is no pattern."""
        words = text.split()
        paths = [word for word in words if word.startswith("/")]
        methods = [word for word in words if not word.startswith("/")]
        if not words or len(paths) > 1 or len(methods) > 1 or (paths and words[-1] is not paths[0]):
            item.refuse("methods and a path such as 'GET,POST /api/**'", text)
        if methods and not METHODS.fullmatch(methods[0]):
            item.refuse("methods and a path such as 'GET,POST /api/**'", text, "A path begins with '/'.")
        if paths and ("?" in paths[0] or "#" in paths[0]):
            item.refuse("a path without a query", text, "The query is not part of a route.")
        parts = Pattern(text).segments
        if parts.count("**") > 1 or (paths and paths[0].count("**") > 1):
            item.refuse("'**' once in a path", text)
        if set("".join(parts)) & set("{}<>"):
            item.refuse("each '{' closed by a '}', as in '/users/{id}'", text)

    def micros(self, place: Place, value: str | float) -> int:
        try:
            return parse_period(value, "time") if isinstance(value, str) else to_micros(value, "time")
        except InvalidLimit as error:
            place.refuse("a length of time such as '10 minutes'", value, sentence(str(error).partition(": ")[2]))

    def message(self, place: Place, text: str) -> str:
        try:
            is_valid = all(
                name is None or (name in PLACEHOLDERS and not form and not conversion)
                for _, name, form, conversion in Formatter().parse(text)
            )
        except ValueError:
            is_valid = False
        if not is_valid:
            place.refuse(f"text with no placeholders but {', '.join('{' + name + '}' for name in PLACEHOLDERS)}", text,
                         "Double a brace that is not a placeholder.")  # fmt: skip
        return text

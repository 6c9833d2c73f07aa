"""The public API, as the site documents it: the modules, the names that they offer, and the members of each class.

`faults` says what is not explained.  The site is not built while there are any, and a test reads the same list.
Griffe reads the source, so nothing is imported: some modules cannot be without their framework.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from api_words import WORDS

ROOT = Path(__file__).parents[1]
# The public modules besides `ratekeeper` itself, and the page that shows how to use each.
MODULES = {
    "adapters.aiohttp": "howto/aiohttp.md",
    "adapters.asgi": "howto/starlette.md",
    "adapters.django": "howto/django.md",
    "adapters.drf": "howto/drf.md",
    "adapters.fastapi": "howto/fastapi.md",
    "adapters.flask": "howto/flask.md",
    "adapters.grpc": "howto/grpc.md",
    "adapters.wsgi": "howto/wsgi.md",
    "compat.limits": "howto/limits-interface.md",
    "lab": "howto/simulate.md",
    "lab.plots": "howto/simulate.md",
    "outbound": "howto/outbound.md",
    "outbound.aiohttp": "howto/outbound.md",
    "outbound.boto3": "howto/llm-sdks.md",
    "outbound.grpc": "howto/outbound.md",
    "outbound.httpx": "howto/outbound.md",
    "outbound.httpx2": "howto/llm-sdks.md",
    "outbound.requests": "howto/outbound.md",
    "sinks.event": "reference/events.md",
    "sinks.log": "reference/events.md",
    "sinks.opentelemetry": "reference/events.md",
    "sinks.prometheus": "reference/events.md",
    "stores": "howto/redis.md",
    "stores.shared": "howto/shared-memory.md",
    "testing": "howto/testing.md",
}
# Classes of which only these members are promised.  The others are for our own modules, or those of a framework.
PROMISED = {
    "Limit": ["parse", "period", "debt", "is_unlimited", "is_leased", "timezone"],
    "Policy": [
        *("load", "parse", "rules", "warnings", "check", "acheck", "check_message", "acheck_message", "settle"),
        *("asettle", "give_back", "agive_back", "release", "arelease", "explain", "listen", "replace", "reload"),
        *("watch", "warm_up", "close", "aclose"),
    ],
    "MemoryStore": ["size", "clear", "close"],
    "SharedStore": ["size", "clear", "close"],
    "PostgresStore": ["close"],
    "AsyncPostgresStore": ["close"],
    "RedisStore": ["close"],
    "CompareAndSetStore": [
        "get",
        "compare_and_set",
        "get_all",
        "compare_and_set_all",
        "exclusive",
        "disconnect",
        "after_fork",
        "now",
        "close",
    ],
    "AsyncCompareAndSetStore": [
        "get",
        "compare_and_set",
        "get_all",
        "compare_and_set_all",
        "disconnect",
        "now",
        "close",
    ],
    "ThreadedStore": ["close"],
    "SQLiteStore": ["close"],
    "MemcachedStore": ["close"],
    "AsyncRedisStore": ["close"],
    "FakeClock": ["now", "advance"],
    "StoreContract": ["make_store"],
    "TimedStoreContract": ["make_store"],
}
RETURNED = ["reservation.Reservation", "reservation.AsyncReservation"]  # what no program makes itself
CONSTANTS = {"lab.SHAPES"}
# Members of public classes that a framework calls, or that only our own modules use.
INTERNAL = {
    *("args", "async_capable", "sync_capable", "process_exception", "intercept_service", "intercept_unary_unary"),
    *("intercept_unary_stream", "intercept_stream_unary", "intercept_stream_stream", "handle_request", "describe"),
    *("handle_async_request", "send", "options", "is_default", "responses", "request", "response", "anonymised"),
    *("collect", "nanos", "move_to", "check_limit", "is_stream"),
}
FIELD = re.compile(r"^    (\w+): .*?  # (.+)$", re.M)  # a field of a dataclass with the comment that explains it
SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`])|\n\s*\n")


@cache
def load() -> Any:
    """The package as Griffe reads it, its docstrings completed."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], docstring_parser="google")
    package = loader.load("ratekeeper")
    loader.resolve_aliases(external=False)
    complete(package)
    return package


def resolved(item: Any) -> Any:
    return item.final_target if item.is_alias else item


def names_of(package: Any, module: str) -> list[str]:
    """`__all__` of a public module; an empty name means `ratekeeper` itself."""
    return [str(name) for name in (package[module] if module else package).exports]


def documented(package: Any) -> Iterator[tuple[str, Any]]:
    """Every public name: `("adapters.asgi.RateLimitMiddleware", ...)`."""
    for module in ("", *MODULES):
        owner = package[module] if module else package
        for name in names_of(package, module):
            yield ".".join(filter(None, [module, name])), resolved(owner.members[name])
    for path in RETURNED:
        yield path, package[path]


def members_of(name: str, cls: Any) -> Iterator[tuple[str, Any]]:
    """The methods and attributes of a class that the site shows, inherited ones too."""
    members = cls.all_members
    for member in PROMISED.get(name) or members:
        if member.startswith("_") or (member in INTERNAL and member not in PROMISED.get(name, ())):
            continue
        try:
            yield member, resolved(members[member])
        except griffe.AliasResolutionError:  # of a framework's class
            continue


def parameters_of(item: Any) -> list[str]:
    return [each.name for each in item.parameters if each.name not in ("self", "cls")]


def text_of(item: Any) -> str:
    return item.docstring.value if item.docstring else ""


def listed(item: Any) -> set[str]:
    """The names that the sections of a docstring explain."""
    if not item.docstring:
        return set()
    kinds = ("parameters", "other parameters", "attributes")
    return {entry.name for section in item.docstring.parsed if section.kind.value in kinds for entry in section.value}


def word(path: str, name: str) -> str | None:
    """What the word means there: of the longest part of the path that defines it."""
    parts = path.split(".")
    for length in range(len(parts), -1, -1):
        meaning = WORDS.get(".".join(parts[:length]), {}).get(name)
        if meaning:
            return meaning
    return None


def explanation(path: str, name: str, texts: list[str], fields: dict[str, str]) -> str | None:
    """What a docstring, a field's comment or the list of common words says about a parameter or an attribute."""
    sentences = [" ".join(sentence.split()) for text in texts for sentence in SENTENCE.split(text)]
    begins = [each for each in sentences if re.match(rf"(?:With |The |A )?``{name}\b[^`]*``", each)]
    names = [each for each in sentences if re.search(rf"``{name}\b[^`]*``", each)]
    return next(iter([*begins[:1], *filter(None, [fields.get(name), word(path, name)]), *names[:1]]), None)


def complete(package: Any) -> None:
    """Add to each public docstring a section with the parameters, and one with the attributes, that it has not."""
    for path, item in documented(package):
        if item.is_function:
            add_section(path, item, "Args", parameters_of(item), [text_of(item)])
        if not item.is_class:
            continue
        owners = [item, *[base for base in item.mro() if base.path.startswith("ratekeeper.")]]
        texts = [text_of(owner) for owner in owners]
        if not item.docstring and any(texts):  # as help() does, a class without a docstring has that of its base
            item.docstring = griffe.Docstring(next(filter(None, texts)), parent=item)
            item.docstring.parser = griffe.Parser.google
        fields = {name: comment for owner in owners for name, comment in FIELD.findall(owner.source)}
        add_section(path, item, "Args", parameters_of(item), texts, fields)
        attributes = []
        for name, member in members_of(path.rpartition(".")[2], item):
            if member.is_function:
                add_section(f"{path}.{name}", member, "Args", parameters_of(member), [text_of(member)])
            elif not text_of(member) and name not in parameters_of(item):
                attributes.append(name)
        add_section(path, item, "Attributes", attributes, texts, fields)


def add_section(
    path: str, item: Any, title: str, names: list[str], texts: list[str], fields: dict[str, str] | None = None
) -> None:
    missing = [name for name in names if name not in listed(item)]
    lines = [(name, explanation(path, name, texts, fields or {})) for name in missing]
    rows = [f"    {name}: {meaning[0].upper()}{meaning[1:]}" for name, meaning in lines if meaning]
    if rows and item.docstring:
        written = text_of(item)
        section = [f"{title}:", *rows]
        if f"\n{title}:\n" in written:
            section = rows
        item.docstring = griffe.Docstring("\n".join([written.rstrip(), "", *section]), parent=item)
        item.docstring.parser = griffe.Parser.google


class Explained(griffe.Extension):
    """Lets mkdocstrings show what `complete` adds."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        if pkg.path == "ratekeeper":
            complete(pkg)


def faults() -> list[str]:
    """What is public and not explained: *where: expected what, got none*."""
    package = load()
    found: dict[str, None] = {}
    for path, item in documented(package):
        where = f"ratekeeper.{path}"
        if not text_of(item) and path not in CONSTANTS:
            found[f"{where}: expected a docstring, got none"] = None
        if item.is_function or item.is_class:
            found.update(dict.fromkeys(unexplained(where, item) if path not in RETURNED else []))
        for name, member in members_of(path.rpartition(".")[2], item) if item.is_class else ():
            if member.is_function and not text_of(member):
                found[f"{where}.{name}: expected a docstring, got none"] = None
            elif member.is_function:
                found.update(dict.fromkeys(unexplained(f"{where}.{name}", member)))
            elif not text_of(member) and name not in listed(item):
                found[f"{where}.{name}: expected a docstring, a comment or a word, got none"] = None
    return list(found)


def unexplained(where: str, item: Any) -> list[str]:
    known = listed(item)
    return [
        f"{where}: expected an explanation of {name!r}, got none" for name in parameters_of(item) if name not in known
    ]

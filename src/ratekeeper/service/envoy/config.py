"""Envoy's descriptors -> limits, by a configuration of envoyproxy/ratelimit taken as it is.

At each entry the tree is asked, in this order, for the key with exactly this value, for a value with a ``*`` that fits,
and for the key alone.  A limit counts only if it stands at the last entry.  Limits count by the whole path of keys and
values, encoded so that no two paths share a counter; ``share_threshold`` counts all values of a wildcard together.
Windows are fixed, as that service's are, unless ``algorithm`` in a ``rate_limit`` names another.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidLimit, did_you_mean
from ratekeeper.limit import Limit
from ratekeeper.rules.files import read
from ratekeeper.rules.validate import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Entry = tuple[str, str]

SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip
RATE_KEYS = ("unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst")
NODE_KEYS = ("key", "value", "rate_limit", "shadow_mode", "detailed_metric", "descriptors", "share_threshold",
             "value_to_metric", "quota_mode")  # fmt: skip


class Rate:
    """One limit of the tree.  ``limit`` is None where nobody may pass; ``is_unlimited`` where everybody may."""

    __slots__ = ("count", "is_shadow", "is_unlimited", "limit", "name", "path", "replaces", "unit")

    def __init__(
        self,
        path: str,
        limit: Limit | None,
        *,
        unit: str,
        count: int,
        name: str = "",
        replaces: frozenset[str] = frozenset(),
        is_shadow: bool = False,
        is_unlimited: bool = False,
    ) -> None:
        self.path = path
        self.limit = limit
        self.unit = unit
        self.count = count
        self.name = name
        self.replaces = replaces
        self.is_shadow = is_shadow
        self.is_unlimited = is_unlimited


class DescriptorNode:
    """What may follow an entry."""

    __slots__ = ("alone", "exact", "rate", "shares", "wild")

    def __init__(self) -> None:
        self.exact: dict[Entry, DescriptorNode] = {}
        self.wild: list[tuple[str, str, str, DescriptorNode]] = []  # key, what a value begins with, the pattern
        self.alone: dict[str, DescriptorNode] = {}
        self.rate: Rate | None = None
        self.shares = False


class Descriptors:
    """The limits of all domains."""

    def __init__(self) -> None:
        self.domains: dict[str, DescriptorNode] = {}
        self.rates: list[Rate] = []

    def find(self, domain: str, entries: Sequence[Entry]) -> tuple[Rate, tuple[Any, ...]] | None:
        """The limit of a descriptor, and the key it counts by."""
        node = self.domains.get(domain)
        if node is None:
            return None
        parts: list[Any] = [domain]
        for key, value in entries:
            counted = value
            following = node.exact.get((key, value))
            if following is None:
                for own, start, pattern, candidate in node.wild:
                    if own == key and value.startswith(start):
                        following = candidate
                        if candidate.shares:
                            counted = pattern
                        break
            if following is None:
                following = node.alone.get(key)
            if following is None:
                return None
            parts += [key, counted]
            node = following
        return None if node.rate is None else (node.rate, tuple(parts))

    def add(self, found: dict[str, Any], file: str) -> None:
        """Take one file's contents."""
        place = Place(f"{file}: ")
        domain = found.get("domain")
        if not isinstance(domain, str) or not domain:
            place.key("domain").refuse("text", domain, "It is what the Envoy filter sends as domain.")
        if domain in self.domains:
            place.key("domain").refuse("a domain of its own", domain, "Another file has it.")
        root = self.domains[domain] = DescriptorNode()
        self.grow(place, root, found.get("descriptors", ()), domain)

    def grow(self, place: Place, node: DescriptorNode, found: Any, path: str) -> None:
        if not isinstance(found, (list, tuple)):
            place.key("descriptors").refuse("a list", found)
        for number, own in enumerate(found):
            here = place.key("descriptors").key(number)
            if not isinstance(own, dict):
                here.refuse("a table", own)
            for name in own:
                if name not in NODE_KEYS:
                    here.refuse(f"one of {', '.join(NODE_KEYS)}", name, did_you_mean(str(name), NODE_KEYS).strip())
            key = own.get("key")
            if not isinstance(key, str) or not key:
                here.key("key").refuse("text", key)
            value = "" if own.get("value") is None else str(own["value"])
            inner = DescriptorNode()
            name = f"{path}.{key}" + (f"_{value}" if value else "")
            self.plant(here, node, inner, key, value)
            if own.get("rate_limit") is not None:
                inner.rate = rate_of(here.key("rate_limit"), own["rate_limit"], name, bool(own.get("shadow_mode")))
                self.rates.append(inner.rate)
            inner.shares = bool(own.get("share_threshold"))
            self.grow(here, inner, own.get("descriptors") or (), name)

    def plant(self, place: Place, node: DescriptorNode, inner: DescriptorNode, key: str, value: str) -> None:
        if value.endswith("*"):
            node.wild.append((key, value[:-1], value, inner))
            node.wild.sort(key=lambda one: -len(one[1]))  # the most exact first
        elif value:
            if (key, value) in node.exact:
                place.refuse("a key and value of their own", f"{key}: {value}", "They stand here twice.")
            node.exact[key, value] = inner
        else:
            if key in node.alone:
                place.refuse("a key of its own", key, "It stands here twice.")
            node.alone[key] = inner


def rate_of(place: Place, found: Any, path: str, is_shadow: bool) -> Rate:
    if not isinstance(found, dict):
        place.refuse("a table with unit and requests_per_unit", found)
    for name in found:
        if name not in RATE_KEYS:
            place.refuse(f"one of {', '.join(RATE_KEYS)}", name, did_you_mean(str(name), RATE_KEYS).strip())
    name = str(found.get("name", ""))
    replaces = frozenset(str(one.get("name")) for one in found.get("replaces") or () if isinstance(one, dict))
    if found.get("unlimited"):
        if "unit" in found or "requests_per_unit" in found:
            place.refuse("no unit beside unlimited", found)
        return Rate(path, None, unit="second", count=0, name=name, replaces=replaces, is_shadow=is_shadow,
                    is_unlimited=True)  # fmt: skip
    unit = str(found.get("unit", "")).lower()
    if unit not in SECONDS:
        place.key("unit").refuse(f"one of {', '.join(SECONDS)}", found.get("unit"), did_you_mean(unit, SECONDS).strip())
    count = found.get("requests_per_unit")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**32:
        place.key("requests_per_unit").refuse("a whole number from 0 to 4,294,967,295", count)
    try:
        limit = limit_of(count, unit, str(found.get("algorithm", "fixed_window")), found.get("burst"))
    except InvalidLimit as error:
        place.refuse("a limit that is possible", None, str(error))
    return Rate(path, limit, unit=unit, count=count, name=name, replaces=replaces, is_shadow=is_shadow)


def limit_of(count: int, unit: str, algorithm: str = "fixed_window", burst: int | None = None) -> Limit | None:
    """None where the count is 0: nobody passes."""
    return Limit(count, SECONDS[unit], burst=burst, algorithm=algorithm) if count else None


def load(path: Path) -> Descriptors:
    """A file of envoyproxy/ratelimit, or a folder of them."""
    found = Descriptors()
    files: Iterable[Path] = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml", ".json"))
    for file in files:
        found.add(read(file), file.name)
    if not found.domains:
        raise InvalidInput(f"{path.name}: expected at least one .yaml file, got none.")
    return found

"""Envoy's descriptors -> limits, by an unchanged configuration of envoyproxy/ratelimit.

Each entry of a descriptor is looked up in this order: the key with exactly this value, the key with a ``*`` pattern
that matches the value, the key alone.  Only the limit of the last entry applies.  A limit counts by the whole path of
keys and values, encoded so that no two paths share a counter; ``share_threshold`` counts all values of a pattern
together.  Windows are fixed, as in that service, unless ``algorithm`` in a ``rate_limit`` names another.  A month has
30 days there and a year 365, counted from 1970; ``window: calendar`` in a ``rate_limit`` counts by the calendar.
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

    from ratekeeper.algorithms import Algorithm

    Entry = tuple[str, str]

SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip
RATE_KEYS = ("unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "window", "timezone")
WINDOWS = ("calendar", "first-use")
NODE_KEYS = ("key", "value", "rate_limit", "shadow_mode", "detailed_metric", "descriptors", "share_threshold",
             "value_to_metric", "quota_mode")  # fmt: skip


class Rate:
    """One limit of the tree.  ``limit`` is None if no request may pass, or if all may (``is_unlimited``)."""

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
    """The entries that may follow an entry."""

    __slots__ = ("alone", "exact", "rate", "shares", "wild")

    def __init__(self) -> None:
        self.exact: dict[Entry, DescriptorNode] = {}
        self.wild: list[tuple[str, str, str, DescriptorNode]] = []  # key, prefix of the value, pattern
        self.alone: dict[str, DescriptorNode] = {}
        self.rate: Rate | None = None
        self.shares = False


class Descriptors:
    """The limits of all domains."""

    def __init__(self) -> None:
        self.domains: dict[str, DescriptorNode] = {}
        self.rates: list[Rate] = []

    def find(self, domain: str, entries: Sequence[Entry]) -> tuple[Rate, tuple[Any, ...]] | None:
        """The limit of a descriptor, and the key that it counts by."""
        node = self.domains.get(domain)
        if node is None:
            return None
        parts: list[Any] = [domain]
        for key, value in entries:
            counted_value = value
            following = node.exact.get((key, value))
            if following is None:
                for wild_key, prefix, pattern, candidate in node.wild:
                    if wild_key == key and value.startswith(prefix):
                        following = candidate
                        if candidate.shares:
                            counted_value = pattern
                        break
            if following is None:
                following = node.alone.get(key)
            if following is None:
                return None
            parts += [key, counted_value]
            node = following
        return None if node.rate is None else (node.rate, tuple(parts))

    def add(self, content: dict[str, Any], file: str) -> None:
        """Add the limits of one file."""
        place = Place(f"{file}: ")
        domain = content.get("domain")
        if not isinstance(domain, str) or not domain:
            place.key("domain").refuse("text", domain, "It is the domain that the Envoy filter sends.")
        if domain in self.domains:
            place.key("domain").refuse("a domain of its own", domain, "Another file has it.")
        root = self.domains[domain] = DescriptorNode()
        self.add_children(place, root, content.get("descriptors", ()), domain)

    def add_children(self, place: Place, node: DescriptorNode, children: Any, path: str) -> None:
        if not isinstance(children, (list, tuple)):
            place.key("descriptors").refuse("a list", children)
        for number, fields in enumerate(children):
            here = place.key("descriptors").key(number)
            if not isinstance(fields, dict):
                here.refuse("a table", fields)
            for name in fields:
                if name not in NODE_KEYS:
                    here.refuse(f"one of {', '.join(NODE_KEYS)}", name, did_you_mean(str(name), NODE_KEYS).strip())
            key = fields.get("key")
            if not isinstance(key, str) or not key:
                here.key("key").refuse("text", key)
            value = "" if fields.get("value") is None else str(fields["value"])
            child = DescriptorNode()
            name = f"{path}.{key}" + (f"_{value}" if value else "")
            self.add_child(here, node, child, key, value)
            if fields.get("rate_limit") is not None:
                child.rate = rate_of(
                    here.key("rate_limit"), fields["rate_limit"], name, bool(fields.get("shadow_mode"))
                )
                self.rates.append(child.rate)
            child.shares = bool(fields.get("share_threshold"))
            self.add_children(here, child, fields.get("descriptors") or (), name)

    def add_child(self, place: Place, node: DescriptorNode, child: DescriptorNode, key: str, value: str) -> None:
        if value.endswith("*"):
            node.wild.append((key, value[:-1], value, child))
            node.wild.sort(key=lambda entry: -len(entry[1]))  # the longest prefix first
        elif value:
            if (key, value) in node.exact:
                place.refuse("a key and value of their own", f"{key}: {value}", "They stand here twice.")
            node.exact[key, value] = child
        else:
            if key in node.alone:
                place.refuse("a key of its own", key, "It stands here twice.")
            node.alone[key] = child


def rate_of(place: Place, fields: Any, path: str, is_shadow: bool) -> Rate:
    if not isinstance(fields, dict):
        place.refuse("a table with unit and requests_per_unit", fields)
    for name in fields:
        if name not in RATE_KEYS:
            place.refuse(f"one of {', '.join(RATE_KEYS)}", name, did_you_mean(str(name), RATE_KEYS).strip())
    name = str(fields.get("name", ""))
    replaces = frozenset(
        str(replaced.get("name")) for replaced in fields.get("replaces") or () if isinstance(replaced, dict)
    )
    if fields.get("unlimited"):
        if "unit" in fields or "requests_per_unit" in fields:
            place.refuse("no unit beside unlimited", fields)
        return Rate(path, None, unit="second", count=0, name=name, replaces=replaces, is_shadow=is_shadow,
                    is_unlimited=True)  # fmt: skip
    unit = str(fields.get("unit", "")).lower()
    if unit not in SECONDS:
        place.key("unit").refuse(
            f"one of {', '.join(SECONDS)}", fields.get("unit"), did_you_mean(unit, SECONDS).strip()
        )
    count = fields.get("requests_per_unit")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 2**32:
        place.key("requests_per_unit").refuse("a whole number from 0 to 4,294,967,295", count)
    window, timezone = fields.get("window"), fields.get("timezone")
    if window not in (None, *WINDOWS):
        place.key("window").refuse("'calendar' or 'first-use'", window, did_you_mean(str(window), WINDOWS).strip())
    if timezone is not None and window != "calendar":
        place.key("timezone").refuse("window: calendar beside it", timezone)
    try:
        algorithm: Any = str(fields.get("algorithm", "fixed_window"))  # Limit refuses one that there is not
        if window is not None and algorithm != "fixed_window":
            place.key("window").refuse("fixed_window or no algorithm beside it", algorithm)
        limit = limit_of(count, unit, algorithm, fields.get("burst"), window, timezone)
    except InvalidLimit as error:
        place.refuse("a limit that is possible", None, str(error))
    return Rate(path, limit, unit=unit, count=count, name=name, replaces=replaces, is_shadow=is_shadow)


def limit_of(
    count: int,
    unit: str,
    algorithm: Algorithm = "fixed_window",
    burst: int | None = None,
    window: str | None = None,
    timezone: str | None = None,
) -> Limit | None:
    """The limit, or None if the count is 0: then no request passes."""
    if not count:
        return None
    if window is None:
        return Limit(count, SECONDS[unit], burst=burst, algorithm=algorithm)
    return Limit(count, unit if window == "calendar" else SECONDS[unit], burst=burst, window=window, timezone=timezone)


def load(path: Path) -> Descriptors:
    """Read a configuration file of envoyproxy/ratelimit, or a folder of them."""
    descriptors = Descriptors()
    files: Iterable[Path] = [path]
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml", ".json"))
    for file in files:
        descriptors.add(read(file), file.name)
    if not descriptors.domains:
        raise InvalidInput(f"{path.name}: expected at least one .yaml file, got none.")
    return descriptors

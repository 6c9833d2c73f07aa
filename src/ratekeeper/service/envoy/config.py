"""Envoy's descriptors -> limits, by an unchanged configuration of envoyproxy/ratelimit.

Each entry of a descriptor is looked up in this order: the key with exactly this value, the first pattern of the file
that matches the value (``*`` stands for any text, anywhere in a value), the key alone.  Only the limit of the last
entry applies.  A limit counts by the whole path of keys and values, encoded so that no two paths share a counter;
``share_threshold`` counts all values of a pattern together.  Windows are fixed, as in that service, unless
``algorithm`` in a ``rate_limit`` names another.  A month has 30 days there and a year 365, counted from 1970;
``window: calendar`` in a ``rate_limit`` counts by the calendar.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidLimit, did_you_mean
from ratekeeper.limit import MOST, Limit
from ratekeeper.rules.files import read
from ratekeeper.rules.reload import stamp
from ratekeeper.rules.validate import Place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.algorithms import Algorithm

    Entry = tuple[str, str]

SECONDS = {
    "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "month": 2_592_000, "year": 31_536_000,
}  # fmt: skip
FILE_KEYS = ("domain", "descriptors")
RATE_KEYS = ("unit", "requests_per_unit", "unlimited", "name", "replaces", "algorithm", "burst", "window", "timezone")
WINDOWS = ("calendar", "first-use")
NODE_KEYS = ("key", "value", "rate_limit", "shadow_mode", "detailed_metric", "descriptors", "share_threshold",
             "value_to_metric", "quota_mode")  # fmt: skip
SUFFIXES = (".yaml", ".yml", ".json")
COUNTERS = ("fixed_window", "calendar_window", "first_use_window")  # algorithms that count up from 0


class Rate:
    """One limit of the tree.  ``limit`` is None if no request may pass, or if all may (``is_unlimited``).

    ``counter`` is the largest limit on the same counter: what it has left tells how much was counted, above the limit
    too.  It is None for algorithms that do not count up from 0.
    """

    __slots__ = (
        "count", "counter", "has_detailed_metric", "is_quota", "is_shadow", "is_unlimited", "limit", "name", "path",
        "replaces", "unit",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        limit: Limit | None,
        *,
        unit: str,
        count: int,
        counter: Limit | None = None,
        name: str = "",
        replaces: frozenset[str] = frozenset(),
        is_shadow: bool = False,
        is_quota: bool = False,
        is_unlimited: bool = False,
        has_detailed_metric: bool = False,
    ) -> None:
        self.path = path
        self.limit = limit
        self.counter = counter
        self.unit = unit
        self.count = count
        self.name = name
        self.replaces = replaces
        self.is_shadow = is_shadow
        self.is_quota = is_quota
        self.is_unlimited = is_unlimited
        self.has_detailed_metric = has_detailed_metric

    @property
    def mode(self) -> str:
        """The mode that the file says."""
        return "shadow" if self.is_shadow else "enforce"

    @property
    def text(self) -> str:
        """The limit as the file writes it."""
        return "unlimited" if self.is_unlimited else f"{self.count}/{self.unit}"


class Match:
    """The limit of a descriptor, the key that it counts by, and the name of its metrics."""

    __slots__ = ("key", "metric", "rate")

    def __init__(self, rate: Rate, key: tuple[str, ...], metric: str) -> None:
        self.rate = rate
        self.key = key
        self.metric = metric


class ValuePattern:
    """A value in which ``*`` stands for any text.  A key that ends with ``*`` is a pattern of key and value."""

    __slots__ = ("key", "middle", "node", "prefix", "suffix", "text")

    def __init__(self, key: str, text: str, node: DescriptorNode) -> None:
        self.key = key if text else None
        self.text = text or key
        self.node = node
        self.prefix, *self.middle, self.suffix = self.text.split("*")

    def matches(self, key: str, value: str) -> bool:
        if self.key is None:
            value = f"{key}_{value}"
        elif key != self.key:
            return False
        if not (value.startswith(self.prefix) and value.endswith(self.suffix)):
            return False
        at, end = len(self.prefix), len(value) - len(self.suffix)
        for part in self.middle:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return at <= end


class DescriptorNode:
    """The entries that may follow an entry."""

    __slots__ = ("alone", "exact", "patterns", "rate", "shares", "shows_value")

    def __init__(self) -> None:
        self.exact: dict[Entry, DescriptorNode] = {}
        self.patterns: list[ValuePattern] = []  # in the order of the file
        self.alone: dict[str, DescriptorNode] = {}
        self.rate: Rate | None = None
        self.shares = False
        self.shows_value = False  # in the names of metrics


class Descriptors:
    """The limits of all domains."""

    def __init__(self) -> None:
        self.domains: dict[str, DescriptorNode] = {}
        self.rates: list[Rate] = []

    def find(self, domain: str, entries: Sequence[Entry]) -> Match | None:
        """The limit of a descriptor."""
        node = self.domains.get(domain)
        if node is None:
            return None
        key_parts = [domain]
        names: list[str] | None = None  # of the metric, if it is not that of the limit
        for number, (key, value) in enumerate(entries):
            counted_value = value
            following = node.exact.get((key, value))
            pattern = None
            if following is None:
                for pattern in node.patterns:
                    if pattern.matches(key, value):
                        following = pattern.node
                        if following.shares:
                            counted_value = pattern.text
                        break
                else:
                    pattern = None
            if following is None:
                following = node.alone.get(key)
                if following is None:
                    return None
            key_parts += (key, counted_value)
            if following.shows_value and names is None:
                names = plain_names(self.domains[domain], entries[:number])
            if names is not None:
                is_alone = following is node.alone.get(key)
                names.append(name_of_entry(key, value, following, pattern, is_alone=is_alone))
            node = following
        rate = node.rate
        if rate is None or len(key_parts) == 1:
            return None
        metric = rate.path
        if rate.has_detailed_metric:
            pairs = zip(key_parts[1::2], key_parts[2::2], strict=True)
            metric = ".".join([domain, *[f"{key}_{value}" for key, value in pairs]])
        elif names is not None:
            metric = ".".join([domain, *names])
        return Match(rate, tuple(key_parts), metric)

    def add(self, content: dict[str, Any], file: str, texts: Any = None) -> None:
        """Add the limits of one file; ``texts`` is the same content with every scalar as it is written."""
        texts = content if texts is None else texts
        place = Place(f"{file}: ", locate=getattr(content, "locate", None))
        expect_keys(place, content, FILE_KEYS)
        domain = text_of(place, content, texts, "domain")
        if not domain:
            place.key("domain").refuse("text", content.get("domain"), "It is the domain that the Envoy filter sends.")
        root = self.domains.setdefault(domain, DescriptorNode())  # several files may add to one domain
        self.add_children(place, root, content, texts, domain)

    def add_children(self, place: Place, node: DescriptorNode, content: Any, texts: Any, path: str) -> None:
        children = content.get("descriptors")
        if children is None:
            return
        if not isinstance(children, (list, tuple)):
            place.key("descriptors").refuse("a list", children)
        for number, fields in enumerate(children):
            here = place.key("descriptors").key(number)
            if not isinstance(fields, dict):
                here.refuse("a table", fields)
            expect_keys(here, fields, NODE_KEYS)
            written = texts["descriptors"][number]
            key = text_of(here, fields, written, "key")
            if not key:
                here.key("key").refuse("text", fields.get("key"))
            value = text_of(here, fields, written, "value")
            child = DescriptorNode()
            name = f"{path}.{key}" + (f"_{value}" if value else "")
            self.add_child(here, node, child, key, value)
            child.shows_value = flag_of(here, fields, "value_to_metric")
            child.shares = flag_of(here, fields, "share_threshold")
            if child.shares and "*" not in (value or key):
                here.key("share_threshold").refuse(
                    "a value with a * beside it", value or None, "Other values have one counter each already."
                )
            flags: dict[str, Any] = {
                "is_shadow": flag_of(here, fields, "shadow_mode"),
                "is_quota": flag_of(here, fields, "quota_mode"),
                "has_detailed_metric": flag_of(here, fields, "detailed_metric"),
            }
            if fields.get("rate_limit") is not None:
                child.rate = rate_of(here.key("rate_limit"), fields["rate_limit"], written["rate_limit"], name, flags)
                self.rates.append(child.rate)
            self.add_children(here, child, fields, written, name)

    def add_child(self, place: Place, node: DescriptorNode, child: DescriptorNode, key: str, value: str) -> None:
        if value:
            if (key, value) in node.exact:
                place.refuse("a key and value of their own", f"{key}: {value}", "They stand here twice.")
            node.exact[key, value] = child
        else:
            if key in node.alone:
                place.refuse("a key of its own", key, "It stands here twice.")
            node.alone[key] = child
        if "*" in value or (not value and key.endswith("*")):
            node.patterns.append(ValuePattern(key, value, child))


def plain_names(node: DescriptorNode, entries: Sequence[Entry]) -> list[str]:
    """The names of the first entries, none of which shows its value in metrics, as the file has them."""
    names = []
    for key, value in entries:
        following = node.exact.get((key, value))
        pattern = None
        if following is None:
            pattern = next((each for each in node.patterns if each.matches(key, value)), None)
            following = pattern.node if pattern is not None else node.alone[key]
        names.append(name_of_entry(key, value, following, pattern, is_alone=following is node.alone.get(key)))
        node = following
    return names


def name_of_entry(key: str, value: str, node: DescriptorNode, pattern: ValuePattern | None, *, is_alone: bool) -> str:
    """How metrics name an entry: by its pattern, unless its value is to be shown and does not share a counter."""
    if pattern is not None:
        shown = value if node.shows_value and not node.shares else pattern.text
    elif is_alone and not node.shows_value:
        shown = ""
    else:
        shown = value
    return f"{key}_{shown}" if shown else key


def expect_keys(place: Place, fields: dict[Any, Any], known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            place.refuse(f"one of {', '.join(known)}", name, did_you_mean(str(name), known).strip())


def text_of(place: Place, fields: dict[str, Any], written: Any, name: str) -> str:
    """A setting that is text, as it is written: ``true``, ``010`` and ``12:30`` are not numbers in a descriptor."""
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, (list, tuple, dict)):
        place.key(name).refuse("text", value)
    text = written[name]
    return text if isinstance(text, str) else str(value).lower() if isinstance(value, bool) else str(value)


def flag_of(place: Place, fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        place.key(name).refuse("true or false", value)
    return bool(value)


def replaced_names(place: Place, fields: dict[str, Any], written: Any, own_name: str) -> frozenset[str]:
    """The names of the limits that a limit replaces."""
    entries = fields.get("replaces")
    if entries is None:
        return frozenset()
    if not isinstance(entries, (list, tuple)):
        place.key("replaces").refuse("a list of tables with a name", entries)
    names = set()
    for number, entry in enumerate(entries):
        here = place.key("replaces").key(number)
        if not isinstance(entry, dict):
            here.refuse("a table with a name", entry)
        expect_keys(here, entry, ("name",))
        name = text_of(here, entry, written["replaces"][number], "name")
        if not name:
            here.key("name").refuse("the name of another limit", entry.get("name"))
        if name == own_name:
            here.key("name").refuse("the name of another limit", name, "It is the name of this one.")
        names.add(name)
    return frozenset(names)


def rate_of(place: Place, fields: Any, written: Any, path: str, flags: dict[str, Any]) -> Rate:
    if not isinstance(fields, dict):
        place.refuse("a table with unit and requests_per_unit", fields)
    expect_keys(place, fields, RATE_KEYS)
    name = text_of(place, fields, written, "name")
    replaces = replaced_names(place, fields, written, name)
    if flag_of(place, fields, "unlimited"):
        for other in ("unit", "requests_per_unit", "algorithm", "burst", "window", "timezone"):
            if fields.get(other) is not None:
                place.key(other).refuse("no other setting beside unlimited", fields[other])
        return Rate(path, None, unit="second", count=0, name=name, replaces=replaces, is_unlimited=True, **flags)
    unit = text_of(place, fields, written, "unit").lower()
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
        limit, counter = limits_of(count, unit, algorithm, fields.get("burst"), window, timezone)
    except InvalidLimit as error:
        place.refuse("a limit that is possible", None, str(error))
    return Rate(path, limit, unit=unit, count=count, counter=counter, name=name, replaces=replaces, **flags)


def limits_of(
    count: int,
    unit: str,
    algorithm: Algorithm = "fixed_window",
    burst: int | None = None,
    window: str | None = None,
    timezone: str | None = None,
) -> tuple[Limit | None, Limit | None]:
    """The limit, which is None if the count is 0, as then no request passes; and the largest limit on its counter."""

    def made(count: int, burst: int | None = None) -> Limit:
        if window is None:
            return Limit(count, SECONDS[unit], burst=burst, algorithm=algorithm)
        period = unit if window == "calendar" else SECONDS[unit]
        return Limit(count, period, burst=burst, window=window, timezone=timezone)

    limit = made(count or 1, burst)
    counter = made(MOST) if limit.algorithm in COUNTERS else None
    return (limit if count else None), counter


def files_of(path: Path) -> list[Path]:
    """The files of a configuration: itself, or those of a folder whose names do not begin with a dot."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and not file.name.startswith("."))


def stamps(path: Path) -> tuple[object, ...]:
    """What changes when a file of the configuration is written or replaced, or a link on the way to it."""
    try:
        return tuple((file.name, stamp(file)) for file in files_of(path))
    except OSError:
        return ()


def texts_of(text: str, suffix: str) -> Any:
    """The content of a file with every scalar as it is written."""
    if suffix == ".json":
        return json.loads(text, parse_int=str, parse_float=str)
    import yaml

    class TextLoader(yaml.SafeLoader):
        pass

    def as_written(loader: Any, node: Any) -> Any:
        return loader.construct_scalar(node)

    for name in ("bool", "int", "float", "timestamp", "binary"):
        TextLoader.add_constructor(f"tag:yaml.org,2002:{name}", as_written)
    return yaml.load(text, TextLoader)


def load(path: Path) -> Descriptors:
    """Read a configuration file of envoyproxy/ratelimit, or a folder of them."""
    descriptors = Descriptors()
    for file in files_of(path):
        if file.suffix not in SUFFIXES:
            raise InvalidInput(f"{file.name}: expected a .yaml, .yml or .json file.")
        content = read(file)
        descriptors.add(content, file.name, texts_of(content.text, file.suffix))
    if not descriptors.domains:
        raise InvalidInput(f"{path.name}: expected at least one .yaml file, got none.")
    return descriptors

"""Lines of access logs -> events: nginx and Apache common and combined formats, and JSON lines.

Events come in blocks of columns: when, who, the request line, and for some what else the line says (``user``,
``host``, headers).  A line that cannot be read is counted, shown and skipped.

The fast path takes a whole piece of a log apart in one call, into columns; an odd line goes through the slow path,
which knows all the exceptions.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.lab.log_columns import columns, decoded
from ratekeeper.lab.timestamps import instant_of, instant_of_stamp, parse_stamp
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratekeeper.lab.log_columns import ReadsColumns

    Facts = dict[str, str]

FORMATS = ("auto", "common", "json")
MOST_SHOWN = 5  # bad lines of each source that are kept to be shown
MOST_SAMPLED = 1000
# client identity user [time] "request" status bytes "referer" "agent"; a quote within quotes is escaped
LINE = re.compile(
    r'(?P<client>[^ ]+) [^ ]+ (?P<user>.*?) \[(?P<time>[^\]]{20,40})\] "(?P<request>(?:[^"\\]|\\.)*)"'
    r'(?: (?P<status>\S+)(?: (?P<size>\S+)(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?)?)?'
)

# Where JSON logs of known servers keep what is needed; the first that is there is taken.
FIELDS: dict[str, tuple[str, ...]] = {
    "time": ("time", "timestamp", "ts", "@timestamp", "time_iso8601", "time_local", "msec", "StartUTC", "date"),
    "client": ("client", "remote_addr", "client_ip", "remote_ip", "ip", "ClientHost", "remote_host", "clientip"),
    "method": ("method", "request_method", "RequestMethod", "verb"),
    "path": ("path", "uri", "request_uri", "url", "RequestPath", "target"),
    "request": ("request", "request_line"),
    "user": ("user", "remote_user", "ClientUsername", "auth"),
    "host": ("host", "http_host", "RequestHost", "server_name"),
}


class Block:
    """Events in columns: when (microseconds since 1970), who, and the request line; and facts of some, by number."""

    __slots__ = ("clients", "facts", "texts", "times")

    def __init__(
        self, times: list[int], clients: list[str], texts: list[str], facts: dict[int, Facts] | None = None
    ) -> None:
        self.times = times
        self.clients = clients
        self.texts = texts
        self.facts = facts or {}

    def __len__(self) -> int:
        return len(self.times)

    def part(self, start: int, stop: int) -> Block:
        facts = {place - start: found for place, found in self.facts.items() if start <= place < stop}
        return Block(self.times[start:stop], self.clients[start:stop], self.texts[start:stop], facts)

    def followed_by(self, other: Block) -> Block:
        facts = self.facts | {place + len(self): found for place, found in other.facts.items()}
        return Block(self.times + other.times, self.clients + other.clients, self.texts + other.texts, facts)

    def extend(self, times: list[int], clients: list[str], texts: list[str]) -> None:
        self.times += times
        self.clients += clients
        self.texts += texts

    def in_order(self) -> Block:
        """The same events, by time; those of one instant stay as they are."""
        times = sorted(self.times)
        if times == self.times:
            return self
        order = sorted(range(len(times)), key=self.times.__getitem__)
        facts = {place: self.facts[number] for place, number in enumerate(order) if number in self.facts}
        return Block(times, [self.clients[n] for n in order], [self.texts[n] for n in order], facts)


@dataclass
class BadLine:
    """A line that could not be read."""

    source: str
    number: int
    reason: str
    text: str


@dataclass
class LineReader:
    """Reads the lines of one source: its format, how it tells the time, and what could not be read."""

    name: str
    format: str = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    zone: str = "auto"  # "written": as the stamps say; "ignored": all as UTC
    wants_facts: bool = False  # headers, beside the user
    lines: int = 0
    bad: int = 0
    shown: list[BadLine] = field(default_factory=list)
    told: set[str] = field(default_factory=set)  # names of the facts that there were
    columns: ReadsColumns | None = None  # takes lines apart that look like most

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InvalidInput(f"format: expected {', '.join(FORMATS)}, got {shown(self.format)}.")
        if self.zone not in ("auto", "written", "ignored"):
            raise InvalidInput(f"zone: expected auto, written or ignored, got {shown(self.zone)}.")
        for name in self.fields:
            if name not in FIELDS and not name.startswith("header:"):
                raise InvalidInput(
                    f"fields: expected {', '.join(FIELDS)} or header:NAME, got {shown(name)}."
                    f"{did_you_mean(name, FIELDS)}"
                )

    def read(self, piece: bytes) -> Block:
        """The events of some lines, each with its end."""
        if self.format == "auto":
            self.format = detected(piece)
        if self.zone == "auto":
            sample = piece.split(b"\n", MOST_SAMPLED)[:-1]
            self.zone = "written" if self.format == "json" else better_zone(map(decoded, sample))
        if self.format == "json":
            return self.read_json(decoded(piece).split("\n")[:-1])
        if self.wants_facts:
            return self.read_slow_lines(decoded(piece).split("\n")[:-1])
        if self.columns is None:
            self.columns = columns(self.zone == "written")
        times, clients, texts, odd = self.columns.read(piece)
        if not odd:
            self.lines += len(times)
            return Block(times, clients, texts)
        block = Block([], [], [])
        before, done = self.lines, 0
        for place, number, line in odd:
            block.extend(times[done:place], clients[done:place], texts[done:place])
            self.lines = before + number
            self.read_slowly(decoded(line), block)
            done = place
        block.extend(times[done:], clients[done:], texts[done:])
        self.lines = before + len(times) + len(odd)
        return block

    def read_slow_lines(self, lines: list[str]) -> Block:
        block = Block([], [], [])
        for line in lines:
            self.lines += 1
            self.read_slowly(line, block)
        return block

    def read_slowly(self, line: str, block: Block) -> None:
        if not line.strip():
            return
        found = LINE.match(line)
        if found is None:
            self.refuse("not an access log line", line)
            return
        try:
            at = instant_of_stamp(found["time"], self.zone == "written")
        except ValueError:
            self.refuse("no time that can be read", line)
            return
        facts: Facts = {}
        if found["user"] != "-":
            facts["user"] = found["user"]
        if self.wants_facts:
            for name, header in (("referer", "referer"), ("agent", "user-agent")):
                if found[name] not in (None, "-"):
                    facts[header] = found[name]
        self.told.update(facts)
        put(block, at, found["client"], found["request"], facts)

    def read_json(self, lines: list[str]) -> Block:
        block = Block([], [], [])
        for line in lines:
            self.lines += 1
            if not line or line.isspace():
                continue
            try:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError("not a JSON object")
                put(block, *self.event_of(found))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = "not JSON" if isinstance(error, json.JSONDecodeError) else str(error) or "not readable"
                self.refuse(reason, line)
        return block

    def event_of(self, found: dict[str, Any]) -> tuple[int, str, str, Facts]:
        at = instant_of(self.pick(found, "time"), self.zone == "written")
        client = without_port(text_of(self.pick(found, "client"), "client"))
        request = self.pick(found, "request", needed=False)
        if request is None:
            path = text_of(self.pick(found, "path"), "path")
            request = f"{self.pick(found, 'method', needed=False) or 'GET'} {path}"
        facts: Facts = {}
        for name in ("user", "host"):
            value = self.pick(found, name, needed=False)
            if isinstance(value, (str, int)) and value not in ("", "-"):
                facts[name] = whole(str(value))
        for name, place in self.fields.items():
            if name.startswith("header:"):
                value = at_path(found, place)
                if isinstance(value, list) and value:
                    value = value[0]
                if isinstance(value, (str, int)):
                    facts[name.removeprefix("header:").lower()] = whole(str(value))
        self.told.update(facts)
        return at, client, text_of(request, "request"), facts

    def pick(self, found: dict[str, Any], name: str, needed: bool = True) -> Any:
        given = self.fields.get(name)
        if given is not None:
            value = at_path(found, given)
        else:
            inner = found.get("request")  # Caddy has the request as an object of its own
            places = (found, inner) if isinstance(inner, dict) else (found,)
            values = (place.get(own) for place in places for own in FIELDS[name])
            value = next((value for value in values if value is not None and not isinstance(value, dict)), None)
        if value is None and needed:
            raise ValueError(f"no {name}: expected one of {', '.join([given] if given else FIELDS[name])}")
        return value

    def refuse(self, reason: str, line: str) -> None:
        self.bad += 1
        if len(self.shown) < MOST_SHOWN:
            self.shown.append(BadLine(self.name, self.lines, reason, line[:200]))


def put(block: Block, at: int, client: str, text: str, facts: Facts) -> None:
    if facts:
        block.facts[len(block)] = facts
    block.times.append(at)
    block.clients.append(client)
    block.texts.append(text)


def at_path(found: Any, place: str) -> Any:
    """``request.headers.host`` in nested objects; a name with dots in it goes first."""
    if isinstance(found, dict) and place in found:
        return found[place]
    for part in place.split("."):
        if not isinstance(found, dict):
            return None
        found = found.get(part)
    return found


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"no {name}: expected text, got {shown(value, 30)}")
    return whole(value)


def whole(text: str) -> str:
    """The text, without halves of characters, which JSON may hold and no file can."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def without_port(client: str) -> str:
    """``203.0.113.9:51234`` and ``[2001:db8::1]:443`` -> the address; a port is new with each connection."""
    if client.startswith("["):
        return client[1:].partition("]")[0] or client
    host, _, port = client.rpartition(":")
    return host if host and ":" not in host and port.isdecimal() else client


def detected(piece: bytes) -> str:
    return "json" if piece.lstrip()[:1] == b"{" else "common"


def better_zone(lines: Iterable[str]) -> str:
    """Whether to believe the zones: not if the lines run backwards with them, and do not without.

    A server writes one zone, and another after its clocks were changed; some logs that were merged or edited have
    zones that contradict the order of their own lines.
    """
    written: list[int] = []
    ignored: list[int] = []
    for line in lines:
        found = LINE.match(line)
        try:
            local, offset = parse_stamp(found["time"]) if found else (0, 0)
        except ValueError:
            continue
        if found:
            written.append(local - offset)
            ignored.append(local)
    return "ignored" if steps_back(ignored) < steps_back(written) else "written"


def steps_back(instants: list[int]) -> int:
    """How often the time goes back by more than a minute."""
    return sum(after < before - 60 * SECOND for before, after in pairwise(instants))

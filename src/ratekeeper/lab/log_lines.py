"""Lines of access logs -> events: nginx and Apache common and combined formats, and JSON lines.

In the format ``vhost`` a common or combined line stands behind the name of its virtual host, as in Apache's
vhost_combined.

Events come in blocks of columns: time, client, request line, and for some events further facts (``user``, ``host``,
headers).  A line that cannot be read is counted, reported and skipped.

The fast path reads many usual lines in one call.  Every other line takes the slow path, which knows all exceptions.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.lab.log_columns import MOST_STAMPS, column_reader, decode
from ratekeeper.lab.timestamps import instant_of, instant_of_stamp, parse_stamp
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ratekeeper.lab.log_columns import ReadsColumns

    Facts = dict[str, str]

FORMATS = ("auto", "common", "vhost", "json")
MOST_EXAMPLES = 5  # unreadable lines of each log that are kept for the report
MOST_SAMPLED = 1000
# client identity user [time] "request" status bytes "referer" "agent"; a quote within quotes is escaped
LINE = re.compile(
    r'(?P<client>[^ ]+) [^ ]+ (?P<user>.*?) \[(?P<time>[^\]]{20,40})\] "(?P<request>(?:[^"\\]|\\.)*)"'
    r'(?: (?P<status>\S+)(?: (?P<size>\S+)(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?)?)?'
)

# The virtual host in front of a line: its port, or the address behind it, tells it from a client.
HOST = r"[^ \n]+(?::\d+ (?!- )| (?=[0-9A-Fa-f.:]*[.:][0-9A-Fa-f.:]* ))"
VIRTUAL_HOST = re.compile(HOST)
VIRTUAL_HOSTS = re.compile(b"^" + HOST.encode(), re.MULTILINE)

# The names of each field in the JSON logs of well-known servers; the first name that is present is used.
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
    """Events in columns: time (microseconds since 1970), client, request line; and the facts of some, by place."""

    __slots__ = ("clients", "facts", "request_lines", "times")

    def __init__(
        self, times: list[int], clients: list[str], request_lines: list[str], facts: dict[int, Facts] | None = None
    ) -> None:
        self.times = times
        self.clients = clients
        self.request_lines = request_lines
        self.facts = facts or {}

    def __len__(self) -> int:
        return len(self.times)

    def part(self, start: int, stop: int) -> Block:
        facts = {place - start: values for place, values in self.facts.items() if start <= place < stop}
        return Block(self.times[start:stop], self.clients[start:stop], self.request_lines[start:stop], facts)

    def followed_by(self, other: Block) -> Block:
        facts = self.facts | {place + len(self): values for place, values in other.facts.items()}
        return Block(
            self.times + other.times, self.clients + other.clients, self.request_lines + other.request_lines, facts
        )

    def add(self, other: Block) -> None:
        """``followed_by`` in place."""
        self.facts |= {place + len(self): values for place, values in other.facts.items()}
        self.extend(other.times, other.clients, other.request_lines)

    def append(self, at: int, client: str, request_line: str, facts: Facts) -> None:
        if facts:
            self.facts[len(self)] = facts
        self.times.append(at)
        self.clients.append(client)
        self.request_lines.append(request_line)

    def extend(self, times: list[int], clients: list[str], request_lines: list[str]) -> None:
        self.times += times
        self.clients += clients
        self.request_lines += request_lines

    def named_by_user(self) -> Block:
        """The events with the name of the user, where the log has one, instead of the client's address."""
        clients = self.clients
        if self.facts:
            clients = list(clients)
            for place, facts in self.facts.items():
                clients[place] = facts.get("user", clients[place])
        return Block(self.times, clients, self.request_lines, self.facts)

    def in_order(self) -> Block:
        """Return the events sorted by time; events of the same instant keep their order."""
        times = sorted(self.times)
        if times == self.times:
            return self
        order = sorted(range(len(times)), key=self.times.__getitem__)
        facts = {place: self.facts[old] for place, old in enumerate(order) if old in self.facts}
        return Block(times, [self.clients[old] for old in order], [self.request_lines[old] for old in order], facts)


@dataclass
class BadLine:
    """A line that could not be read."""

    source: str
    number: int
    reason: str
    text: str


@dataclass
class LineReader:
    """Reads the lines of one log: knows its format and its time zone, and counts the lines it cannot read."""

    name: str
    format: str = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    zone: str = "auto"  # "written": use the zones of the timestamps; "ignored": read all as UTC
    wants_facts: bool = False  # read headers and the virtual host too, not only the user
    lines: int = 0
    bad: int = 0
    bad_examples: list[BadLine] = field(default_factory=list)
    fact_names: set[str] = field(default_factory=set)  # the facts that the log had so far
    columns: ReadsColumns | None = None  # the fast path
    instants: dict[str, int] = field(default_factory=dict)  # of timestamps

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
        """Read complete lines, each with its newline."""
        if self.format == "auto":
            self.format = detect_format(piece)
        if self.zone == "auto":
            sample = piece.split(b"\n", MOST_SAMPLED)[:-1]
            self.zone = "written" if self.format == "json" else detect_zone(map(decode, sample))
        if self.format == "json":
            return self.read_json(decode(piece).split("\n")[:-1])
        if self.wants_facts:
            return self.read_slow_lines(decode(piece).split("\n")[:-1])
        if self.format == "vhost":
            piece = VIRTUAL_HOSTS.sub(b"", piece)
        if self.columns is None:
            self.columns = column_reader(self.zone == "written")
        times, clients, requests, unusual = self.columns.read(piece)
        if not unusual:
            self.lines += len(times)
            return Block(times, clients, requests)
        block = Block([], [], [])
        before, done = self.lines, 0
        for place, number, line in unusual:
            block.extend(times[done:place], clients[done:place], requests[done:place])
            self.lines = before + number
            self.read_slow_line(decode(line), block)
            done = place
        block.extend(times[done:], clients[done:], requests[done:])
        self.lines = before + len(times) + len(unusual)
        return block

    def read_slow_lines(self, lines: list[str]) -> Block:
        block = Block([], [], [])
        for line in lines:
            self.lines += 1
            self.read_slow_line(line, block)
        return block

    def read_slow_line(self, line: str, block: Block) -> None:
        if not line.strip():
            return
        host = VIRTUAL_HOST.match(line) if self.format == "vhost" else None
        match = LINE.match(line, host.end() if host is not None else 0)
        if match is None:
            self.reject("not an access log line", line)
            return
        try:
            at = self.instant_of(match["time"])
        except ValueError:
            self.reject("no readable time", line)
            return
        facts: Facts = {}
        if match["user"] != "-":
            facts["user"] = match["user"]
        if host is not None and self.wants_facts:
            facts["host"] = without_port(host[0].rstrip())
        if self.wants_facts:
            for name, header in (("referer", "referer"), ("agent", "user-agent")):
                if match[name] not in (None, "-"):
                    facts[header] = match[name]
        self.fact_names.update(facts)
        block.append(at, match["client"], match["request"], facts)

    def instant_of(self, stamp: str) -> int:
        """The instant of a timestamp: many lines have the same."""
        at = self.instants.get(stamp)
        if at is None:
            if len(self.instants) >= MOST_STAMPS:
                self.instants.clear()
            at = self.instants[stamp] = instant_of_stamp(stamp, self.zone == "written")
        return at

    def read_json(self, lines: list[str]) -> Block:
        block = Block([], [], [])
        for line in lines:
            self.lines += 1
            if not line or line.isspace():
                continue
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("not a JSON object")
                block.append(*self.parse_event(record))
            except (ValueError, TypeError, OverflowError, RecursionError) as error:
                reason = "not JSON" if isinstance(error, json.JSONDecodeError) else str(error) or "not readable"
                self.reject(reason, line)
        return block

    def parse_event(self, record: dict[str, Any]) -> tuple[int, str, str, Facts]:
        at = instant_of(self.value(record, "time"), self.zone == "written")
        client = without_port(text_of(self.value(record, "client"), "client"))
        request = self.value(record, "request", required=False)
        if request is None:
            path = text_of(self.value(record, "path"), "path")
            request = f"{self.value(record, 'method', required=False) or 'GET'} {path}"
        facts: Facts = {}
        for name in ("user", "host"):
            value = self.value(record, name, required=False)
            if isinstance(value, (str, int)) and value not in ("", "-"):
                facts[name] = without_surrogates(str(value))
        for name, path in self.fields.items():
            if name.startswith("header:"):
                value = value_at(record, path)
                if isinstance(value, list) and value:
                    value = value[0]
                if isinstance(value, (str, int)):
                    facts[name.removeprefix("header:").lower()] = without_surrogates(str(value))
        self.fact_names.update(facts)
        return at, client, text_of(request, "request"), facts

    def value(self, record: dict[str, Any], name: str, required: bool = True) -> Any:
        """Return the value of a field, from where the caller or the well-known servers put it."""
        chosen = self.fields.get(name)
        if chosen is not None:
            value = value_at(record, chosen)
        else:
            inner = record.get("request")  # Caddy has the request as an inner object
            objects = (record, inner) if isinstance(inner, dict) else (record,)
            values = (item.get(spelling) for item in objects for spelling in FIELDS[name])
            value = next((value for value in values if value is not None and not isinstance(value, dict)), None)
        if value is None and required:
            raise ValueError(f"no {name}: expected one of {', '.join([chosen] if chosen else FIELDS[name])}")
        return value

    def reject(self, reason: str, line: str) -> None:
        self.bad += 1
        if len(self.bad_examples) < MOST_EXAMPLES:
            self.bad_examples.append(BadLine(self.name, self.lines, reason, line[:200]))


def value_at(record: Any, path: str) -> Any:
    """Look up ``request.headers.host`` in nested objects; a key that has dots itself goes first."""
    if isinstance(record, dict) and path in record:
        return record[path]
    for part in path.split("."):
        if not isinstance(record, dict):
            return None
        record = record.get(part)
    return record


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"no {name}: expected text, got {shown(value, 30)}")
    return without_surrogates(value)


def without_surrogates(text: str) -> str:
    """Escape lone surrogates: JSON may have them, but no file can."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def without_port(client: str) -> str:
    """``203.0.113.9:51234`` and ``[2001:db8::1]:443`` -> the address; each connection has a new port."""
    if client.startswith("["):
        return client[1:].partition("]")[0] or client
    host, _, port = client.rpartition(":")
    return host if host and ":" not in host and port.isdecimal() else client


def detect_format(piece: bytes) -> str:
    if piece.lstrip()[:1] == b"{":
        return "json"
    lines = [line for line in map(decode, piece.split(b"\n", MOST_SAMPLED)[:-1]) if LINE.match(line)]
    hosts = [line for line in lines if (host := VIRTUAL_HOST.match(line)) and LINE.match(line, host.end())]
    return "vhost" if 2 * len(hosts) > len(lines) else "common"


def detect_zone(lines: Iterable[str]) -> str:
    """Decide whether to use the zones: not if the lines run backwards with them, and forwards without.

    A server writes one zone, and another one after daylight saving time begins or ends.  Some logs were merged or
    edited, and their zones contradict the order of their own lines.
    """
    written: list[int] = []
    ignored: list[int] = []
    for line in lines:
        match = LINE.match(line)
        try:
            local, offset = parse_stamp(match["time"]) if match else (0, 0)
        except ValueError:
            continue
        if match:
            written.append(local - offset)
            ignored.append(local)
    return "ignored" if steps_back(ignored) < steps_back(written) else "written"


def steps_back(instants: list[int]) -> int:
    """Count how often the time goes back by more than a minute."""
    return sum(after < before - 60 * SECOND for before, after in pairwise(instants))

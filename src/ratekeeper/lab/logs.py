"""Lines of access logs -> events: nginx and Apache common and combined formats, and JSON lines.

Events come in blocks of columns: when, who, the request line, and for some what else the line says (``user``,
``host``, headers).  A line that cannot be read is counted, shown and skipped.

The fast path takes a whole piece of a log apart in one call, into columns, and looks the stamps up; where some line
does not fit, line by line, and that one goes through the slow path, which knows all the exceptions.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import isfinite
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    Facts = dict[str, str]

FORMATS = ("auto", "common", "json")
MOST_SHOWN = 5  # bad lines of each source that are kept to be shown
MOST_STAMPS = 4096
SECONDS = {f":{second:02}": second * SECOND for second in range(60)}
CLOCK = {f":{hour:02}:{minute:02}": (hour * 60 + minute) * 60 * SECOND for hour in range(24) for minute in range(60)}
MOST_SAMPLED = 1000
LATEST = 1 << 52  # microseconds since 1970, in the year 2112: as far as the rules count
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MONTHS = {name: number for number, name in enumerate(NAMES, 1)}
# client identity user [time] "request" status bytes "referer" "agent"; a quote within quotes is escaped
LINE = re.compile(
    r'(?P<client>[^ ]+) [^ ]+ (?P<user>.*?) \[(?P<time>[^\]]{20,40})\] "(?P<request>(?:[^"\\]|\\.)*)"'
    r'(?: (?P<status>\S+)(?: (?P<size>\S+)(?: "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)")?)?)?'
)
# The same where there is neither identity nor user, over many lines.  The simplest classes are twice as fast as strict
# ones; a line without a space swallows the next, so matches must be counted.
ALIKE = r'([^ ]+) - - \[(.{20}) %s\] "([^"\\\n]+)".*'
COLUMNS = ALIKE + r"\n"
PIECE = rf"(?:{ALIKE}|(.*))\n"  # what else a line is comes last
ANY_ZONE = "....."
STAMP = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6})\d*)? ([+-])(\d\d):?(\d\d)")

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
class Reader:
    """Reads the lines of one source: its format, how it tells the time, and what could not be read."""

    name: str
    format: str = "auto"
    fields: Mapping[str, str] = field(default_factory=dict)
    zone: str = "auto"  # "written": as the stamps say; "ignored": all as UTC
    wants_facts: bool = False  # headers, beside the user
    lines: int = 0
    bad: int = 0
    shown: list[BadLine] = field(default_factory=list)
    columns: re.Pattern[str] | None = None  # takes many lines apart that are all alike, of one zone
    piece: re.Pattern[str] | None = None  # the same where some are not
    stamps: Stamps = field(default_factory=lambda: Stamps())
    told: set[str] = field(default_factory=set)  # names of the facts that there were

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

    def read(self, text: str) -> Block:
        """The events of some lines, each with its end."""
        if self.format == "auto":
            self.format = detected(text)
        if self.zone == "auto":
            self.zone = "written" if self.format == "json" else better_zone(text.split("\n", MOST_SAMPLED)[:-1])
        if self.format == "json":
            return self.read_json(text.split("\n")[:-1])
        if self.piece is None and not self.wants_facts:
            self.learn_zone(text.split("\n", MOST_SAMPLED)[:-1])
        if self.piece is None or self.columns is None:
            return self.read_slow_lines(text.split("\n")[:-1])
        lines = text.count("\n")
        found = self.columns.split(text)  # three words of each line, and what lies between two lines: nothing
        if len(found) == 4 * lines + 1 and found[::4].count("") == lines + 1:
            with suppress(LookupError, ValueError):  # there is some odd time
                times = list(map(self.stamps.__getitem__, found[2::4]))
                self.lines += lines
                return Block(times, found[1::4], found[3::4])
        rows = self.piece.findall(text)
        if len(rows) != lines:
            return self.read_slow_lines(text.split("\n")[:-1])
        return self.read_rows(rows)

    def learn_zone(self, lines: list[str]) -> None:
        """Look for a first line that the fast path could take."""
        for line in lines:
            found = LINE.match(line)
            if found is not None and self.piece is None:
                with suppress(ValueError):
                    self.instant(found["time"])

    def read_rows(self, found: list[tuple[str, ...]]) -> Block:
        """The events of lines of which some are odd, one after the other."""
        block = Block([], [], [])
        stamps = self.stamps  # of the zone that these were found by: an odd line may change it
        for client, stamp, text, line in found:
            self.lines += 1
            try:
                at = stamps[stamp] if client else -1
            except (LookupError, ValueError):
                at, line = -1, f'{client} - - [{stamp}] "{text}"'
            if at < 0:
                self.read_slowly(line, block)
            else:
                block.times.append(at)
                block.clients.append(client)
                block.texts.append(text)
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
            at = self.instant(found["time"])
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

    def instant(self, text: str) -> int:
        """Microseconds since 1970.  Lines to come in the same zone, or in any if zones are ignored, go fast."""
        local, offset = parse_stamp(text)
        if self.zone == "ignored":
            offset = 0
        if not 0 <= local - offset < LATEST:
            raise ValueError(text)
        if len(text) == 26 and not self.wants_facts:
            zone = ANY_ZONE if self.zone == "ignored" else re.escape(text[21:])
            wanted = PIECE % zone
            if self.piece is None or self.piece.pattern != wanted:
                self.piece = re.compile(wanted)
                self.columns = re.compile(COLUMNS % zone)
                self.stamps = Stamps(offset)
        return local - offset

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
        at = instant_of(self.pick(found, "time"), self.zone)
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


class Stamps(dict[str, int]):
    """``01/Aug/1995:23:59:59`` -> microseconds since 1970, in a zone so far from UTC."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.day = ""  # the last that was asked for, and
        self.start = 0  # its beginning

    def __missing__(self, text: str) -> int:
        if text[:11] != self.day:
            self.start = parse_stamp(f"{text[:11]}:00:00:00 +0000")[0] - self.offset
            self.day = text[:11]
        at = self.start + CLOCK[text[11:17]] + SECONDS[text[17:]]
        if not 0 <= at < LATEST:
            raise ValueError(text)
        if len(self) >= MOST_STAMPS:
            self.clear()
        self[text] = at
        return at


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


def detected(text: str) -> str:
    return "json" if text.lstrip()[:1] == "{" else "common"


def parse_stamp(text: str) -> tuple[int, int]:
    """``01/Aug/1995:00:00:01 -0400`` -> the time as written and its distance from UTC, in microseconds."""
    found = STAMP.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, month, year, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    if month not in MONTHS:
        raise ValueError(text)
    leap = min(int(second), 59)
    local = datetime(int(year), MONTHS[month], int(day), int(hour), int(minute), leap, tzinfo=UTC) - EPOCH
    offset = (int(hours) * 60 + int(minutes)) * 60 * SECOND * (-1 if sign == "-" else 1)
    return local // timedelta(microseconds=1) + int((fraction or "0").ljust(6, "0")), offset


def instant_of(value: Any, zone: str) -> int:
    """Microseconds of a JSON time: seconds or milliseconds since 1970 as a number, ISO 8601, or a log's own form."""
    at: int
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"no time that can be read: {value}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        at = round(value * (1000 if abs(value) > 10**11 else SECOND))
    elif not isinstance(value, str):
        raise ValueError(f"no time: expected a number or text, got {shown(value, 30)}")
    else:
        try:
            local, offset = parse_stamp(value)
        except ValueError:
            try:
                stamp = datetime.fromisoformat(value.strip())
            except ValueError:
                raise ValueError(f"no time that can be read: {shown(value, 40)}") from None
            aware = stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)
            offset = (aware.utcoffset() or timedelta()) // timedelta(microseconds=1)
            local = (aware - EPOCH) // timedelta(microseconds=1) + offset
        at = local if zone == "ignored" else local - offset
    if not 0 <= at < LATEST:
        raise ValueError(f"a time between 1970 and 2112, got {shown(value, 40)}")
    return at


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

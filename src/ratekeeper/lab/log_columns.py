"""Many lines of an access log at once, into columns: when, who and the request line.

For lines that look like most: neither identity nor user, a whole second, no quote within the request.  An odd line is
handed back as it stands.  ``native/columns.c`` does the same, several times as fast.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ratekeeper.lab.timestamps import LATEST, parse_stamp
from ratekeeper.native import core
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from typing import Protocol

    # Times, clients and request lines; and odd lines, each with its place among those and its number in the piece.
    Taken = tuple[list[int], list[str], list[str], list[tuple[int, int, bytes]]]

    class ReadsColumns(Protocol):
        def read(self, piece: bytes, /) -> Taken: ...


MOST_STAMPS = 4096
SECONDS = {f":{second:02}": second * SECOND for second in range(60)}
CLOCK = {f":{hour:02}:{minute:02}": (hour * 60 + minute) * 60 * SECOND for hour in range(24) for minute in range(60)}
ALIKE = r' - - \[(.{26})\] "([^"\\\n]+)".*'
# The simplest class is the fastest by far; a line without a space swallows the next, so what was found must be counted.
COLUMNS = re.compile(rf"([^ ]+){ALIKE}\n")
PIECE = re.compile(rf"(?:([^ \n]+){ALIKE}|.*)\n")


class Stamps(dict[str, int]):
    """``01/Aug/1995:23:59:59 -0400`` -> microseconds since 1970, with the zone or as if it were UTC."""

    def __init__(self, zones: bool) -> None:
        self.zones = zones
        self.start = 0  # of the last day that was asked for,
        self.day = ""  # and the day and
        self.zone = ""  # zone themselves

    def __missing__(self, text: str) -> int:
        if text[:11] != self.day or text[20:] != self.zone:
            local, offset = parse_stamp(f"{text[:11]}:00:00:00{text[20:]}")
            self.start = local - offset if self.zones else local
            self.day, self.zone = text[:11], text[20:]
        at = self.start + CLOCK[text[11:17]] + SECONDS[text[17:20]]
        if not 0 <= at < LATEST:
            raise ValueError(text)
        if len(self) >= MOST_STAMPS:
            self.clear()
        self[text] = at
        return at


class Columns:
    """Takes lines of access logs apart, with the zones of their stamps or without."""

    def __init__(self, zones: bool) -> None:
        self.stamps = Stamps(zones)

    def read(self, piece: bytes, /) -> Taken:
        """Times, clients and requests of whole lines; and the odd lines, each with its place and number."""
        text = decoded(piece)
        lines = text.count("\n")
        found = COLUMNS.split(text)  # three words of each line, and what lies between two lines: nothing
        if len(found) == 4 * lines + 1 and found[::4].count("") == lines + 1:
            try:
                return list(map(self.stamps.__getitem__, found[2::4])), found[1::4], found[3::4], []
            except (LookupError, ValueError):  # there is some odd time
                pass
        return self.read_lines(text, piece.split(b"\n"))

    def read_lines(self, text: str, lines: list[bytes]) -> Taken:
        """The same where some line is odd."""
        times: list[int] = []
        clients: list[str] = []
        texts: list[str] = []
        odd = []
        for number, (client, stamp, request) in enumerate(PIECE.findall(text)):
            try:
                times.append(self.stamps[stamp])
            except (LookupError, ValueError):
                odd.append((len(times), number + 1, lines[number]))
            else:
                clients.append(client)
                texts.append(request)
        return times, clients, texts, odd


def decoded(raw: bytes) -> str:
    """The text of a log, whatever bytes stand in it."""
    return raw.decode("utf-8", "backslashreplace")


def columns(zones: bool) -> ReadsColumns:
    """The faster of the two that is there."""
    return Columns(zones) if core is None else core.Columns(zones)

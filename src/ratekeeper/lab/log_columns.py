"""Many lines of an access log at once, into columns: time, client and request line.

This covers the usual line: no identity, no user, whole seconds, no quote or backslash in the request.  Any other line
is returned as it is.  ``native/columns.c`` is the twin, several times as fast.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ratekeeper.lab.timestamps import LATEST, parse_stamp
from ratekeeper.native import core
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from typing import Protocol

    # Times, clients and request lines.  And the unusual lines, each with its place among the others and its number.
    LogColumns = tuple[list[int], list[str], list[str], list[tuple[int, int, bytes]]]

    class ReadsColumns(Protocol):
        def read(self, piece: bytes, /) -> LogColumns: ...


MOST_STAMPS = 4096
SECONDS = {f":{second:02}": second * SECOND for second in range(60)}
CLOCK = {f":{hour:02}:{minute:02}": (hour * 60 + minute) * 60 * SECOND for hour in range(24) for minute in range(60)}
USUAL = r' - - \[(.{26})\] "([^"\\\n]+)".*'
# The simplest character class is the fastest by far.  It lets a line without a space swallow the next line, so the
# matches must be counted.
ALL_USUAL = re.compile(rf"([^ ]+){USUAL}\n")
ANY_LINE = re.compile(rf"(?:([^ \n]+){USUAL}|.*)\n")


class StampCache(dict[str, int]):
    """``01/Aug/1995:23:59:59 -0400`` -> microseconds since 1970, by the written zone or as if it were UTC."""

    def __init__(self, zones: bool) -> None:
        self.zones = zones
        self.midnight = 0  # of the last day, in microseconds
        self.day = ""  # the last day
        self.zone = ""  # and its zone

    def __missing__(self, text: str) -> int:
        if text[:11] != self.day or text[20:] != self.zone:
            local, offset = parse_stamp(f"{text[:11]}:00:00:00{text[20:]}")
            self.midnight = local - offset if self.zones else local
            self.day, self.zone = text[:11], text[20:]
        at = self.midnight + CLOCK[text[11:17]] + SECONDS[text[17:20]]
        if not 0 <= at < LATEST:
            raise ValueError(text)
        if len(self) >= MOST_STAMPS:
            self.clear()
        self[text] = at
        return at


class Columns:
    """Splits lines of access logs into columns; ``zones`` says whether to use the zones of the timestamps."""

    def __init__(self, zones: bool) -> None:
        self.stamps = StampCache(zones)

    def read(self, piece: bytes, /) -> LogColumns:
        """Return the times, clients and requests of complete lines, and the unusual lines."""
        text = decode(piece)
        lines = text.count("\n")
        cells = ALL_USUAL.split(text)  # of each line three groups, and the empty text between two lines
        if len(cells) == 4 * lines + 1 and cells[::4].count("") == lines + 1:
            try:
                return list(map(self.stamps.__getitem__, cells[2::4])), cells[1::4], cells[3::4], []
            except (LookupError, ValueError):  # an unusual timestamp
                pass
        return self.read_lines(text, piece.split(b"\n"))

    def read_lines(self, text: str, lines: list[bytes]) -> LogColumns:
        """Read a piece that has unusual lines."""
        times: list[int] = []
        clients: list[str] = []
        requests: list[str] = []
        unusual = []
        for number, (client, stamp, request) in enumerate(ANY_LINE.findall(text)):
            try:
                times.append(self.stamps[stamp])
            except (LookupError, ValueError):
                unusual.append((len(times), number + 1, lines[number]))
            else:
                clients.append(client)
                requests.append(request)
        return times, clients, requests, unusual


def decode(raw: bytes) -> str:
    """Decode the text of a log, whatever bytes it has."""
    return raw.decode("utf-8", "backslashreplace")


def column_reader(zones: bool) -> ReadsColumns:
    """Return the fastest reader that is available."""
    return Columns(zones) if core is None else core.Columns(zones)

"""Recorded calls from a file: an access log, or a CSV of seconds, client and cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.log_columns import decode
from ratekeeper.lab.log_lines import LineReader
from ratekeeper.lab.log_stream import LogSource, merge_by_time
from ratekeeper.lab.traffic import Traffic, recorded
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from pathlib import Path


def load_trace(path: str | Path) -> Traffic:
    """Load the calls of an access log, or of lines such as ``12.5,ann`` and ``12.75,bob,3``."""
    source = LogSource(str(path), LineReader(str(path)))
    try:
        first = source.stream.peek(512).split(b"\n")[0].strip() if hasattr(source.stream, "peek") else b""
        if is_row(first.decode("utf-8", "replace")):
            rows = [row for piece in source.pieces() for row in decode(piece).splitlines() if row.strip()]
            return recorded([parse_row(row, number, str(path)) for number, row in enumerate(rows, 1)], str(path))
        calls = [
            (at / SECOND, client)
            for block in merge_by_time([source])
            for at, client in zip(block.times, block.clients, strict=True)
        ]
    finally:
        source.close()
    if not calls:
        raise InvalidInput(f"{path}: expected an access log or lines of seconds, client and cost, got neither.")
    return recorded(calls, str(path))


def is_row(line: str) -> bool:
    try:
        float(line.split(",")[0])
    except ValueError:
        return False
    return "," in line


def parse_row(row: str, number: int, path: str) -> tuple[float, str, int]:
    try:
        seconds, client, *cost = [word.strip() for word in row.split(",")]
        call = float(seconds), client, int(cost[0]) if cost else 1
        if not (client and 0 <= call[0] < float("inf") and call[2] >= 1 and len(cost) <= 1):
            raise ValueError
    except (ValueError, OverflowError):
        raise InvalidInput(f"{path}, line {number}: expected seconds, client and cost, got {row[:60]!r}.") from None
    return call

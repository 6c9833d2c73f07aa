"""Log files -> one stream of events in the order of time, in blocks, in constant memory.

Files may be compressed (gzip, zstd, bzip2, xz, told by their first bytes) and ``-`` is the standard input.  Lines
of one log are nearly in order: a server writes a line when a request ends.  So some seconds are held back and
sorted; what comes later still is counted where the stream has arrived, and reported as late.
"""

from __future__ import annotations

import io
import sys
from bisect import bisect_left, bisect_right
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.logs import Block
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.lab.logs import Reader

CHUNK = 1 << 17
LONGEST_LINE = 1 << 16
SLACK = 10 * SECOND


class Source:
    """One log file, read from start to end."""

    def __init__(self, path: str, reader: Reader) -> None:
        self.path = path
        self.reader = reader
        self.late = 0
        self.raw: BinaryIO = open_raw(path)
        self.size = 0 if path == "-" else Path(path).stat().st_size
        self.stream = decompressed(self.raw, path)

    @property
    def position(self) -> int:
        """How many bytes of the file are read; 0 where that cannot be known."""
        return self.raw.tell() if self.size else 0

    def pieces(self) -> Iterator[str]:
        """The text, some whole lines at a time."""
        rest = b""
        while True:
            try:
                chunk = self.stream.read(CHUNK)
            except Exception as error:  # of whichever decompressor: what was read until here is good
                self.reader.refuse(f"the file cannot be read on: {error}", "")
                chunk = b""
            if not chunk:
                if rest:
                    yield decoded(rest) + "\n"
                return
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                rest = (rest + chunk)[:LONGEST_LINE]  # what goes beyond is dropped
                continue
            whole = rest + chunk[:cut]
            rest = chunk[cut:]
            yield decoded(whole)

    def blocks(self) -> Iterator[Block]:
        """Events in order, some at a time."""
        held = Block([], [], [])
        reached = 0
        for piece in self.pieces():
            block = self.reader.read(piece)
            held = (held.followed_by(block) if held else block).in_order()
            if not held:
                continue
            cut = bisect_right(held.times, held.times[-1] - SLACK)
            if cut:
                ready, held = held.part(0, cut), held.part(cut, len(held))
                yield self.not_before(ready, reached)
                reached = ready.times[-1]
        if held:
            yield self.not_before(held, reached)

    def not_before(self, block: Block, reached: int) -> Block:
        """Events that come before what the stream has reached happen now: time does not go back."""
        late = bisect_left(block.times, reached)
        if late:
            self.late += late
            block.times[:late] = [reached] * late
        return block

    def close(self) -> None:
        if self.path != "-":
            self.raw.close()


def decoded(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def open_raw(path: str) -> BinaryIO:
    if path == "-":
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise InvalidInput(f"{path}: expected a log file that can be read, but {error.strerror}.") from error


def decompressed(raw: Any, path: str) -> Any:
    """What reads plain bytes from ``raw``, whatever its first bytes say that it is."""
    if not hasattr(raw, "peek"):  # a standard input that was put in the place of the real one
        raw = io.BufferedReader(raw)
    start = raw.peek(6)[:6]
    if start.startswith(b"\x1f\x8b"):
        import gzip

        return gzip.GzipFile(fileobj=raw)
    if start.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(raw)
    if start.startswith(b"\xfd7zXZ"):
        import lzma

        return lzma.LZMAFile(raw)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard
        except ImportError as error:
            raise InvalidInput(
                f"{path}: expected zstandard to be installed to read it. Run: pip install 'ratekeeper[lab]'"
            ) from error
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return raw


def merged(sources: list[Source]) -> Iterator[Block]:
    """The events of all sources in the order of time."""
    if len(sources) == 1:
        yield from sources[0].blocks()
        return
    waiting = [(stream, block) for source in sources for stream in [source.blocks()] for block in islice(stream, 1)]
    while waiting:
        # Up to the earliest end of a block nothing more can come from any of them.
        horizon = min(block.times[-1] for _, block in waiting)
        ready = Block([], [], [])
        after = []
        for stream, block in waiting:
            cut = bisect_right(block.times, horizon)
            ready = ready.followed_by(block.part(0, cut))
            if cut < len(block):
                after.append((stream, block.part(cut, len(block))))
            else:
                after += [(stream, following) for following in islice(stream, 1)]
        waiting = after
        yield ready.in_order()

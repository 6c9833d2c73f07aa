"""Log files -> one stream of events in the order of time, in blocks, in constant memory.

Files may be compressed (gzip, zstd, bzip2, xz, told by their first bytes) and ``-`` is the standard input.  Lines
of one log are nearly in order: a server writes a line when a request ends.  So some seconds are held back and
sorted; what comes later still is counted where the stream has arrived, and reported as late.  A clock that was set
back runs on from where it was, so that the time between two lines stays true.
"""

from __future__ import annotations

import codecs
import io
import sys
from bisect import bisect_left, bisect_right
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.log_lines import Block
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.lab.log_lines import LineReader

CHUNK = 1 << 17
LONGEST_LINE = 1 << 16
SLACK = 10 * SECOND


class Source:
    """One log file, read from start to end."""

    def __init__(self, path: str, reader: LineReader) -> None:
        self.path = path
        self.reader = reader
        self.late = 0
        self.shift = 0  # microseconds that the clock was set back
        self.set_back = 0  # how often it was
        self.broken = ""  # why the file could not be read to its end
        self.raw: BinaryIO = open_raw(path)
        self.size = 0 if path == "-" else Path(path).stat().st_size
        self.stream = decompressed(self.raw, path)

    @property
    def position(self) -> int:
        """How many bytes of the file are read; 0 where that cannot be known."""
        return self.raw.tell() if self.size else 0

    def pieces(self) -> Iterator[bytes]:
        """Some whole lines at a time."""
        rest = b""
        mark = codecs.BOM_UTF8
        while True:
            try:
                chunk = self.stream.read(CHUNK)
            except Exception as error:  # of whichever decompressor: what was read until here is good
                self.broken = str(error) or type(error).__name__
                chunk = rest = b""
            if not chunk:
                if rest:
                    yield rest.removeprefix(mark) + b"\n"
                return
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                rest = (rest + chunk)[:LONGEST_LINE]  # what goes beyond is dropped
                continue
            whole = rest + chunk[:cut]
            rest = chunk[cut:]
            yield whole.removeprefix(mark)
            mark = b""  # it stands before the first line only

    def blocks(self) -> Iterator[Block]:
        """Events in order, some at a time."""
        held = Block([], [], [])
        reached = 0
        for piece in self.pieces():
            block = self.reader.read(piece)
            if block and (self.shift or block.times[-1] < reached):
                self.set_right(block, reached)
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

    def set_right(self, block: Block, reached: int) -> None:
        """Move what is late as far as the clock went back; a few late lines are no sign of that, most of them are."""
        times = block.times
        behind = [at for at in times if at < reached]
        if len(behind) <= len(times) // 2:
            self.shift = 0
            return
        if behind[-1] + self.shift < reached:
            self.shift = reached - behind[0]
            self.set_back += 1
        block.times = [at + self.shift if at < reached else at for at in times]

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
        return Frames(raw, zstandard.ZstdDecompressor())
    return raw


class Frames:
    """Reads zstd frames, one after the other, and notices one that breaks off, which the library's reader does not."""

    def __init__(self, raw: BinaryIO, decompressor: Any) -> None:
        self.raw = raw
        self.decompressor = decompressor
        self.frame = decompressor.decompressobj()
        self.fresh = True  # nothing of the present frame was read yet
        self.left = b""

    def read(self, size: int) -> bytes:
        """Some bytes, mostly more than ``size``; none at the end."""
        while True:
            chunk = self.left or self.raw.read(size)
            self.left = b""
            if not chunk:
                if self.fresh:
                    return b""
                raise EOFError("Compressed file ended before the end-of-stream marker was reached")
            plain: bytes = self.frame.decompress(chunk)
            self.fresh = False
            if self.frame.eof:
                self.left = self.frame.unused_data
                self.frame, self.fresh = self.decompressor.decompressobj(), True
            if plain:
                return plain


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

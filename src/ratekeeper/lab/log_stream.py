"""Log files -> one stream of events in the order of time, in blocks, in constant memory.

Files may be compressed (gzip, zstd, bzip2 or xz, recognised by their first bytes), and ``-`` is the standard input.
Of a damaged file every complete line before the damage is read.
The lines of a log are nearly in order: a server writes a line when a request ends.  So the last seconds are held back
and sorted.  A line that comes even later is moved to the current time of the stream and counted as late.  If the log
goes back in time, because the server's clock was set back, the later lines are shifted, so that the time between two
lines stays correct.  A log whose lines are in no order can be read whole and sorted, in memory that grows with it.
"""

from __future__ import annotations

import codecs
import io
import sys
from bisect import bisect_left, bisect_right
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ratekeeper.errors import InvalidInput
from ratekeeper.lab.log_lines import Block
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.lab.log_lines import LineReader

CHUNK = 1 << 17
PIECE = 1 << 12  # compressed bytes that are decompressed at once: some compress to a thousandth
LONGEST_LINE = 1 << 16
SLACK = 10 * SECOND  # how long events are held back to be sorted
SORTED_AT_ONCE = 1 << 14  # events of a block of a log that was sorted whole


class LogSource:
    """One log file, read from start to end."""

    def __init__(self, path: str, reader: LineReader, sort: bool = False) -> None:
        self.path = path
        self.reader = reader
        self.sort = sort  # read everything first
        self.late = 0
        self.shift = 0  # microseconds that later lines are moved, because the clock was set back
        self.clock_resets = 0  # how often the clock was set back
        self.error = ""  # why the file could not be read to its end
        self.raw: BinaryIO = open_raw(path)
        self.size = 0 if path == "-" else Path(path).stat().st_size
        self.stream = decompressed(self.raw, path)

    @property
    def position(self) -> int:
        """How many bytes of the file are read; 0 for the standard input."""
        return self.raw.tell() if self.size else 0

    @property
    def damage(self) -> str:
        """Which file could not be read to its end, after how many lines, and why."""
        return f"{self.path}: the file is damaged after {self.reader.lines:,} lines: {self.error}"

    def pieces(self) -> Iterator[bytes]:
        """Yield complete lines, many at a time."""
        rest = b""
        byte_order_mark = codecs.BOM_UTF8
        while True:
            try:
                chunk = self.stream.read(CHUNK)
            except Exception as error:  # each decompressor has errors of its own; what was read so far is good
                self.error = str(error) or type(error).__name__
                chunk = rest = b""
            if not chunk:
                if rest:
                    yield rest.removeprefix(byte_order_mark) + b"\n"
                return
            cut = chunk.rfind(b"\n") + 1
            if not cut:
                rest = (rest + chunk)[:LONGEST_LINE]  # the rest of a line that long is dropped
                continue
            piece = rest + chunk[:cut]
            rest = chunk[cut:]
            yield piece.removeprefix(byte_order_mark)
            byte_order_mark = b""  # only the first line can have one

    def blocks(self) -> Iterator[Block]:
        """Yield the events in order, many at a time."""
        pending = Block([], [], [])
        if self.sort:
            for piece in self.pieces():
                pending.add(self.reader.read(piece))
            pending = pending.in_order()
            for start in range(0, len(pending), SORTED_AT_ONCE):
                yield pending.part(start, start + SORTED_AT_ONCE)
            return
        reached = 0
        for piece in self.pieces():
            block = self.reader.read(piece)
            if block and (self.shift or block.times[-1] < reached):
                self.correct_clock(block, reached)
            pending = (pending.followed_by(block) if pending else block).in_order()
            if not pending:
                continue
            cut = bisect_right(pending.times, pending.times[-1] - SLACK)
            if cut:
                ready, pending = pending.part(0, cut), pending.part(cut, len(pending))
                yield self.not_before(ready, reached)
                reached = ready.times[-1]
        if pending:
            yield self.not_before(pending, reached)

    def correct_clock(self, block: Block, reached: int) -> None:
        """Shift a block whose clock was set back.  A few late lines are no sign of that, a majority of them is."""
        times = block.times
        behind = [at for at in times if at < reached]
        if len(behind) <= len(times) // 2:
            self.shift = 0
            return
        if behind[-1] + self.shift < reached:
            self.shift = reached - behind[0]
            self.clock_resets += 1
        block.times = [at + self.shift if at < reached else at for at in times]

    def not_before(self, block: Block, reached: int) -> Block:
        """Move late events to the time that the stream has reached: time must not run backwards."""
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
        raise InvalidInput(f"cannot read {path}: {(error.strerror or str(error)).lower()}.") from error


def decompressed(raw: Any, path: str) -> Any:
    """Wrap ``raw`` in the decompressor that its first bytes ask for."""
    if not hasattr(raw, "peek"):  # the standard input was replaced, in a test for example
        raw = io.BufferedReader(raw)
    start = raw.peek(6)[:6]
    if start.startswith(b"\x1f\x8b"):
        import zlib

        return CompressedReader(raw, lambda: zlib.decompressobj(31))  # 31: gzip's header and checksum
    if start.startswith(b"BZh"):
        import bz2

        return CompressedReader(raw, bz2.BZ2Decompressor)
    if start.startswith(b"\xfd7zXZ"):
        import lzma

        return CompressedReader(raw, lzma.LZMADecompressor)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard
        except ImportError as error:
            raise InvalidInput(
                f"{path}: expected zstandard to be installed, to decompress it. Run: pip install 'ratekeeper[lab]'"
            ) from error
        return CompressedReader(raw, zstandard.ZstdDecompressor().decompressobj)
    return raw


class CompressedReader:
    """Reads compressed members, one after the other, up to the last byte that a damaged file still gives.

    A decompressor that finds damage loses what it had decompressed in the same call.  So the file is then read again
    from the start of its member, and its last piece byte by byte.  Of a pipe one piece is lost, unless it is gzip.
    """

    def __init__(self, raw: BinaryIO, new_member: Callable[[], Any]) -> None:
        self.raw = raw
        self.new_member = new_member
        self.member = new_member()
        self.is_member_begun = False
        self.members = 0  # that are complete
        self.unread = b""
        self.peeked = b""
        self.error: Exception | None = None
        self.position = raw.tell() if raw.seekable() else 0  # of the next byte to decompress
        self.member_start = self.position

    def read(self, size: int) -> bytes:
        """Return about ``size`` bytes, none at the end; raise the error of a damaged file after all its bytes."""
        texts = [self.peeked]
        length = len(self.peeked)
        self.peeked = b""
        while length < size and self.error is None:
            text = self.read_piece()
            if text is None:
                break
            texts.append(text)
            length += len(text)
        if self.error is not None and not length:
            raise self.error
        return b"".join(texts)

    def peek(self, size: int) -> bytes:
        """Return about ``size`` bytes that the next call of ``read`` returns again."""
        with suppress(Exception):  # it is raised again by ``read``
            self.peeked = self.read(size)
        return self.peeked

    def read_piece(self) -> bytes | None:
        """Decompress one piece; None at the end of the file."""
        piece = self.unread or self.raw.read(PIECE)
        self.unread = b""
        if not piece:
            if self.is_member_begun:
                self.error = EOFError("Compressed file ended before the end-of-stream marker was reached")
            return None
        if self.members and not self.is_member_begun:  # tapes and some tools pad a file with zeros
            self.position += len(piece) - len(piece.lstrip(b"\0"))
            self.member_start = self.position
            piece = piece.lstrip(b"\0")
            if not piece:
                return b""
        self.is_member_begun = True
        before = self.member.copy() if hasattr(self.member, "copy") else None
        try:
            text: bytes = self.member.decompress(piece)
        except Exception as error:  # each decompressor has errors of its own
            self.error = error
            return self.rescued(before or self.member_until_piece(), piece)
        self.position += len(piece)
        if self.member.eof:
            self.unread = self.member.unused_data
            self.position -= len(self.unread)
            self.member, self.is_member_begun = self.new_member(), False
            self.member_start = self.position
            self.members += 1
        return text

    def member_until_piece(self) -> Any:
        """Read the member again up to the present piece; None if the file is a pipe."""
        if not self.raw.seekable():
            return None
        member = self.new_member()
        self.raw.seek(self.member_start)
        rest = self.position - self.member_start
        while rest and (piece := self.raw.read(min(PIECE, rest))):
            member.decompress(piece)
            rest -= len(piece)
        return member

    def rescued(self, member: Any, piece: bytes) -> bytes:
        """What the bytes of a piece give, up to the one that is damaged."""
        text = b""
        with suppress(Exception):
            for index in range(len(piece) if member is not None else 0):
                text += member.decompress(piece[index : index + 1])
        return text


def merge_by_time(sources: list[LogSource]) -> Iterator[Block]:
    """Yield the events of all sources in the order of time."""
    if len(sources) == 1:
        yield from sources[0].blocks()
        return
    streams = [(stream, block) for source in sources for stream in [source.blocks()] for block in islice(stream, 1)]
    while streams:
        # No source can yield anything earlier than the end of its current block.
        horizon = min(block.times[-1] for _, block in streams)
        ready = Block([], [], [])
        remaining = []
        for stream, block in streams:
            cut = bisect_right(block.times, horizon)
            ready = ready.followed_by(block.part(0, cut))
            if cut < len(block):
                remaining.append((stream, block.part(cut, len(block))))
            else:
                remaining += [(stream, following) for following in islice(stream, 1)]
        streams = remaining
        yield ready.in_order()

"""Replies from the bytes of a server: bounded, whatever the server sends.  No I/O.

``ReplyFrames`` finds where replies end, and raises at the first byte that no reply has, or at a length beyond the
bounds.  So hiredis, which makes values of replies, only ever sees whole and small ones, and no server can make this
process keep or allocate more.  The C twins are native/resp.h and native/reader.c.
"""

from __future__ import annotations

from hiredis import HiredisError, Reader

from ratekeeper.native import core
from ratekeeper.stores.redis.resp import BrokenReply, ErrorReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOST_BYTES = 64 << 20  # of one reply: eight logs of the longest kind
MOST_LINE = 65536
MOST_ELEMENTS = 1 << 20
MOST_DEPTH = 8
LENGTH_DIGITS, INTEGER_DIGITS = 8, 18
BULK, ARRAY, INTEGER, STATUS, ERROR = b"$*:+-"
FAULT = "no reply begins or goes on like that"


class PureReplyFrames:
    """Which of the bytes that a server sent are whole replies."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.at = 0  # the next element begins here
        self.start = 0  # the present reply begins here
        self.elements = 0  # of the present reply, so far
        self.missing: list[int] = []  # the arrays that are open, and how many elements each still lacks
        self.is_broken = False

    def whole(self, part: bytes) -> bytes:
        """The replies that are whole by now, as they were sent; ValueError if they are none."""
        kept = self.kept
        kept += part
        if not self.is_broken:
            try:
                while self.take_element(kept):
                    pass
            except ValueError:
                self.is_broken = True
        if self.is_broken:
            kept.clear()
            raise ValueError(FAULT)
        whole = bytes(kept[: self.start])
        del kept[: self.start]
        self.at -= self.start
        self.start = 0
        return whole

    def take_element(self, kept: bytearray) -> bool:
        """Step over the next element; False if it is not there yet."""
        at = self.at
        line = kept.find(b"\n", at, at + MOST_LINE)
        if line < 0:
            if len(kept) - at >= MOST_LINE:
                raise ValueError(FAULT)
            return False
        kind, after, number = kept[at], line + 1, 0
        if line - at < 2 or kept[line - 1] != 13 or self.elements >= MOST_ELEMENTS:
            raise ValueError(FAULT)
        if kind in (BULK, ARRAY):
            number = length(kept[at + 1 : line - 1], MOST_BYTES if kind == BULK else MOST_ELEMENTS)
            if kind == BULK and number >= 0:
                after += number + 2
        elif kind == INTEGER:
            if not is_digits(kept[at + 1 : line - 1].removeprefix(b"-"), INTEGER_DIGITS):
                raise ValueError(FAULT)
        elif kind != STATUS and kind != ERROR:
            raise ValueError(FAULT)
        if after - self.start > MOST_BYTES:
            raise ValueError(FAULT)
        if after > len(kept):
            return False
        if kind == BULK and number >= 0 and kept[after - 2 : after] != b"\r\n":
            raise ValueError(FAULT)
        self.at = after
        self.elements += 1
        if kind == ARRAY and number > 0:
            if len(self.missing) == MOST_DEPTH:
                raise ValueError(FAULT)
            self.missing.append(number)
        else:
            self.complete_element()
        return True

    def complete_element(self) -> None:
        """One element is there: so are the arrays that it completes, and maybe the reply."""
        missing = self.missing
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                return
            missing.pop()
        self.start = self.at
        self.elements = 0


def is_digits(text: bytearray, most: int) -> bool:
    return text.isdigit() and len(text) <= most


def length(text: bytearray, most: int) -> int:
    """The length of a text or an array; -1 for the null."""
    if text == b"-1":
        return -1
    if not is_digits(text, LENGTH_DIGITS) or int(text) > most:
        raise ValueError(FAULT)
    return int(text)


ReplyFrames = PureReplyFrames if core is None else core.ReplyFrames


class ReplyReader:
    """Replies, one part after the other."""

    __slots__ = ("frames", "reader")

    def __init__(self) -> None:
        self.frames = ReplyFrames()
        self.reader = Reader(replyError=ErrorReply)

    def feed(self, part: bytes) -> list[Any]:
        """The replies that are whole by now; raises BrokenReply."""
        try:
            whole = self.frames.whole(part)
            reader, replies = self.reader, []
            reader.feed(whole)
            while (reply := reader.gets()) is not False:
                replies.append(reply)
        except (ValueError, HiredisError) as error:
            raise BrokenReply(f"spoke another protocol ({error})") from error
        return replies


def exactly(replies: list[Any], count: int) -> list[Any]:
    """The replies if there are so many, else BrokenReply: then nobody knows which belongs to which command."""
    if len(replies) != count:
        raise BrokenReply(f"sent {len(replies)} replies to {count} commands")
    return replies

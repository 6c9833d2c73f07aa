"""From the bytes of a Redis client to its commands.  No I/O: bytes go in, in parts of any size, and commands come out.

A command is an array of texts, ``*2\\r\\n$4\\r\\nECHO\\r\\n$2\\r\\nhi\\r\\n``, and its words are binary: nothing that
a word contains can end it, or begin another command.  A client that has sent no array yet may type commands instead,
one per line.

Laws: the commands do not depend on how the bytes are cut into parts.  The parser knows by its own count, never by what
is left in a buffer, whether it stands between two commands or inside one.  What it keeps is bounded by ``most_bytes``
and ``most_words``, which it compares with what a command announces, before the bytes arrive.  Time is linear in the
bytes.
"""

from __future__ import annotations

STAR, DOLLAR = b"*$"
LINE_END = b"\r\n"
LONGEST_NUMBER = 12  # bytes of a line that announces an array or a word, with its letter
LONGEST_LINE = 4096  # bytes that a person types
NUMBERS = {b"%d" % number: number for number in range(1025)}  # most lengths: quicker than to parse them
WORD_OVERHEAD = 64  # bytes that a word takes beside its own


class ProtocolError(Exception):
    """These bytes are no command, and where the next one begins is unknown."""


class CommandParser:
    """The commands of one client: ``feed`` it what arrives, then call ``next_command`` until it returns None."""

    __slots__ = (
        "at", "buffer", "count", "has_sent_array", "is_typed", "missing", "most_bytes", "most_words", "size", "word",
        "words",
    )  # fmt: skip

    def __init__(self, most_bytes: int, most_words: int) -> None:
        self.most_bytes = most_bytes
        self.most_words = most_words
        self.buffer = b""  # what was fed last, behind the beginning of a line that was cut
        self.at = 0  # the first byte of it that is not parsed yet
        self.count = 0  # words of the present array; 0 between two commands
        self.words: list[bytes] = []  # those that are complete
        self.word: bytearray | None = None  # a word that was cut, and ``missing`` bytes of it with its line end
        self.missing = 0
        self.size = 0  # bytes of the words so far, and of the present one as announced
        self.has_sent_array = False
        self.is_typed = False  # whether the last command was typed

    @property
    def is_between(self) -> bool:
        """Whether every byte so far belongs to a complete command."""
        return self.at >= len(self.buffer) and not self.count

    @property
    def held(self) -> int:
        """Bytes kept for a command that is not complete."""
        return len(self.buffer) - self.at + self.size + WORD_OVERHEAD * self.count

    def feed(self, part: bytes) -> None:
        """Add bytes, after ``next_command`` has returned None: then at most a cut line is left of those before."""
        self.buffer = self.buffer[self.at :] + part if self.at < len(self.buffer) else part
        self.at = 0

    def next_command(self) -> list[bytes] | None:
        """The words of the next complete command, at least one; None if there is none yet."""
        while not self.count:
            if self.at >= len(self.buffer):
                return None
            if self.buffer[self.at] == STAR:
                if not self.begin_array():
                    return None
            else:
                typed = self.typed()
                if typed or typed is None:
                    return typed
        if not self.read_words():
            return None
        words, self.words = self.words, []
        self.count = self.size = 0
        self.is_typed = False
        return words

    def begin_array(self) -> bool:
        """Read the line that begins an array; False if it is cut.  An empty array is no command, as in Redis."""
        number = self.number("a command of fewer words")
        if number is None:
            return False
        if number > self.most_words:
            raise ProtocolError(f"expected a command of at most {self.most_words} words")
        self.has_sent_array = True
        self.count = max(0, number)
        return True

    def read_words(self) -> bool:
        """Read the words of the present array; False if they are not all here."""
        if self.word is not None and not self.complete_word(self.word):
            return False
        words, buffer, at, size = self.words, self.buffer, self.at, self.size
        numbers, find = NUMBERS, buffer.find
        for _ in range(self.count - len(words)):
            line_end = find(LINE_END, at, at + LONGEST_NUMBER + 2)
            length = numbers.get(buffer[at + 1 : line_end])
            if length is None or line_end < 0 or buffer[at] != DOLLAR:
                self.at, self.size = at, size
                length = self.announced_length()
                if length is None:
                    return False
            size += length
            if size > self.most_bytes:
                raise ProtocolError(f"expected a command of at most {self.most_bytes} bytes")
            start = line_end + 2
            end = start + length
            at = end + 2
            if buffer[end:at] == LINE_END:
                words.append(buffer[start:end])
            elif at <= len(buffer):
                raise ProtocolError("expected a line end behind a word of the announced length")
            else:
                self.word, self.missing = bytearray(buffer[start:]), at - len(buffer)
                self.buffer, self.at, self.size = b"", 0, size
                return False
        self.at = at
        return True

    def announced_length(self) -> int | None:
        """The length on the line that begins here; None if the line is cut."""
        if self.at >= len(self.buffer):
            return None
        letter = self.buffer[self.at]
        if letter != DOLLAR:
            raise ProtocolError(f"expected '$', got {chr(letter)!r}")
        length = self.number("a shorter command")
        if length is not None and length < 0:
            raise ProtocolError("expected the length of a word, got a negative one")
        return length

    def complete_word(self, word: bytearray) -> bool:
        """Add what has arrived to a word that was cut; False if more is missing."""
        part = self.buffer[self.at : self.at + self.missing]
        word += part
        self.at += len(part)
        self.missing -= len(part)
        if self.missing:
            return False
        if not word.endswith(LINE_END):
            raise ProtocolError("expected a line end behind a word of the announced length")
        self.words.append(bytes(word[:-2]))
        self.word = None
        return True

    def number(self, wanted: str) -> int | None:
        """The number on the line that begins here, behind its letter; None if the line is cut."""
        buffer, at = self.buffer, self.at
        end = buffer.find(LINE_END, at, at + LONGEST_NUMBER + 2)
        if end < 0:
            if len(buffer) - at >= LONGEST_NUMBER + 2:
                raise ProtocolError(f"expected {wanted}")
            return None
        digits = buffer[at + 1 : end]
        number = NUMBERS.get(digits)
        if number is None:
            if not digits.removeprefix(b"-").isdigit():
                raise ProtocolError("expected a whole number")
            number = int(digits)
        self.at = end + 2
        return number

    def typed(self) -> list[bytes] | None:
        """The words of a line that a person typed, none of an empty one; None if the line is cut.

        A client that has sent an array is a program, and a program's data must never be run as a command.
        """
        buffer, at = self.buffer, self.at
        first = buffer[at]
        is_empty = first in LINE_END  # redis-cli --pipe sends an empty line before its last command
        if not is_empty and (self.has_sent_array or not chr(first).isalpha() or first > 127):
            raise ProtocolError(f"expected '*', got {chr(first)!r}")
        end = buffer.find(b"\n", at, at + (2 if is_empty else LONGEST_LINE))
        if end < 0:
            if len(buffer) - at >= (2 if is_empty else LONGEST_LINE):
                raise ProtocolError("expected a shorter line")
            return None
        self.at = end + 1
        self.is_typed = True
        words = buffer[at:end].split()
        if is_empty and words:
            raise ProtocolError("expected an empty line")
        return words

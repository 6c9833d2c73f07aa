"""Commands as the protocol of Redis (RESP) writes them, and the replies that are errors."""

from __future__ import annotations

from functools import lru_cache

MOST_REQUESTS = 64  # of one command: well below a millisecond of the server's time.  MOST_CALLS in line.h

LONGEST_ERROR = 200  # letters of an error reply that are shown


class ErrorReply(Exception):
    """What the server says instead of an answer: one short, printable line, whatever was sent."""

    def __init__(self, text: str) -> None:
        text = "".join(
            [letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:LONGEST_ERROR]]
        )
        super().__init__(text)


class BrokenReply(ConnectionError):
    """What the server sent is no reply, or none to what was asked: the connection is of no use any more."""


def bulk(word: bytes) -> bytes:
    """One word of a command."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


@lru_cache(1024)
def number(value: int) -> bytes:
    """A whole number as a word; mostly small counts, which are made once."""
    return bulk(b"%d" % value)


def encode_command(*words: bytes) -> bytes:
    """A whole command."""
    return b"*%d\r\n" % len(words) + b"".join([bulk(word) for word in words])

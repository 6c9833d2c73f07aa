"""Commands as the protocol of Redis (RESP) writes them."""

from __future__ import annotations

from functools import lru_cache

MOST_REQUESTS = 64  # of one command: well below a millisecond of the server's time.  MOST_CALLS in line.h


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

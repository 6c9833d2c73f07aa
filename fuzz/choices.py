"""Structured choices out of the bytes of a fuzzer: small changes of the bytes are small changes of the choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """Reads choices from the front of ``data``; when the bytes are used up, every choice is the first one."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def number(self, size: int = 1) -> int:
        taken = self.take(size)
        return int.from_bytes(taken, "little")

    def of(self, options: Sequence[T]) -> T:
        return options[self.number() % len(options)]

    def take(self, size: int) -> bytes:
        taken = self.data[self.at : self.at + size]
        self.at += len(taken)
        return taken

    def piece(self, longest: int = 64) -> bytes:
        """Bytes with their length in front."""
        return self.take(self.number() % (longest + 1))

    def text(self, longest: int = 64) -> str:
        return self.piece(longest).decode("utf-8", "surrogateescape")

    def rest(self) -> bytes:
        return self.take(len(self.data))

    def __bool__(self) -> bool:
        return self.at < len(self.data)


def segments(stream: bytes, cuts: bytes) -> Iterator[bytes]:
    """``stream`` in the parts that ``cuts`` chooses, again and again; a cut of 0 is a long part."""
    at, turn = 0, 0
    while at < len(stream):
        size = (cuts[turn % len(cuts)] if cuts else 0) or 1500
        yield stream[at : at + size]
        at += size
        turn += 1

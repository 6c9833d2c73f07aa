"""HTTP/1.1 answers as bytes.  What every answer carries is put together once, not for each."""

from __future__ import annotations

from email.utils import formatdate
from http import HTTPStatus
from json import JSONEncoder, dumps
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

JSON = b"application/json"
PROBLEM = b"application/problem+json"
TEXT = b"text/plain; charset=utf-8"

REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}


class Heads:
    """The first lines of an answer by status and media type, with the date of this second."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[tuple[int, bytes], bytes] = {}

    def tick(self) -> None:
        """Forget the heads: the second is over, and with it their date."""
        self.known.clear()

    def head(self, status: int, media: bytes) -> bytes:
        found = self.known.get((status, media))
        if found is None:
            found = b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: ratekeeper\r\n" % (
                status,
                REASONS.get(status, b"Refused"),
                formatdate(usegmt=True).encode(),
            )
            if media:
                found += b"content-type: " + media + b"\r\n"
            if media != b"text/html; charset=utf-8":
                found += b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"
            self.known[status, media] = found + b"content-length: "
        return self.known[status, media]


HEADS = Heads()


def answer(status: int, body: bytes, media: bytes = JSON, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole response."""
    head = HEADS.head(status, media)
    if not fields:
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)
    more = b"".join([b"%b: %b\r\n" % field for field in fields])
    return b"%b%d\r\n%b\r\n%b" % (head, len(body), more, body)


def problem(status: int, detail: str, fields: Iterable[tuple[bytes, bytes]] = (), **more: object) -> bytes:
    """An error as RFC 9457 wants it."""
    title = REASONS[status].decode()
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return answer(status, dumps(body).encode() + b"\n", PROBLEM, fields)


encode = JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def as_json(value: object) -> bytes:
    return encode(value).encode()

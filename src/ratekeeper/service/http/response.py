"""HTTP/1.1 responses as bytes.  The header lines that responses share are built once a second."""

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
    """The first lines of a response by status and media type, with the date of this second."""

    __slots__ = ("cached",)

    def __init__(self) -> None:
        self.cached: dict[tuple[int, bytes], bytes] = {}

    def tick(self) -> None:
        """Forget all heads: the second is over, and with it their date."""
        self.cached.clear()

    def head(self, status: int, media: bytes) -> bytes:
        """Build a head, and cache it."""
        head = b"HTTP/1.1 %d %b\r\ndate: %b\r\nserver: ratekeeper\r\n" % (
            status,
            REASONS.get(status, b"Refused"),
            formatdate(usegmt=True).encode(),
        )
        if media:
            head += b"content-type: " + media + b"\r\n"
        if media != b"text/html; charset=utf-8":
            head += b"x-content-type-options: nosniff\r\ncache-control: no-store\r\n"
        head += b"content-length: "
        self.cached[status, media] = head
        return head


HEADS = Heads()


def response(status: int, body: bytes, media: bytes = JSON, fields: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A complete response."""
    head = HEADS.cached.get((status, media)) or HEADS.head(status, media)
    if not fields:
        return b"%b%d\r\n\r\n%b" % (head, len(body), body)
    more = b"".join([b"%b: %b\r\n" % field for field in fields])
    return b"%b%d\r\n%b\r\n%b" % (head, len(body), more, body)


def problem(status: int, detail: str, fields: Iterable[tuple[bytes, bytes]] = (), **more: object) -> bytes:
    """An error as a problem document (RFC 9457)."""
    title = REASONS[status].decode()
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **more}
    return response(status, dumps(body).encode() + b"\n", PROBLEM, fields)


encode = JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False).encode


def as_json(value: object) -> bytes:
    return encode(value).encode("utf-8", "backslashreplace")  # half a surrogate pair must not hide the rest

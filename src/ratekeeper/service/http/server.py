"""The HTTP door: bytes -> calls -> answers.  What each call means is the route's business."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httptools

from ratekeeper.service.connection import ClientConnection, Listener, log
from ratekeeper.service.http.response import HEADS, problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from ratekeeper.service.options import Bounds

    Answer: TypeAlias = "bytes | Awaitable[bytes] | Stream"
    Route = Callable[["Call"], Answer]
    Head = tuple[str, str, str, list[tuple[bytes, bytes]], int]  # of a call, and how long its body is

BUSY = "The service has as much to do as it can. Try again in a moment."
FAILED = "The service failed. The cause is in its log."
CLOSE = (b"connection", b"close")
MOST_HEADERS = 200
MOST_HEADS = 512  # that are remembered
LONGEST_HEAD = 2048
END = b"\r\n\r\n"
SPECIAL = frozenset({b"connection", b"expect", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"})


class Call:
    """One HTTP request.  ``path`` and ``query`` are as sent; header names are in lower case."""

    __slots__ = ("body", "headers", "method", "path", "peer", "query")

    def __init__(
        self, method: str, path: str, query: str, headers: list[tuple[bytes, bytes]], body: bytes, peer: str | None
    ) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = body
        self.peer = peer

    def value(self, name: bytes) -> str | None:
        """A header that came once; None where it is missing, or there are several to choose from."""
        found = [value for header, value in self.headers if header == name]
        return found[0].decode("latin-1").strip() or None if len(found) == 1 else None


class Stream:
    """An answer without an end: ``head`` first, then whatever ``run`` writes until it returns or the client leaves."""

    __slots__ = ("head", "run")

    def __init__(self, head: bytes, run: Callable[[HttpConnection], Awaitable[None]]) -> None:
        self.head = head
        self.run = run


class TooLarge(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class HttpConnection(ClientConnection):
    """One HTTP client."""

    door: HttpListener

    def __init__(self, door: HttpListener) -> None:
        super().__init__(door)
        self.parser = httptools.HttpRequestParser(self)
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.size = 0
        self.most_head = door.bounds.head
        self.expects = False
        self.stream: asyncio.Task[None] | None = None
        self.begun = b""  # what was received, where it begins with a request

    def busy(self) -> bytes:
        return problem(503, BUSY, [(b"retry-after", b"1"), CLOSE])

    def connection_lost(self, error: Exception | None) -> None:
        if self.stream is not None:
            self.stream.cancel()
        super().connection_lost(error)

    def data_received(self, part: bytes) -> None:
        if self.is_last:
            return
        if not self.is_receiving:
            part = self.read_known(part)
            if not part:
                self.flush()
                return
            self.begun = part
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self.refuse(400, "upgrade: expected plain HTTP/1.1, got another protocol.")
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, TooLarge):
                self.refuse(cause.status, "The request is larger than this service takes.")
            else:
                self.refuse(400, "expected HTTP/1.1, got something else.")
        self.begun = b""
        self.flush()

    def read_known(self, part: bytes) -> bytes:
        """Answer the requests whose head, to the byte, was parsed before; what is left must be parsed."""
        door = self.door
        while True:
            end = part.find(END)
            known = door.heads.get(part[:end]) if end > 0 else None
            if known is None:
                return part
            method, path, query, headers, length = known
            end += 4
            if len(part) < end + length:
                return part
            self.since = door.loop.time()
            self.take(Call(method, path, query, headers, part[end : end + length], self.peer), not door.is_draining)
            part = part[end + length :]
            if not part or self.is_last:
                return b""

    # What httptools calls, in this order, for each request.

    def on_message_begin(self) -> None:
        self.target = b""
        self.headers = []
        self.parts = []
        self.size = 0
        self.is_receiving = True
        self.since = self.door.loop.time()

    def on_url(self, part: bytes) -> None:
        self.target += part
        self.size += len(part)
        if self.size > self.most_head:
            raise TooLarge(431)

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        headers = self.headers
        headers.append((name, value))
        self.size = size = self.size + len(name) + len(value)
        if size > self.most_head or len(headers) > MOST_HEADERS:
            raise TooLarge(431)
        if name == b"expect":
            self.expects = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self.size = 0
        if self.expects:
            self.expects = False
            if not self.queue:
                self.ready.append(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.flush()

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self.door.bounds.body:
            raise TooLarge(413)
        self.parts.append(part)

    def on_message_complete(self) -> None:
        if self.is_last:
            return
        self.is_receiving = False
        parser, parts, door = self.parser, self.parts, self.door
        method = parser.get_method().decode("ascii")
        body = (parts[0] if len(parts) == 1 else b"".join(parts)) if parts else b""
        path, _, query = self.target.decode("latin-1").partition("?")
        if not path.startswith("/"):
            path = origin_form(path)
        keep = parser.should_keep_alive() and not door.is_draining
        call = Call(method, path, query, self.headers, body, self.peer)
        if self.begun and keep:
            door.learn(self.begun, call)
        self.begun = b""  # what follows in the same part is no beginning
        self.take(call, keep)

    def take(self, call: Call, keep: bool) -> None:
        """Answer one request, now or later; ``keep``: and go on with the next."""
        door, method = self.door, call.method
        found: Any
        if door.waiting >= door.bounds.waiting:
            door.turned_away[door.name] += 1
            found = problem(503, BUSY, [(b"retry-after", b"1")])
        else:
            try:
                found = door.route(call)
            except Exception as error:
                found = fell(error, method, keep)
        if found.__class__ is bytes:
            self.put(found if keep and method != "HEAD" else shaped(found, method, keep))
        elif isinstance(found, Stream):
            self.begin(found)
            return
        else:
            self.wait(later(found, method, keep), lambda error: fell(error, method, keep))
        if not keep:
            self.is_last = True

    @property
    def is_engaged(self) -> bool:
        return self.stream is not None

    def begin(self, stream: Stream) -> None:
        """Give the rest of this connection to a stream."""
        self.is_last = True
        self.ready.append(stream.head)
        self.door.streams += 1

        async def run() -> None:
            try:
                await stream.run(self)
            finally:
                self.door.streams -= 1
                self.transport.close()

        self.stream = self.door.loop.create_task(run())

    def refuse(self, status: int, detail: str) -> None:
        """Answer what cannot be read, and hang up: what follows cannot be told apart from it."""
        if not self.is_last:
            self.is_last = self.is_receiving = True
            self.put(problem(status, detail, [CLOSE]))

    def too_slow(self) -> None:
        self.refuse(408, "The request did not arrive in time.")
        self.flush()

    def finish(self) -> None:
        if self.stream is not None:
            self.stream.cancel()
        else:
            super().finish()


class HttpListener(Listener):
    """HTTP/1.1.  ``route`` turns a call into its answer."""

    name = "http"
    guest = HttpConnection

    def __init__(self, route: Route, bounds: Bounds, turned_away: dict[str, int] | None = None) -> None:
        super().__init__(bounds, turned_away)
        self.route = route
        self.streams = 0
        self.heads: dict[bytes, Head] = {}

    def learn(self, part: bytes, call: Call) -> None:
        """Remember the head of ``part``, all of which was this call: most clients send the same one every time."""
        head, _, body = part.partition(END)
        if len(head) > LONGEST_HEAD or not head.startswith(call.method.encode()) or len(body) != len(call.body):
            return
        lengths = [value for name, value in call.headers if name == b"content-length"]
        if lengths != ([b"%d" % len(body)] if lengths or body else []):
            return
        if any(name in SPECIAL for name, _ in call.headers):
            return
        if len(self.heads) >= MOST_HEADS:
            self.heads.clear()
        self.heads[head] = call.method, call.path, call.query, call.headers, len(body)

    def sweep(self) -> None:
        HEADS.tick()  # the date of the answers
        super().sweep()


async def later(found: Awaitable[bytes], method: str, keep: bool) -> bytes:
    return shaped(await found, method, keep)


def fell(error: Exception, method: str, keep: bool) -> bytes:
    log.error("http: a call failed", exc_info=error)
    return shaped(problem(500, FAILED), method, keep)


def shaped(found: bytes, method: str, keep: bool) -> bytes:
    """The answer as this request wants it: without a body to HEAD, with notice where it is the last."""
    if method == "HEAD":
        found = found[: found.index(b"\r\n\r\n") + 4]
    return found if keep else found.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


def origin_form(target: str) -> str:
    """``http://host/path`` -> ``/path``; anything else is nobody's path."""
    _, found, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if found else target

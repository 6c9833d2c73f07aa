"""The HTTP/1.1 listener: bytes -> calls -> responses.  The routes know what a call means."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools

from ratekeeper.service.connection import ClientConnection, PendingResponse
from ratekeeper.service.http.response import HEADS, problem
from ratekeeper.service.listener import SLICE, Listener

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeAlias

    from ratekeeper.service.faults import Faults
    from ratekeeper.service.options import Bounds

    AnyResponse: TypeAlias = "bytes | PendingResponse | Awaitable[bytes] | Stream"
    Route = Callable[["Call"], AnyResponse]
    Screen = Callable[["Call"], bytes | None]
    Head = tuple[str, str, str, list[tuple[bytes, bytes]], int]  # method, path, query, headers, length of the body

BUSY = "The service is at capacity. Try again in a moment."
TOO_LARGE = "The request is larger than this service accepts."
FAILED = "The service failed. Its log says why."
CLOSE = (b"connection", b"close")
MOST_HEADERS = 200
MOST_HEADS = 512  # cached ones
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
        """The value of a header; None if it is missing, empty, or sent more than once."""
        values = [value for header, value in self.headers if header == name]
        return values[0].decode("latin-1").strip() or None if len(values) == 1 else None


class Stream:
    """An endless response: ``head`` first, then what ``run`` writes until it returns or the client leaves."""

    __slots__ = ("head", "run")

    def __init__(self, head: bytes, run: Callable[[HttpConnection], Awaitable[None]]) -> None:
        self.head = head
        self.run = run


class TooLarge(Exception):
    """A request is above a bound; raised through httptools."""

    def __init__(self, status: int) -> None:
        self.status = status


class HttpConnection(ClientConnection):
    """One HTTP client."""

    listener: HttpListener
    drains_for = float("inf")  # the next answer says that the connection ends

    def __init__(self, listener: HttpListener) -> None:
        super().__init__(listener)
        self.parser = httptools.HttpRequestParser(self)
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: bytes | bytearray = b""
        self.size = 0
        self.most_head = listener.bounds.head
        self.expects = False
        self.stream: asyncio.Task[None] | None = None
        self.received = b""  # the present read, if a request begins with it
        self.arrived = 0  # bytes, with the read in which the present request began
        self.is_in_head = False

    def busy_response(self) -> bytes:
        return problem(503, BUSY, [(b"retry-after", b"1"), CLOSE])

    def connection_lost(self, error: Exception | None) -> None:
        if self.stream is not None:
            self.stream.cancel()
        super().connection_lost(error)

    def receive(self, part: bytes) -> None:
        listener = self.listener
        if self.is_receiving:
            self.arrived += len(part)
            if self.is_in_head and self.arrived > self.most_head + SLICE:  # also within one endless header
                self.refuse(431, TOO_LARGE)
                self.flush()
                return
        else:
            self.arrived = len(part)
            # Take the requests whose head, byte for byte, is in the cache; the rest must be parsed.
            while (end := part.find(END)) > 0 and (head := listener.heads.get(part[:end])) is not None:
                method, path, query, headers, length = head
                end += 4
                if len(part) < end + length:
                    break
                self.active_at = listener.loop.time()
                call = Call(method, path, query, headers, part[end : end + length], self.peer)
                self.take(call, not listener.is_draining)
                part = part[end + length :]
                if not part or self.is_ending:
                    if self.ready or self.is_ending or len(self.queue) > listener.bounds.pipelined:
                        self.flush()
                    return
            self.received = part
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self.refuse(400, "upgrade: expected plain HTTP/1.1, got another protocol.")
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, TooLarge):
                self.refuse(cause.status, TOO_LARGE)
            else:
                self.refuse(400, "expected HTTP/1.1, got something else.")
        self.received = b""
        if self.is_receiving or self.held:
            listener.hold(self, self.arrived if self.is_receiving and not self.is_ending else 0)
        self.flush()

    # httptools calls these, in this order, for each request.

    def on_message_begin(self) -> None:
        self.target = b""
        self.headers = []
        self.body = b""
        self.size = 0
        self.is_receiving = self.is_in_head = True
        self.active_at = self.listener.loop.time()

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
        self.is_in_head = False
        if self.expects:
            self.expects = False
            if not self.queue:
                self.ready.append(b"HTTP/1.1 100 Continue\r\n\r\n")
                self.flush()

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self.listener.bounds.body:
            raise TooLarge(413)
        if not self.body:
            self.body = part  # most bodies arrive whole
        elif isinstance(self.body, bytes):
            self.body = bytearray(self.body) + part
        else:
            self.body += part

    def on_message_complete(self) -> None:
        if self.is_ending:
            return
        self.is_receiving = False
        parser, listener = self.parser, self.listener
        method = parser.get_method().decode("ascii")
        body = bytes(self.body)
        path, _, query = self.target.decode("latin-1").partition("?")
        if not path.startswith("/"):
            path = origin_form(path)
        keep_alive = parser.should_keep_alive() and not listener.is_draining
        call = Call(method, path, query, self.headers, body, self.peer)
        refusal = listener.screen(call)
        if refusal is not None:
            self.received = b""
            self.respond(adapted(method, keep_alive, refusal))
            self.is_ending = not keep_alive
            return
        if self.received and keep_alive:
            listener.remember(self.received, call)
        self.received = b""  # the next request of this read does not begin with it
        self.take(call, keep_alive)

    def take(self, call: Call, keep_alive: bool) -> None:
        """Answer one request, now or later; without ``keep_alive`` it is the last of its connection."""
        listener, method = self.listener, call.method
        response: Any
        if listener.waiting >= listener.bounds.waiting:
            listener.turned_away[listener.name] += 1
            response = problem(503, BUSY, [(b"retry-after", b"1")])
        else:
            try:
                response = listener.route(call)
            except Exception as error:
                response = listener.failure(error)
        if response.__class__ is bytes:
            self.respond(response if keep_alive and method != "HEAD" else adapted(method, keep_alive, response))
        elif response.__class__ is Stream:
            self.start_stream(response)
            return
        else:
            if not isinstance(response, PendingResponse):
                response = PendingResponse(response, bytes, listener.failure)
            if not keep_alive or method == "HEAD":
                response = PendingResponse(awaited(response), partial(adapted, method, keep_alive), listener.failure)
            self.respond_later(response)
        if not keep_alive:
            self.is_ending = True

    @property
    def is_streaming(self) -> bool:
        return self.stream is not None

    def start_stream(self, stream: Stream) -> None:
        """Give the rest of this connection to a stream."""
        self.is_ending = True
        self.ready.append(stream.head)
        self.listener.streams += 1

        async def run() -> None:
            try:
                await stream.run(self)
            finally:
                self.listener.streams -= 1
                self.transport.close()

        self.stream = self.listener.loop.create_task(run())

    def refuse(self, status: int, detail: str) -> None:
        """Answer a malformed request and hang up: where the next request would begin is unknown."""
        if not self.is_ending:
            self.is_ending = self.is_receiving = True
            self.respond(problem(status, detail, [CLOSE]))

    def forget_request(self) -> None:
        if self.is_receiving:
            self.parser = httptools.HttpRequestParser(self)
            self.body, self.headers = b"", []

    def refuse_for_room(self) -> None:
        self.refuse(503, BUSY)
        self.flush()

    def on_slow_request(self) -> None:
        self.refuse(408, "The request did not arrive in time.")
        self.flush()

    def drain(self) -> None:
        if self.stream is not None:
            self.stream.cancel()
        else:
            super().drain()


def no_refusal(call: Call) -> None:
    """Refuse no call."""


class HttpListener(Listener):
    """HTTP/1.1.  ``route`` turns a call into its response; ``screen`` may refuse it first, by its head alone."""

    name = "http"
    connection_class = HttpConnection

    def __init__(
        self,
        route: Route,
        bounds: Bounds,
        turned_away: dict[str, int] | None = None,
        faults: Faults | None = None,
        screen: Screen = no_refusal,
    ) -> None:
        super().__init__(bounds, turned_away, faults)
        self.route = route
        self.screen = screen  # not called again for a head that is in the cache
        self.streams = 0
        self.heads: dict[bytes, Head] = {}

    def remember(self, part: bytes, call: Call) -> None:
        """Cache the head of ``part`` if ``part`` is exactly this call: most clients send the same head every time."""
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

    def failure(self, error: Exception) -> bytes:
        """The response to a call that failed because of a mistake of ours, which the log explains."""
        self.faults.note(self.name, error)
        return problem(500, FAILED)

    def sweep(self) -> None:
        HEADS.tick()  # the date of the answers
        super().sweep()


async def awaited(pending: PendingResponse) -> bytes:
    try:
        return pending.encode(await pending.begin())
    except Exception as error:
        return pending.on_error(error)


def adapted(method: str, keep_alive: bool, response: bytes) -> bytes:
    """The response to this request: without a body for HEAD, with a ``connection: close`` if it is the last."""
    if method == "HEAD":
        response = response[: response.index(b"\r\n\r\n") + 4]
    return response if keep_alive else response.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


def origin_form(target: str) -> str:
    """``http://host/path`` -> ``/path``; any other target is returned as it is, and no route has it."""
    _, scheme_end, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme_end else target

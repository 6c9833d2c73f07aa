"""gRPC over HTTP/2 without grpcio's server: connections around the session in C (``native/http2_session.c``).

A method is a function of the call's message.  A unary method returns its answer, or an awaitable of it; a streaming one
is told of each message and sends answers when it likes.  Answers leave in the order in which they are ready, and those
that are ready in one turn of the event loop leave together.
"""

from __future__ import annotations

import asyncio
from hmac import compare_digest
from os import environ
from typing import TYPE_CHECKING, Any

from ratekeeper.service.connection import ClientConnection
from ratekeeper.service.listener import Listener

try:
    from ratekeeper.native.http2_session import Session
except ImportError:  # nghttp2 was not there when ratekeeper was built
    Session = None  # type: ignore[assignment, misc]

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ratekeeper.service.faults import Faults
    from ratekeeper.service.options import Bounds

    Unary = Callable[[bytes], bytes | Awaitable[bytes]]

STREAMS = 1_000  # calls of one client at a time
NOISE = 2_000  # frames without a call that a client may send in a second: pings, settings, resets, window updates
CANCELLED, UNKNOWN_METHOD, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 1, 12, 13, 14, 16  # codes of gRPC


def has_session() -> bool:
    """Whether the session in C can be used; ``RATEKEEPER_PURE=1`` in the environment says no, as for the core."""
    return Session is not None and environ.get("RATEKEEPER_PURE", "") in ("", "0")


class CallFailed(Exception):
    """Why a call has no answer: a code of gRPC and a text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class StreamingMethod:
    """A method with a stream of messages in one direction or both."""

    def receive(self, call: StreamCall, message: bytes) -> None:
        """Take a message of the client."""
        raise NotImplementedError

    def end(self, call: StreamCall) -> None:
        """The client sends no more messages, but may still read."""
        call.finish()

    def cancel(self, call: StreamCall) -> None:
        """The client has left."""


class StreamCall:
    """One call of a streaming method."""

    def __init__(self, connection: Http2Connection, stream: int, method: StreamingMethod) -> None:
        self.connection = connection
        self.stream = stream
        self.method = method
        self.state: Any = None  # for the method

    def send(self, message: bytes) -> bool:
        """Send a message; False if the client has left."""
        is_open = self.connection.session.send(self.stream, message)
        self.connection.flush_soon()
        return is_open

    def finish(self, code: int = 0, text: str = "") -> None:
        """End the call."""
        self.connection.calls.pop(self.stream, None)
        self.connection.session.finish(self.stream, code, text)
        self.connection.flush_soon()


class Http2Connection(ClientConnection):
    """One client, with many calls at a time."""

    listener: Http2Listener

    def __init__(self, listener: Http2Listener) -> None:
        super().__init__(listener)
        bounds = listener.bounds
        patience = max(1, round(bounds.send_for))
        self.session = Session(bounds.head, bounds.body, STREAMS, NOISE, patience, listener.streaming_paths)
        self.is_leaving = False  # the client takes its next calls elsewhere
        self.tasks: dict[int, asyncio.Future[bytes]] = {}
        self.calls: dict[int, StreamCall] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.listener.is_draining:
            self.session.shut_down(False)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        for task in self.tasks.values():
            task.cancel()
        for call in list(self.calls.values()):
            call.method.cancel(call)
        self.tasks.clear()
        self.calls.clear()

    # What arrives.

    def receive(self, part: bytes) -> None:
        listener, session = self.listener, self.session
        unary, is_protected = listener.unary, listener.token is not None
        for stream, path, authorization, message in session.receive(part):
            if path is None:
                self.cancel(stream)
                continue
            if is_protected and path not in listener.open_paths and not listener.is_known(authorization):
                if message is not None:
                    session.finish(stream, UNAUTHENTICATED, "expected 'authorization: Bearer TOKEN' with the token.")
                continue
            method = unary.get(path)
            if method is None:
                self.receive_streamed(stream, path, message)
                continue
            try:
                answer = method(message)  # type: ignore[arg-type]
            except CallFailed as error:
                session.finish(stream, error.code, error.text)
                continue
            except Exception as error:
                listener.faults.note(listener.name, error)
                session.finish(stream, INTERNAL, "internal error")
                continue
            if answer.__class__ is bytes:
                session.answer(stream, answer)
            else:
                self.answer_later(stream, answer)
        self.active_at = listener.loop.time()
        if session.held != self.held:
            listener.hold(self, session.held)
        self.flush()

    def receive_streamed(self, stream: int, path: bytes, message: bytes | None) -> None:
        call = self.calls.get(stream)
        if call is None:
            method = self.listener.streaming.get(path)
            if method is None:
                self.session.finish(stream, UNKNOWN_METHOD, "this service has no such method.")
                return
            call = self.calls[stream] = StreamCall(self, stream, method)
        try:
            if message is None:
                call.method.end(call)
            else:
                call.method.receive(call, message)
        except CallFailed as error:
            call.finish(error.code, error.text)
        except Exception as error:
            self.listener.faults.note(self.listener.name, error)
            call.finish(INTERNAL, "internal error")

    def cancel(self, stream: int) -> None:
        """The client does not wait for an answer any more; the decision is made all the same if it is under way."""
        task = self.tasks.pop(stream, None)
        if task is not None:
            task.cancel()
        call = self.calls.pop(stream, None)
        if call is not None:
            call.method.cancel(call)

    # What is sent.

    def answer_later(self, stream: int, awaitable: Any) -> None:
        listener = self.listener
        if listener.waiting >= listener.bounds.waiting:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            self.session.finish(stream, UNAVAILABLE, "the service is at capacity.")
            return
        listener.waiting += 1
        task: asyncio.Future[bytes] = asyncio.ensure_future(awaitable, loop=listener.loop)
        self.tasks[stream] = task

        def finish(done: asyncio.Future[bytes]) -> None:
            listener.waiting -= 1
            if self.tasks.get(stream) is done:
                del self.tasks[stream]
            if done.cancelled():
                self.session.finish(stream, CANCELLED, "")
            elif (error := done.exception()) is None:
                self.session.answer(stream, done.result())
            elif isinstance(error, CallFailed):
                self.session.finish(stream, error.code, error.text)
            else:
                listener.faults.note(listener.name, error)
                self.session.finish(stream, INTERNAL, "internal error")
            self.flush_soon()

        task.add_done_callback(finish)

    def flush_soon(self) -> None:
        """Write at the end of this turn of the event loop, together with what others add."""
        if not self.is_flush_due:
            self.is_flush_due = True
            self.listener.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.is_flush_due = False
        if self.transport.is_closing():
            return
        if not self.is_write_paused:
            part = self.session.pending()
            if part:
                self.transport.write(part)
        if self.session.is_over or (self.is_leaving and not self.session.open):
            self.transport.close()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flush()

    # How it ends.

    @property
    def is_idle(self) -> bool:
        return not (self.session.open or self.unparsed or self.is_write_paused)

    @property
    def is_streaming(self) -> bool:
        return bool(self.calls)

    def enforce_timeouts(self, now: float) -> None:
        self.session.sweep()
        if self.is_write_paused:
            if now - self.active_at > self.listener.bounds.read_for:
                self.transport.abort()
            return
        if self.is_idle and self.listener.idle_for and now - self.active_at > self.listener.idle_for:
            self.session.shut_down(True)
            self.is_leaving = True
        self.flush()

    def end_of_requests(self) -> None:
        """The client has closed its side; it may still read the answers."""
        self.is_leaving = True
        self.flush()

    def drain(self) -> None:
        """Let the client go elsewhere with its next calls, answer those that it has sent, then close."""
        for call in list(self.calls.values()):
            call.finish(UNAVAILABLE, "the service ends.")
        if not self.is_leaving:
            self.is_leaving = True
            self.session.shut_down(True)
        self.flush()


class Http2Listener(Listener):
    """All connections of gRPC clients to one address."""

    name = "grpc"
    connection_class = Http2Connection

    def __init__(
        self,
        unary: dict[bytes, Unary],
        streaming: dict[bytes, StreamingMethod],
        bounds: Bounds,
        token: str | None = None,
        open_paths: frozenset[bytes] = frozenset(),
        turned_away: dict[str, int] | None = None,
        faults: Faults | None = None,
    ) -> None:
        super().__init__(bounds, turned_away, faults)
        self.unary = unary
        self.streaming = streaming
        self.streaming_paths = frozenset(streaming)
        self.token = None if token is None else token.encode()
        self.open_paths = open_paths  # need no token
        self.idle_for = 0.0  # Envoy keeps its connections for ever

    def is_known(self, authorization: bytes | None) -> bool:
        """Whether a call has sent the token."""
        scheme, _, token = (authorization or b"").partition(b" ")
        return scheme.lower() == b"bearer" and compare_digest(token.strip(), self.token or b"")

    async def close(self, patience: float) -> None:
        """Tell clients to take their next calls elsewhere, then answer what is on its way, and close."""
        self.is_draining = True
        for connection in list(self.connections):
            connection.session.shut_down(False)  # type: ignore[attr-defined]
            connection.flush()
        await super().close(patience)

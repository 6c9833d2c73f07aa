"""HTTP/2 frames of a hostile gRPC client: the same calls in any segments, and counts that stay true."""

from __future__ import annotations

from typing import Any

from fuzz.choices import Choices, segments

try:
    from ratekeeper.native.http2_session import Session
except ImportError:  # nghttp2 was not there at the build
    Session = None  # type: ignore[assignment, misc]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WATCH = b"/grpc.health.v1.Health/Watch"


def calls(parts: Any) -> tuple[list[Any], bool]:
    """What a session tells, without answering: so that no answer depends on the segments."""
    session, told = Session(2048, 500, 20, 100, 3, frozenset({WATCH})), []
    size = 0
    for part in parts:
        told += session.receive(part)
        size += len(part)
        assert 0 <= session.held <= size
        assert 0 <= session.incomplete <= session.open <= 20
    session.pending()
    return told, session.is_over


def check(data: bytes) -> None:
    if Session is None:
        return
    choices = Choices(data)
    acts, cuts = choices.piece(16), choices.piece(8)
    stream = PREFACE + choices.rest()
    at_once = calls([stream])
    assert calls(segments(stream, cuts)) == at_once, "other calls in some segments"
    assert calls([stream[at : at + 1] for at in range(len(stream))]) == at_once
    answer(stream, cuts, acts)


def answer(stream: bytes, cuts: bytes, acts: bytes) -> None:
    """Answer in every way; whatever the client sent, nothing is answered twice."""
    session = Session(2048, 500, 20, 100, 3, frozenset({WATCH}))
    chosen = Choices(acts)
    finished: set[int] = set()
    for part in segments(stream, cuts):
        for number, path, _, message in session.receive(part):
            if path is None or message is None:
                continue
            act = chosen.number() % 5
            if act == 0:
                assert not (session.answer(number, b"a" * chosen.number()) and number in finished)
                finished.add(number)
            elif act == 1:
                session.send(number, b"a")
            elif act == 2:
                assert not (session.finish(number, chosen.number(), "wh\u00fd") and number in finished)
                finished.add(number)
            elif act == 3:
                session.sweep()
            else:
                session.shut_down(bool(chosen.number() % 2))
        session.pending()
    for _ in range(5):
        session.sweep()
        session.pending()

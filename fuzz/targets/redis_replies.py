"""Replies of a hostile server: the same in any pieces, in Python and C, and only the errors that are an outage."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fuzz.choices import Choices, segments
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.errors import StoreUnavailable
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.stores.redis.handshake import Handshake
from ratekeeper.stores.redis.layout import RecordLayout
from ratekeeper.stores.redis.reader import PureReplyFrames, ReplyFrames, ReplyReader
from ratekeeper.stores.redis.request import CheckRequest, PlanRequest
from ratekeeper.stores.redis.resp import BrokenReply, ErrorReply
from ratekeeper.stores.redis.script import Script
from ratekeeper.stores.redis.topology import SlotMap, read_address, read_master, read_redirection
from ratekeeper.stores.redis.url import RedisSettings

ASKED = ("127.0.0.1", 6379)
SETTINGS = RedisSettings("redis://127.0.0.1")
LIMITS = [Limit(5, "minute", algorithm=name) for name in ALGORITHMS if name not in ("concurrency", "unlimited")]
LIMITS += [parse_limits(text) for text in ("7/second sliding_window slices 3", ["5/minute", "9/hour sliding_log"])]


def whole(frames: Any, parts: Any) -> tuple[bytes, bool]:
    """The replies that are whole before the first byte that no reply has, and whether there is such a byte."""
    replies = b""
    try:
        for part in parts:
            replies += frames.whole(part)
    except ValueError:
        return replies, True
    return replies, False


def check(data: bytes) -> None:
    choices = Choices(data)
    cuts, stream = choices.piece(8), choices.rest()
    parts = list(segments(stream, cuts))
    pure, native = whole(PureReplyFrames(), parts), whole(ReplyFrames(), parts)
    assert pure == native, "Python and C differ"
    at_once = whole(ReplyFrames(), [stream])
    byte_by_byte = whole(PureReplyFrames(), [stream[at : at + 1] for at in range(len(stream))])
    assert at_once[1] == native[1] == byte_by_byte[1], "broken only in some pieces"
    if not native[1]:
        assert at_once[0] == native[0] == byte_by_byte[0]
    reader = ReplyReader()
    replies: list[Any] = []
    try:
        for part in parts:
            replies += reader.feed(part)
    except BrokenReply:
        pass
    for reply in replies:
        read(reply)


def read(reply: Any) -> None:
    """Take a reply for anything that a server may be asked."""
    handshake = Handshake(SETTINGS, Script("return 1", ()))
    calls: list[Any] = [
        lambda: SlotMap([ASKED]).learn(reply, ASKED),
        lambda: read_master(reply, ASKED),
        lambda: read_address(reply, reply, ASKED),
        lambda: handshake.judge([reply] * len(handshake.words)),
    ]
    if isinstance(reply, ErrorReply):
        assert str(reply).isprintable()
        calls.append(lambda: read_redirection(str(reply), ASKED))
    for call in calls:
        with suppress(BrokenReply, StoreUnavailable):
            call()
    for limit in LIMITS if isinstance(reply, bytes) else ():
        for operation in ("check", "peek", "states", "refund"):
            read_record(limit, operation, reply)


def read_record(limit: Any, operation: str, reply: bytes) -> None:
    """A record that cannot be read is an outage; the decision of one that can has answers."""
    layout = RecordLayout("space", limit)
    request: Any = PlanRequest(operation, [(layout, "key", 1)])
    if operation == "check" and len(layout.subjects) == 1 and not layout.is_leased:
        request = CheckRequest(layout, "key", 1)
    try:
        answer = request.read(reply, 0)
    except Exception:
        return  # Batch.land makes an outage of any of them
    if operation != "states":
        for decision in answer:
            assert decision.remaining >= 0, (limit, decision)
            assert min(decision.reset_after, decision.delay) >= 0, (limit, operation, decision)
            assert decision.allowed or decision.retry_after is None or decision.retry_after >= 0
            repr(decision)

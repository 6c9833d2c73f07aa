"""The HTTP/2 session in C: calls from bytes, answers to bytes, and bounds on what a client can make it do."""

import random

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import ConnectionTerminated, DataReceived, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tier

session_module = pytest.importorskip("ratekeeper.native.http2_session", reason="nghttp2 was not there at the build")

CHECK, WATCH = b"/a.Service/Check", b"/a.Service/Watch"
HEAD = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", CHECK.decode()),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]


def new_session(head=4096, body=1000, streams=100, noise=200, patience=3):
    return session_module.Session(head, body, streams, noise, patience, frozenset({WATCH}))


def framed(message, flag=0):
    return bytes([flag]) + len(message).to_bytes(4, "big") + message


class Client:
    """A client of a session, by the h2 library."""

    def __init__(self, **bounds):
        self.session = new_session(**bounds)
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.h2.initiate_connection()
        self.answers, self.ended, self.events = {}, [], []

    def call(self, message=b"m", path=CHECK, *, ends=True, fields=(), raw=None):
        stream = self.h2.get_next_available_stream_id()
        head = [(name, path.decode() if name == ":path" else value) for name, value in HEAD]
        self.h2.send_headers(stream, [*head, *fields])
        self.h2.send_data(stream, framed(message) if raw is None else raw, end_stream=ends)
        return stream

    def exchange(self):
        """Send what is to be sent, both ways; returns the new events of the session."""
        events = []
        while True:
            sent = self.h2.data_to_send()
            events += self.session.receive(sent)
            got = self.session.pending()
            if not sent and not got:
                break
            for event in self.h2.receive_data(got):
                self.note(event)
        self.events += events
        return events

    def note(self, event):
        answer = self.answers.setdefault(getattr(event, "stream_id", 0), {"body": b""})
        if isinstance(event, ResponseReceived):
            answer["head"] = dict(event.headers)
        elif isinstance(event, DataReceived):
            answer["body"] += event.data
            self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, TrailersReceived):
            answer["trailers"] = dict(event.headers)
        elif isinstance(event, StreamEnded):
            answer["ended"] = True
        elif isinstance(event, StreamReset):
            answer["reset"] = event.error_code
        elif isinstance(event, ConnectionTerminated):
            self.ended.append(event.error_code)


def test_a_call_is_told_and_answered():
    client = Client()
    stream = client.call(b"question", fields=[("authorization", "Bearer t")])
    assert client.exchange() == [(stream, CHECK, b"Bearer t", b"question")]
    assert client.session.open == 1
    assert client.session.answer(stream, b"answer") is True
    client.exchange()
    answer = client.answers[stream]
    assert answer["head"][":status"] == "200"
    assert answer["head"]["content-type"] == "application/grpc"
    assert (answer["body"], answer["trailers"]) == (framed(b"answer"), {"grpc-status": "0"})
    assert answer["ended"]
    assert client.session.answer(stream, b"again") is False
    assert (client.session.open, client.session.held, client.session.incomplete) == (0, 0, 0)


def test_a_call_that_fails_has_its_code_and_text():
    client = Client()
    stream = client.call()
    client.exchange()
    client.session.finish(stream, 14, "näh: 100 %\n")
    client.exchange()
    head = client.answers[stream]["head"]
    assert (head["grpc-status"], head["grpc-message"]) == ("14", "n%C3%A4h: 100 %25%0A")
    assert client.answers[stream]["ended"]


def test_two_authorizations_are_none():
    client = Client()
    client.call(fields=[("authorization", "Bearer a"), ("authorization", "Bearer b")])
    assert client.exchange()[0][2] is None


def recorded():
    """The bytes of five calls, and what they mean."""
    client = Client()
    for number in range(5):
        client.call(b"m" * number * 50, fields=[("x-padding", "p" * number * 30)])
    client.call(b"one", WATCH, ends=False)
    sent = client.h2.data_to_send()
    return sent, new_session().receive(sent)


def test_every_split_gives_the_same_calls():
    sent, events = recorded()
    assert len(events) == 6
    for place in range(1, len(sent)):
        session = new_session()
        assert session.receive(sent[:place]) + session.receive(sent[place:]) == events, place
    session = new_session()
    assert [event for byte in sent for event in session.receive(bytes([byte]))] == events


@settings(max_examples=tier.examples(100))
@given(st.lists(st.integers(1, 60), max_size=40))
def test_any_segments_give_the_same_calls(sizes):
    sent, events = recorded()
    session, told, at = new_session(), [], 0
    for size in [*sizes, len(sent)]:
        told += session.receive(sent[at : at + size])
        at += size
    assert told == events


@pytest.mark.parametrize(
    ("raw", "code", "text"),
    [
        (b"", "13", "expected one whole message."),
        (framed(b"abc")[:-1], "13", "expected one whole message."),
        (framed(b"a") + framed(b"b"), "13", "expected one whole message."),
        (framed(b"a", flag=1), "12", "expected a message without compression."),
        (framed(b"a" * 1001), "8", "the message is too large."),
        (b"\0\xff\xff\xff\xff", "8", "the message is too large."),
    ],
)
def test_a_message_that_is_none_has_an_error(raw, code, text):
    client = Client()
    stream = client.call(raw=raw)
    assert client.exchange() == []
    head = client.answers[stream]["head"]
    assert (head["grpc-status"], head["grpc-message"]) == (code, text)
    assert (client.session.open, client.session.held) == (0, 0)
    client.call(b"next")
    assert [event[3] for event in client.exchange()] == [b"next"]


def test_a_large_message_ends_before_it_is_all_there():
    client = Client()
    stream = client.call(raw=b"x" * 1006, ends=False)
    client.exchange()
    assert client.answers[stream]["head"]["grpc-status"] == "8"
    assert client.answers[stream]["reset"] == ErrorCodes.NO_ERROR
    assert (client.session.open, client.session.incomplete, client.session.held) == (0, 0, 0)


def test_a_large_head_ends_its_call_and_a_huge_one_the_connection():
    client = Client(head=2000)
    stream = client.call(fields=[("x", "y" * 3000)])
    assert client.exchange() == []
    assert client.answers[stream]["head"]["grpc-message"] == "the metadata are too large."
    client.call(fields=[("x", "y" * 9000)])
    client.session.receive(client.h2.data_to_send())
    assert client.session.is_over


OTHERS = [(":method", "GET"), ("content-type", "application/json"), ("content-type", "application/grpcx")]


@pytest.mark.parametrize("field", OTHERS)
def test_other_requests_have_the_status_415(field):
    client = Client()
    stream = client.h2.get_next_available_stream_id()
    head = [(name, dict([field]).get(name, value)) for name, value in HEAD]
    client.h2.send_headers(stream, head, end_stream=True)
    assert client.exchange() == []
    answer = client.answers[stream]
    assert (answer["head"][":status"], answer["body"], answer["ended"]) == ("415", b"expected a gRPC call.\n", True)


def test_another_protocol_ends_at_once():
    session = new_session()
    assert session.receive(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == []
    assert session.is_over
    assert session.receive(b"more") == []


def test_a_client_that_leaves_is_told():
    client = Client()
    stream = client.call()
    client.exchange()
    client.h2.reset_stream(stream)
    assert client.exchange() == [(stream, None, None, None)]
    assert client.session.answer(stream, b"late") is False


def test_a_stream_has_messages_both_ways():
    client = Client()
    stream = client.call(b"first", WATCH, ends=False)
    assert client.exchange() == [(stream, WATCH, None, b"first")]
    client.session.send(stream, b"one")
    client.exchange()
    assert client.answers[stream]["body"] == framed(b"one")
    second = framed(b"second") + framed(b"third")
    for byte in second:
        client.h2.send_data(stream, bytes([byte]))
    assert [event[3] for event in client.exchange()] == [b"second", b"third"]
    client.session.send(stream, b"two")
    client.h2.end_stream(stream)
    assert client.exchange() == [(stream, WATCH, None, None)]
    client.session.finish(stream, 0, "")
    client.exchange()
    assert client.answers[stream]["body"] == framed(b"one") + framed(b"two")
    assert client.answers[stream]["trailers"] == {"grpc-status": "0"}


def test_frames_without_calls_are_bounded():
    client = Client(noise=50)
    for _ in range(60):
        client.h2.ping(b"12345678")
    client.exchange()
    assert client.ended == [ErrorCodes.ENHANCE_YOUR_CALM]
    assert client.session.is_over


def test_calls_and_time_make_up_for_frames_without_calls():
    client = Client(noise=50)
    for _ in range(20):
        for _ in range(12):
            client.h2.ping(b"12345678")
        stream = client.call()
        client.exchange()
        client.session.answer(stream, b"a")
    for _ in range(20):
        for _ in range(40):
            client.h2.ping(b"12345678")
        client.exchange()
        client.session.sweep()
    assert client.ended == []


def test_a_message_that_does_not_end_is_reset_and_a_waiting_call_is_not():
    client = Client(patience=3)
    slow = client.call(raw=b"\0\0", ends=False)
    waiting = client.call(b"asked")
    client.exchange()
    for _ in range(3):
        client.session.sweep()
        client.exchange()
    assert "reset" not in client.answers.get(slow, {})
    client.session.sweep()
    client.exchange()
    assert client.answers[slow]["reset"] == ErrorCodes.CANCEL
    assert client.session.answer(waiting, b"yes") is True


def test_an_answer_that_nobody_reads_is_reset():
    client = Client(patience=2)
    client.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
    client.exchange()
    stream = client.call()
    client.exchange()
    client.session.answer(stream, b"answer")
    for _ in range(3):
        client.exchange()
        client.session.sweep()
    client.exchange()
    assert client.answers[stream]["reset"] == ErrorCodes.CANCEL
    assert client.session.open == 0


def test_a_quiet_watcher_is_not_reset():
    client = Client(patience=1)
    stream = client.call(b"w", WATCH, ends=False)
    client.exchange()
    client.session.send(stream, b"status")
    for _ in range(10):
        client.exchange()
        client.session.sweep()
    assert client.session.send(stream, b"more") is True


def frames_of(sent):
    """The kind, stream and payload of each frame."""
    frames = []
    while sent:
        size = int.from_bytes(sent[:3], "big")
        frames.append((sent[3], int.from_bytes(sent[5:9], "big"), sent[9 : 9 + size]))
        sent = sent[9 + size :]
    return frames


def test_the_end_answers_what_was_sent():
    """The h2 library takes a GOAWAY as the end of everything, so the frames are read by hand here."""
    data, goaway = 0, 7
    client = Client()
    first, second = client.call(b"1"), client.call(b"2")
    client.exchange()
    client.session.shut_down(False)  # calls that are on their way are still taken
    (notice,) = frames_of(client.session.pending())
    assert (notice[0], notice[2][:4]) == (goaway, b"\x7f\xff\xff\xff")
    third = client.call(b"3")
    assert [event[3] for event in client.session.receive(client.h2.data_to_send())] == [b"3"]
    client.session.shut_down(True)
    for stream in (first, second, third):
        client.session.answer(stream, b"a")
    frames = frames_of(client.session.pending())
    assert [int.from_bytes(payload[:4], "big") for kind, _, payload in frames if kind == goaway] == [third]
    assert [stream for kind, stream, payload in frames if (kind, payload) == (data, framed(b"a"))] == [1, 3, 5]
    assert client.session.open == 0
    assert client.session.is_over


def test_damaged_bytes_break_nothing():
    """Whatever arrives, counts stay true and nothing crashes."""
    sent, _ = recorded()
    chance = random.Random(1)
    for _ in range(tier.steps(3000)):
        damaged = bytearray(sent)
        for _ in range(chance.randrange(1, 6)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        session = new_session()
        for at in range(0, len(damaged), 97):
            for stream, path, _, message in session.receive(bytes(damaged[at : at + 97])):
                if path is not None and message is not None:
                    assert chance.choice([session.answer, session.send])(stream, b"a" * chance.randrange(50)) in (
                        True,
                        False,
                    )
        session.pending()
        session.sweep()
        session.pending()
        assert 0 <= session.held <= len(damaged)
        assert 0 <= session.incomplete <= session.open


@pytest.mark.parametrize("words", [(0, 1, 1, 1, 1, frozenset()), (1, 1, 0, 1, 1, frozenset()), (1, 1, 1, 1, 1, [])])
def test_wrong_bounds_are_an_error(words):
    with pytest.raises(ValueError, match="expected sizes above 0"):
        session_module.Session(*words)

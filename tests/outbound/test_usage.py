"""The usage that an answer reports, in every format, however its bytes are cut."""

import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper.outbound import usage as usage_module
from ratekeeper.outbound.usage import Usage, UsageReader
from tests.outbound.llm_provider import ANSWERS, sse


def read(content, content_type="application/json", encoding="", size=None, **options):
    reader = UsageReader(content_type, encoding, **options)
    size = size or len(content) or 1
    for start in range(0, len(content), size):
        reader.feed(content[start : start + size])
    return reader.finish()


@pytest.mark.parametrize("size", [None, 1, 7])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("path", sorted(ANSWERS))
def test_every_format_whole_and_as_a_stream(path, is_stream, size):
    asked = {"model": "m", "stream_options": {"include_usage": True}}
    words = [] if path == "/embeddings" else ["word"] * 8
    answer = ANSWERS[path](asked, 5, words, is_stream)
    cached = 7 if path == "/messages" else 0
    if path == "/embeddings" and is_stream:
        return
    if is_stream:
        assert read(sse(answer), "text/event-stream", size=size) == Usage(5, 8, cached)
    else:
        assert read(json.dumps(answer).encode(), size=size) == Usage(5, len(words), cached)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"usage": {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}}, Usage(3, 4)),  # Bedrock, converse
        ({"usage": {"total_tokens": 12}}, Usage(12, 0)),
        ({"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4, "totalTokenCount": 19}}, Usage(3, 16)),
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 5}}}, Usage(9, 0, 5)),
        ([{"usageMetadata": {"totalTokenCount": 5}}, {"usageMetadata": {"totalTokenCount": 9}}], Usage(5, 0)),
        ({"usage": None}, None),
        ({"usage": {"prompt_tokens": "many", "completion_tokens": -1, "total_tokens": True}}, None),
        ({"usage": [1]}, None),
        ({"content": [{"input": {"usage": {"input_tokens": 99}}}]}, None),  # what a tool was given
        ([1, None], None),
        ("usage", None),
    ],
)
def test_other_answers(answer, expected):
    assert read(json.dumps(answer).encode()) == expected


def test_a_stream_that_ends_before_its_output_is_reported_counts_the_text_that_came():
    events = ANSWERS["/messages"]({"model": "m"}, 5, ["word"] * 100, True)
    assert read(sse(events[:53]), "text/event-stream") == Usage(5, 63, 7)  # 50 times "word " and a quarter of it
    assert read(sse(events[:53]), "text/event-stream", count=lambda text: len(text.split())) == Usage(5, 50, 7)
    assert read(sse(events[:2]), "text/event-stream") == Usage(5, 1, 7)


def test_a_stream_without_usage_reports_none():
    chunks = ANSWERS["/chat/completions"]({"model": "m"}, 5, ["word"] * 9, True)
    assert read(sse(chunks), "text/event-stream") is None


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("identity", bytes), ("GZIP", gzip.compress)],
)
def test_encodings(encoding, encode):
    content = encode(json.dumps({"usage": {"input_tokens": 3, "output_tokens": 4}}).encode())
    assert read(content, encoding=encoding, size=5) == Usage(3, 4)


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "gzip, br", "unheard-of"])
def test_what_cannot_be_decoded_reports_none(encoding):
    assert read(b'{"usage": {"input_tokens": 3}}', encoding=encoding) is None


def test_zstd():
    zstandard = pytest.importorskip("zstandard")
    content = zstandard.compress(b'{"usage": {"input_tokens": 3, "output_tokens": 4}}')
    assert read(content, encoding="zstd", size=3) == Usage(3, 4)


@pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
def test_a_body_that_is_too_long_is_not_kept(content_type, monkeypatch):
    monkeypatch.setattr(usage_module, "LONGEST", 100)
    reader = UsageReader(content_type)
    for _ in range(50):
        reader.feed(b"data: " + b"x" * 10 + b"\n")
    assert not reader._bytes
    assert not reader._event
    assert reader.finish() is None


@given(st.lists(st.binary(max_size=40), max_size=6), st.sampled_from(["", "application/json", "text/event-stream"]))
def test_no_content_raises(chunks, content_type):
    reader = UsageReader(content_type)
    for chunk in [
        b'data: {"type": "message_start", "message": ',
        *chunks,
        b'}\n\ndata: {"usage": [',
        *chunks,
        b"]}\n\n",
    ]:
        reader.feed(chunk)
    usage = reader.finish()
    assert usage is None or min(usage) >= 0

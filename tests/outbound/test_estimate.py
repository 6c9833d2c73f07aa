"""Estimates of tokens from the bodies of requests."""

import pytest

from ratekeeper.errors import InvalidInput
from ratekeeper.outbound import ModelCall, TokenEstimator
from ratekeeper.outbound.estimate import count_text

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
SOURCE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 100_000}}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 40}]}, (14, 1000)),
        ("/v1/chat/completions", {"messages": [{"content": "a" * 40}], "max_completion_tokens": 9, "n": 3}, (14, 27)),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [IMAGE]}], "max_tokens": 5}, (1004, 5)),
        ("/v1/messages", {"system": "a" * 8, "messages": [{"content": [SOURCE]}], "max_tokens": 5}, (1006, 5)),
        ("/v1/responses", {"input": "a" * 40, "instructions": "b" * 7, "max_output_tokens": 6}, (12, 6)),
        ("/v1/embeddings", {"input": ["a" * 40, "b" * 39]}, (20, 0)),
        ("/x:generateContent", {"contents": [{"parts": [{"text": "a" * 8}]}]}, (2, 1000)),
        ("/x", {"contents": [{"parts": []}], "generationConfig": {"maxOutputTokens": 7}}, (0, 7)),
        (
            "/model/m/converse",
            {"messages": [{"content": [{"text": "abcd"}]}], "inferenceConfig": {"maxTokens": 3}},
            (5, 3),
        ),
        ("/v1/models", {}, (0, 0)),
        ("/v1/chat/completions", {"messages": "none", "max_tokens": "many", "n": True}, (1, 1000)),
    ],
)
def test_the_default(path, body, expected):
    assert TokenEstimator()(ModelCall(path, body)) == expected


def test_tools_are_part_of_the_prompt():
    tools = [{"type": "function", "function": {"name": "look_up", "description": "a" * 400}}]
    inputs, _ = TokenEstimator()(ModelCall("/", {"messages": [], "tools": tools}))
    assert inputs == 102


def test_text_beyond_ascii_counts_by_its_bytes():
    assert count_text("日本語") == 3
    assert count_text("a\ud800") == 1


def test_a_tokenizer_and_another_default_for_the_output():
    estimate = TokenEstimator(count=lambda text: len(text.split()), output=50)
    assert estimate(ModelCall("/v1/responses", {"input": "one two three"})) == (3, 50)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/messages", {"model": "m"}, "m"),
        ("/v1beta/models/flash-2:generateContent", {}, "flash-2"),
        ("/model/large/converse", {}, "large"),
        ("/openai/deployments/mine/chat/completions", {"model": 5}, "mine"),
        ("/v1/models", {}, ""),
    ],
)
def test_the_model(path, body, model):
    assert ModelCall(path, body).model == model


def test_a_deeply_nested_body():
    nested = "x"
    for _ in range(100_000):
        nested = [nested]
    assert ModelCall("/", {"input": nested}).text == "x"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 4}, "count: expected a function from a text to its tokens, got 4."),
        ({"output": -1}, "output: expected a whole number of tokens from 0, got -1."),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises(InvalidInput) as caught:
        TokenEstimator(**options)
    assert str(caught.value) == message

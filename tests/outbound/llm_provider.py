"""A provider of language models with the wire formats of OpenAI, Anthropic and Google, which keeps its own count.

A token is a word.  The answer to a prompt of n words has n + 3 words.
"""

import gzip
import json
import threading
from collections import Counter


class Provider:
    """Answers as a function for ``tests.outbound.web.serving``; ``refusals`` are the next statuses of refused calls."""

    def __init__(self, compress=False):
        self.counted = Counter()
        self.refusals = []
        self.seen = []
        self.compress = compress
        self.lock = threading.Lock()

    def __call__(self, method, path, headers, body):
        with self.lock:
            self.counted["requests"] += 1
            self.seen.append((path, headers))
            if self.refusals:
                status, fields = self.refusals.pop(0)
                error = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
                return status, {"content-type": "application/json", **fields}, json.dumps(error).encode()
        asked = json.loads(body)
        inputs = sum(len(text.split()) for text in texts(asked))
        words = ["word"] * (0 if path.endswith("/embeddings") else inputs + 3)
        with self.lock:
            self.counted["input_tokens"] += inputs
            self.counted["output_tokens"] += len(words)
            self.counted["tokens"] += inputs + len(words)
        is_stream = asked.get("stream") or "streamGenerateContent" in path
        answer = next(answer for end, answer in ANSWERS.items() if end in path)(asked, inputs, words, bool(is_stream))
        content = sse(answer) if is_stream else json.dumps(answer).encode()
        fields = {"content-type": "text/event-stream; charset=utf-8" if is_stream else "application/json"}
        if self.compress:
            fields["content-encoding"] = "gzip"
            content = gzip.compress(content)
        return 200, fields, content


def texts(value, key=""):
    """Every text of a prompt, in any of the formats."""
    if isinstance(value, str):
        return [value] if key in ("content", "text", "input", "prompt") else []
    if isinstance(value, list):
        return [text for item in value for text in texts(item, key)]
    if isinstance(value, dict):
        return [text for name, item in value.items() for text in texts(item, name)]
    return []


def sse(events):
    lines = []
    for event in events:
        if isinstance(event, dict) and "type" in event:
            lines.append(f"event: {event['type']}\r\n")
        content = event if isinstance(event, str) else json.dumps(event)
        lines.append(f"data: {content}\r\n\r\n")
    return "".join(lines).encode()


def chat(asked, inputs, words, is_stream):
    usage = {"prompt_tokens": inputs, "completion_tokens": len(words), "total_tokens": inputs + len(words)}
    about = {"id": "chatcmpl-1", "created": 1, "model": asked["model"]}
    if not is_stream:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": " ".join(words)}}
        return {**about, "object": "chat.completion", "choices": [choice], "usage": usage}
    about["object"] = "chat.completion.chunk"
    chunks = [
        {**about, "choices": [{"index": 0, "finish_reason": None, "delta": {"content": word + " "}}], "usage": None}
        for word in words
    ]
    if (asked.get("stream_options") or {}).get("include_usage"):
        chunks.append({**about, "choices": [], "usage": usage})
    return [*chunks, "[DONE]"]


def responses(asked, inputs, words, is_stream):
    usage = {
        "input_tokens": inputs,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": len(words),
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": inputs + len(words),
    }
    part = {"type": "output_text", "text": " ".join(words), "annotations": []}
    message = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [part]}
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": asked["model"]}
    about |= {"parallel_tool_calls": False, "tool_choice": "auto", "tools": []}
    whole = {**about, "status": "completed", "output": [message], "usage": usage}
    if not is_stream:
        return whole
    begun = {**about, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    events = [
        {"type": "response.created", "response": begun},
        *[{"type": "response.output_text.delta", "delta": word + " ", **place} for word in words],
        {"type": "response.completed", "response": whole},
    ]
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def embeddings(asked, inputs, words, is_stream):
    usage = {"prompt_tokens": inputs, "total_tokens": inputs}
    vectors = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    return {"object": "list", "model": asked["model"], "data": vectors, "usage": usage}


def messages(asked, inputs, words, is_stream):
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked["model"], "stop_sequence": None}
    usage = {"input_tokens": inputs - 1, "cache_creation_input_tokens": 1, "cache_read_input_tokens": 7}
    if not is_stream:
        content = [{"type": "text", "text": " ".join(words)}]
        return {**about, "content": content, "stop_reason": "end_turn", "usage": {**usage, "output_tokens": len(words)}}
    begun = {**about, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "ping"},
        *[
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word + " "}}
            for word in words
        ],
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": len(words)},
        },
        {"type": "message_stop"},
    ]


def generate_content(asked, inputs, words, is_stream):
    def answer(text, count):
        usage = {"promptTokenCount": inputs, "candidatesTokenCount": count, "totalTokenCount": inputs + count}
        parts = [{"text": text}]
        return {"candidates": [{"content": {"role": "model", "parts": parts}}], "usageMetadata": usage}

    if not is_stream:
        return answer(" ".join(words), len(words))
    return [answer(word + " ", number + 1) for number, word in enumerate(words)]


ANSWERS = {
    "/chat/completions": chat,
    "/responses": responses,
    "/embeddings": embeddings,
    "/messages": messages,
    "enerateContent": generate_content,
}

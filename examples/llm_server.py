"""A simulated provider of language models on loopback: its answers are meaningless, but it enforces its limits.

Requests and tokens per minute have a bucket each, written without ratekeeper.  It has the APIs of two well-known
providers: ``/v1/chat/completions`` with whole answers, ``/v1/messages`` with streams.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Bucket:
    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self.left = float(per_minute)
        self.at = now

    def refill(self, now: float) -> None:
        self.left = min(self.per_minute, self.left + (now - self.at) * self.per_minute / 60)
        self.at = now


class Provider:
    def __init__(self, requests: int, tokens: int, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.buckets = {"requests": Bucket(requests, now()), "tokens": Bucket(tokens, now())}
        self.lock = threading.Lock()
        self.answered = 0
        self.refused = 0
        self.tokens = 0

    def admit(self, tokens: int) -> float:
        """Seconds to wait; 0.0 if the request was admitted and charged."""
        with self.lock:
            wait = 0.0
            costs = {"requests": 1, "tokens": tokens}
            for name, bucket in self.buckets.items():
                bucket.refill(self.now())
                wait = max(wait, (costs[name] - bucket.left - 1e-6) * 60 / bucket.per_minute)
            if wait > 0:
                self.refused += 1
                return wait
            for name, bucket in self.buckets.items():
                bucket.left -= costs[name]
            self.answered += 1
            self.tokens += tokens
            return 0.0


def count_tokens(text: str) -> int:
    """About four characters each: good enough for an estimate, and for a simulated provider."""
    return max(1, len(text) // 4)


def answer_to(prompt: str, most: int) -> list[str]:
    """The same words for the same prompt, at most ``most``."""
    return ["word"] * max(1, min(most, len(prompt) % 40 + 5))


@contextmanager
def serving(provider: Provider) -> Iterator[str]:
    """Serve in a thread; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            prompt = " ".join(message["content"] for message in body["messages"])
            words = answer_to(prompt, body["max_tokens"])
            inputs = count_tokens(prompt)
            wait = provider.admit(inputs + len(words))
            if wait:
                self.reply(429, {"error": {"type": "rate_limit_error"}}, wait)
            elif self.path == "/v1/chat/completions":
                usage = {"prompt_tokens": inputs, "completion_tokens": len(words), "total_tokens": inputs + len(words)}
                message = {"role": "assistant", "content": " ".join(words)}
                self.reply(200, {"choices": [{"message": message}], "usage": usage})
            else:
                self.stream(inputs, words)

        def reply(self, status: int, body: object, wait: float = 0.0) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            if wait:
                self.send_header("retry-after-ms", f"{wait * 1000:.3f}")
                self.send_header("retry-after", str(-int(-wait // 1)))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def stream(self, inputs: int, words: list[str]) -> None:
            events: list[dict[str, object]] = [
                {"type": "message_start", "message": {"usage": {"input_tokens": inputs}}}
            ]
            events += [{"type": "content_block_delta", "delta": {"text": f"{word} "}} for word in words]
            events += [{"type": "message_delta", "usage": {"output_tokens": len(words)}}, {"type": "message_stop"}]
            content = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

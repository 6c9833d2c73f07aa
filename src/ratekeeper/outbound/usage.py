"""Reads the token usage that a language model's answer reports: whole JSON bodies and server-sent events.

>>> reader = UsageReader("application/json")
>>> reader.feed(b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 12}}')
>>> reader.finish()
Usage(input_tokens=9, output_tokens=12, cache_read_tokens=0)

Formats: OpenAI (chat completions, completions, embeddings, responses) and everything compatible with it, Anthropic
(messages), Google (``usageMetadata``) and Amazon Bedrock (converse).  The reader sees a copy of the bytes; it changes
nothing, and no content can make it raise.

Law: usage is what the provider reported last.  If a stream ends before its provider has reported the output, the output
is at least the text that came, counted by ``count``.  If the provider reported nothing, the usage is None.
"""

from __future__ import annotations

import json
import zlib
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ratekeeper.outbound.estimate import count_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONGEST = 64 * 1024 * 1024  # bytes of one body or of one event: a longer one is not read
KEYS = (b'"usage"', b'"usageMetadata"')
DELTA_KEYS = ("text", "thinking", "partial_json")  # output in the deltas of Anthropic


class Usage(NamedTuple):
    """Tokens of one call, as providers count them against their limits.

    ``input_tokens`` has the input that was written to a prompt cache.  ``cache_read_tokens`` is input that came from a
    cache: OpenAI and Google count it as input as well, Anthropic and Bedrock do not count it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


class UsageReader:
    """Reads one response: ``feed`` its bytes as they pass, then ask ``finish`` for the usage."""

    def __init__(
        self, content_type: str = "", content_encoding: str = "", count: Callable[[str], int] = count_text
    ) -> None:
        self.is_stream = content_type.lower().startswith("text/event-stream")
        self._count = count
        self._decode = decoder(content_encoding)
        self._bytes = bytearray()  # of the body, or of the line that is not complete yet
        self._event: list[bytes] = []  # the data lines of the event that is not complete yet
        self._event_size = 0
        self._input: int | None = None
        self._output = 0
        self._cached = 0
        self._is_final = False
        self._received: list[str] = []  # output that the provider has not reported yet
        self._is_readable = True

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the response."""
        if not self._is_readable:
            return
        try:
            self._bytes += self._decode(chunk)
        except Exception:  # damaged or unknown encoding: each library raises an error of its own
            self._stop()
            return
        if self.is_stream:
            self._read_lines()
        if len(self._bytes) + self._event_size > LONGEST:
            self._stop()

    def finish(self) -> Usage | None:
        """The usage, or None if the provider reported none."""
        if self.is_stream:
            self._end_event()
        elif self._bytes:
            self._read_json(bytes(self._bytes))
        self._stop()
        if self._input is None:
            return None
        output = self._output
        if self.is_stream and not self._is_final and self._received:
            output = max(output, self._count("".join(self._received)))
        return Usage(self._input, output, self._cached)

    def _stop(self) -> None:
        """Read no further: the end of the body, or more than fits."""
        self._is_readable = False
        self._bytes.clear()
        self._event.clear()
        self._event_size = 0

    def _read_lines(self) -> None:
        *lines, rest = self._bytes.split(b"\n")
        if not lines:
            return
        self._bytes = rest
        for line in lines:
            line = line.rstrip(b"\r")
            if not line:
                self._end_event()
            elif line.startswith(b"data:"):
                self._event.append(bytes(line[5:]))
                self._event_size += len(line)

    def _end_event(self) -> None:
        content = b"\n".join(self._event)
        self._event.clear()
        self._event_size = 0
        # Until the output is reported, every event may have text.  After that, only those with usage matter.
        if content and (not self._is_final or any(key in content for key in KEYS)):
            self._read_json(content)

    def _read_json(self, content: bytes) -> None:
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError):
            return  # "[DONE]", or not JSON at all
        if isinstance(answer, list):  # Google without server-sent events: a list of partial answers
            for part in answer:
                self._read_answer(part)
        else:
            self._read_answer(answer)

    def _read_answer(self, answer: Any) -> None:
        if not isinstance(answer, dict):
            return
        kind = answer.get("type")
        if kind == "message_start":  # Anthropic: the input is final, the output has just begun
            self._take(mapping(answer.get("message")).get("usage"), is_final=False)
        elif isinstance(kind, str) and kind.startswith("response."):  # OpenAI's responses API
            self._take(mapping(answer.get("response")).get("usage"))
        elif "usageMetadata" in answer:
            self._take(answer["usageMetadata"])
        elif "usage" in answer:
            self._take(answer["usage"])
        elif not self._is_final:
            delta = mapping(answer.get("delta"))
            self._received += [text for key in DELTA_KEYS if isinstance(text := delta.get(key), str)]

    def _take(self, usage: Any, is_final: bool = True) -> None:
        """Take over what a ``usage`` object reports; a later one replaces an earlier one, field by field."""
        if not isinstance(usage, dict):
            return
        numbers = {key: value for key, value in usage.items() if value.__class__ is int and value >= 0}
        if not numbers:
            return
        cached = first(numbers, "cache_read_input_tokens", "cacheReadInputTokens", "cachedContentTokenCount")
        for details in ("prompt_tokens_details", "input_tokens_details"):
            cached = first(mapping(usage.get(details)), "cached_tokens") if cached is None else cached
        written = first(numbers, "cache_creation_input_tokens", "cacheWriteInputTokens")
        inputs = first(numbers, "input_tokens", "prompt_tokens", "inputTokens", "promptTokenCount")
        output = first(numbers, "output_tokens", "completion_tokens", "outputTokens", "candidatesTokenCount")
        total = first(numbers, "total_tokens", "totalTokenCount")
        if "totalTokenCount" in numbers and inputs is not None and total is not None:
            output = max(0, total - inputs)  # with the thoughts, which Google counts apart from the candidates
        elif output is None and total is not None and inputs is not None:
            output = max(0, total - inputs)  # embeddings
        if cached is not None:
            self._cached = cached
        if inputs is not None:
            self._input = inputs + (written or 0)
        if output is not None:
            self._output = output
        if self._input is None and total is not None:
            self._input = total
        self._is_final = is_final


def mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def first(numbers: Mapping[str, Any], *keys: str) -> int | None:
    """The number under the first of ``keys`` that has one."""
    return next((numbers[key] for key in keys if numbers.get(key).__class__ is int), None)


def decoder(encoding: str) -> Callable[[bytes], bytes]:
    """A function that decodes the chunks of a body, one after the other, or raises."""
    names = [name.strip() for name in encoding.lower().split(",") if name.strip() not in ("", "identity")]
    if not names:
        return bytes
    if len(names) > 1:
        return undecodable
    name = names[0]
    try:
        if name in ("gzip", "x-gzip"):
            return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress
        if name == "deflate":
            return zlib.decompressobj().decompress
        if name == "br":  # a client that accepts br or zstd has one of these modules
            brotli: Any = import_module("brotli")
            return brotli.Decompressor().process
        if name == "zstd":
            zstandard: Any = import_module("zstandard")
            return zstandard.ZstdDecompressor().decompressobj().decompress
    except ImportError:
        pass
    return undecodable


def undecodable(chunk: bytes) -> bytes:
    raise ValueError("content-encoding: expected gzip, deflate, br or zstd.")

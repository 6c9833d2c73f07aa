"""Estimates the tokens of a call to a language model from the body of its request.

>>> call = ModelCall("/v1/messages", {"model": "m", "max_tokens": 100, "messages": [{"content": "how are you?"}]})
>>> call.model, call.text, TokenEstimator()(call)
('m', 'how are you?', (7, 100))

The default counts four bytes of UTF-8 as one token, 4 tokens for each message, 1,000 for each image or file, and as
output the call's own maximum, or 1,000 if it names none.  An estimate need not be exact, as the answer's usage replaces
it.  Until then an estimate that is too low lets other calls start too early, so estimate high rather than low.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4  # its role, and what separates it from the next
TOKENS_PER_FILE = 1_000
MOST_OUTPUT = 1_000  # of a call that does not limit its output

PROMPT_KEYS = ("system", "messages", "instructions", "input", "prompt", "contents", "systemInstruction", "tools")
OUTPUT_KEYS = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens", "maxTokens")
FILE_KEYS = ("data", "image_url", "file_data", "file_id", "bytes", "fileUri")
WITHOUT_OUTPUT = ("/embeddings", "/count_tokens", "/moderations")
NAMES = ("role", "type", "id", "tool_call_id", "tool_use_id", "cache_control", "media_type", "mimeType")


def count_text(text: str) -> int:
    """About the number of tokens of ``text``: its bytes in UTF-8, divided by four."""
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)


class ModelCall:
    """The request of one call: its path, and its body as Python objects; ``{}`` if that is not a JSON object."""

    def __init__(self, path: str, body: Mapping[str, Any]) -> None:
        self.path = path
        self.body = body

    @property
    def model(self) -> str:
        """The model, by the body, or by a path such as ``/models/NAME:generateContent`` or ``/model/NAME/converse``."""
        model = self.body.get("model")
        if isinstance(model, str):
            return model
        parts = self.path.split("/")
        for place in ("models", "model", "deployments"):
            if place in parts[:-1]:
                return parts[parts.index(place) + 1].partition(":")[0]
        return ""

    @property
    def is_model_call(self) -> bool:
        """Whether there is a prompt.  Other requests, such as a list of models, cost no tokens."""
        return any(key in self.body for key in PROMPT_KEYS)

    @cached_property
    def prompt(self) -> tuple[list[str], int]:
        """All texts of the prompt, and the number of its images and files."""
        texts: list[str] = []
        files = 0
        for key in PROMPT_KEYS:
            for text in leaves(self.body.get(key)):
                if text is None:
                    files += 1
                else:
                    texts.append(text)
        return texts, files

    @property
    def text(self) -> str:
        """All text of the prompt."""
        return "\n".join(self.prompt[0])

    @property
    def max_output(self) -> int | None:
        """The most tokens that the call lets the model write, for all its answers together; None without a limit."""
        places = [self.body, self.body.get("generationConfig"), self.body.get("inferenceConfig")]
        for place in places:
            for key in OUTPUT_KEYS:
                most = place.get(key) if isinstance(place, dict) else None
                if most.__class__ is int and most > 0:
                    answers = self.body.get("n")
                    return most * (answers if answers.__class__ is int and answers > 0 else 1)
        return None


def leaves(value: Any) -> Iterator[str | None]:
    """Each text in ``value``; None for each image or file."""
    pending = [value]  # not recursive: a body may be nested deeply
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict):
            for key in reversed(value):
                if key in FILE_KEYS and value[key]:
                    yield None
                elif key not in NAMES:
                    pending.append(value[key])


class TokenEstimator:
    """Estimates the input and output tokens of a ModelCall; callable, as every ``estimate`` is.

    ``count`` counts the tokens of a text, for example with a tokenizer; ``output`` is for calls without a maximum.
    """

    def __init__(self, count: Callable[[str], int] = count_text, output: int = MOST_OUTPUT) -> None:
        if not callable(count):
            raise InvalidInput(f"count: expected a function from a text to its tokens, got {shown(count)}.")
        if output.__class__ is not int or output < 0:
            raise InvalidInput(f"output: expected a whole number of tokens from 0, got {shown(output)}.")
        self.count = count
        self.output = output

    def __call__(self, call: ModelCall) -> tuple[int, int]:
        if not call.is_model_call:
            return 0, 0
        texts, files = call.prompt
        messages = call.body.get("messages")
        inputs = self.count("\n".join(texts)) if texts else 0
        inputs += TOKENS_PER_FILE * files + TOKENS_PER_MESSAGE * (len(messages) if isinstance(messages, list) else 0)
        most = call.max_output
        if most is None:
            most = 0 if call.path.endswith(WITHOUT_OUTPUT) else self.output
        return inputs, most

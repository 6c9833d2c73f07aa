"""Words that the constructor of an outbound client does not take, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.errors import InvalidInput, did_you_mean

OTHER_WORDS = {  # of other libraries, and of our own classes -> what to write
    "timeout": "max_wait=, the longest wait in seconds",
    "limits": "limit=",
    "rate": "limit=",
    "rate_limit": "limit=",
    "rpm": "limit='500/minute', or budget=Budget(rpm=500)",
    "tpm": "budget=Budget(tpm=100_000)",
    "tokens": "budget=Budget(tokens='100000/minute')",
    "retries": "max_retries=",
    "concurrency": "concurrent=",
    "max_concurrency": "concurrent=",
    "redis_url": "store=",
    "storage": "store=",
}


class TeachingOptions:
    """Refuses words that ``__init__`` does not take; type checkers do so by themselves."""

    if not TYPE_CHECKING:

        def __new__(cls, *arguments, **words):
            """Refuse words that ``__init__`` does not take."""
            known = [word for word in cls.__init__.__annotations__ if word != "return"]
            for word in words:
                if word in known:
                    continue
                written = OTHER_WORDS.get(word, "")
                is_there = written.partition("=")[0] in known
                advice = f" Write {written}." if is_there else did_you_mean(word, known)
                raise InvalidInput(f"{cls.__name__}: expected one of {', '.join(known)}, got {word!r}.{advice}")
            return super().__new__(cls)

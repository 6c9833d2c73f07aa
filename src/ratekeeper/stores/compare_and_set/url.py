"""The URL of a store on a backend: its place, and the options in its query string.  No I/O."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from ratekeeper.errors import InvalidStore
from ratekeeper.stores.options import advice_on, shown_part

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def seconds(text: str) -> float:
    return float(text.removesuffix("s")) if not text.endswith("ms") else float(text[:-2]) / 1000


# The options of every store on a backend: how each is read, and what an error says to write.
OPTIONS: dict[str, tuple[Any, str]] = {
    "prefix": (str, "text that the names of records begin with"),
    "secret": (str, "text that digests of keys are keyed with"),
    "deadline": (seconds, "seconds, or milliseconds such as 50ms"),
    "on_store_error": (str, "local, allow or deny"),
    "local_share": (float, "a number above 0, at most 1"),
}


class StoreUrl:
    """A URL in parts; ``options`` are those of its query string, and the given ones, which take precedence."""

    def __init__(self, url: str, given: Mapping[str, Any], more: Mapping[str, tuple[Any, str]] | None = None) -> None:
        known = {**OPTIONS, **(more or {})}
        parts = urlsplit(url)
        self.scheme = parts.scheme
        place = f"store {self.scheme}://"
        if "#" in url:
            raise InvalidStore(f"{place}: expected no '#', which ends a URL. Write it as %23.")
        try:
            self.host, self.port = parts.hostname or "", parts.port
        except ValueError:
            raise InvalidStore(f"{place}: expected a port from 1 to 65535 after the host.") from None
        self.has_user = "@" in parts.netloc
        self.path = unquote(parts.path)
        self.options = {name: value for name, value in given.items() if value is not None}
        for name, text in parse_qsl(parts.query, keep_blank_values=True):
            if name not in known:
                got = shown_part(url, name)
                raise InvalidStore(f"{place}: expected a known option, got {got}.{advice_on(name, known)}")
            read, wanted = known[name]
            try:
                value = read(text)
            except ValueError:
                got = shown_part(url, text)
                raise InvalidStore(f"{place}: expected {name} to be {wanted}, got {got}.") from None
            self.options.setdefault(name, value)
        unknown = sorted(set(self.options) - {*known, "fallback"})
        if unknown:
            raise InvalidStore(f"{place}: expected a known option, got {unknown[0]!r}.{advice_on(unknown[0], known)}")

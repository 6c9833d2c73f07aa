"""The facts of one request, as an adapter found them.  Nothing here is believed yet: identity decides that."""

from __future__ import annotations

from ratekeeper.errors import InvalidInput, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Pairs = Iterable[tuple[str | bytes, str | bytes]]


class Request:
    """What is asked, by whom it came: ``Request(method="GET", path="/search", peer="203.0.113.9")``.

    ``path`` is as in the request line, still percent-encoded; adapters whose server decoded it say ``decoded=True``.
    ``peer`` is the other end of the socket, None for a UNIX socket.  ``route`` is the framework's own template of
    the matched route.  ``facts`` are what the application itself has verified: ``{"user": "42", "tier": "paid"}``.
    """

    __slots__ = ("decoded", "facts", "headers", "method", "path", "peer", "query", "route", "size", "text_host")
    method: str
    path: str
    peer: str | None
    headers: Iterable[tuple[bytes, bytes]]  # lower-case names
    text_host: str | None
    route: str | None
    size: int | None
    query: bytes
    decoded: bool
    facts: Mapping[str, Any] | None

    def __init__(
        self,
        method: str = "GET",
        path: str = "/",
        peer: str | None = None,
        headers: Pairs | Mapping[str, str] = (),
        *,
        host: str | None = None,
        route: str | None = None,
        size: int | None = None,
        query: str | bytes = b"",
        decoded: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        if not (isinstance(method, str) and isinstance(path, str) and (peer is None or isinstance(peer, str))):
            raise InvalidInput(
                "request: expected method, path and peer as text, peer None for a UNIX socket, "
                f"got {shown(method)}, {shown(path)} and {type(peer).__name__}."
            )
        pairs = headers.items() if hasattr(headers, "items") else headers
        path, _, asked = path.partition("?") if not decoded else (path, "", "")
        self.method = method
        self.path = path
        self.peer = peer
        try:
            self.headers = [(octets(name).lower(), octets(value)) for name, value in pairs]
        except (AttributeError, TypeError, ValueError):  # not shown: they may hold secrets
            raise InvalidInput(
                "request: expected headers as pairs or a dictionary of text, got something else."
            ) from None
        self.text_host = host
        self.route = route
        self.size = size
        self.query = octets(query) or octets(asked)
        self.decoded = decoded
        self.facts = facts

    def values(self, name: bytes) -> list[str]:
        """Each line of a header, in order; ``name`` in lower case.  ``X_Name`` is another header than ``X-Name``."""
        return [value.decode("latin-1") for header, value in self.headers if header == name]

    def value(self, name: bytes) -> str | None:
        """A header that may come once: None where it is missing, empty, or there are several to choose from."""
        found = None
        for header, value in self.headers:
            if header == name:
                if found is not None:
                    return None
                found = value
        return found.decode("latin-1").strip() or None if found else None

    @property
    def host(self) -> str:
        """In lower case, without port and final dot; empty if unknown."""
        text = self.text_host if self.text_host is not None else self.value(b"host") or authority(self.path)
        return bare_host(text) if text else ""

    @property
    def length(self) -> int | None:
        """Bytes of the body, None if unknown."""
        if self.size is not None:
            return self.size
        text = self.value(b"content-length")
        return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 16 else None

    def __repr__(self) -> str:
        return f"Request({self.method!r}, {self.path!r})"  # neither peer nor headers: they end up in logs


def octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def authority(path: str) -> str:
    """The host of a request target in absolute form, ``http://host/path``."""
    scheme, found, rest = path.partition("://")
    return rest.partition("/")[0] if found and scheme.isalpha() else ""


def bare_host(text: str) -> str:
    """``Api.Example.:443`` -> ``api.example``."""
    text = text.strip().lower()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        host = text.rstrip(":")
    return host.rstrip(".")


def new_request(
    method: str, path: str, peer: str | None, headers: Iterable[tuple[bytes, bytes]], query: bytes
) -> Request:
    """A Request from what a server has already decoded and put in order, without looking at it again."""
    made = Request.__new__(Request)
    made.method = method
    made.path = path
    made.peer = peer
    made.headers = headers
    made.text_host = None
    made.route = None
    made.size = None
    made.query = query
    made.decoded = True
    made.facts = None
    return made


def is_preflight(request: Request) -> bool:
    """A browser asking whether it may ask: it carries no credentials and does no work."""
    return (
        request.method == "OPTIONS"
        and bool(request.values(b"origin"))
        and bool(request.values(b"access-control-request-method"))
    )

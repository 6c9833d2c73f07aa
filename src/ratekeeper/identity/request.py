"""One request, as an adapter received it.  Nothing in it is trusted yet: identity decides that."""

from __future__ import annotations

from ratekeeper.errors import InvalidInput, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Pairs = Iterable[tuple[str | bytes, str | bytes]]


class Request:
    """A request to decide: ``Request(method="GET", path="/search", peer="203.0.113.9")``.

    ``path`` is that of the request line, still percent-encoded; if the server has decoded it, pass ``decoded=True``.
    ``root_path`` is the part of it under which the application is mounted; rules match what follows.
    ``peer`` is the address at the other end of the socket, None for a UNIX socket.  ``route`` is the framework's
    template of the matched route.  ``size`` is the length of the body in bytes, in place of Content-Length.
    ``facts`` are what the application itself has verified: ``{"user": "42", "tier": "paid"}``.
    """

    __slots__ = (
        "_host",
        "decoded",
        "facts",
        "headers",
        "method",
        "path",
        "peer",
        "query",
        "root_path",
        "route",
        "size",
    )
    method: str
    path: str
    peer: str | None
    headers: Iterable[tuple[bytes, bytes]]  # lower-case names
    _host: str | None
    route: str | None
    size: int | None
    query: bytes
    decoded: bool
    facts: Mapping[str, Any] | None
    root_path: str

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
        root_path: str = "",
    ) -> None:
        if not (isinstance(method, str) and isinstance(path, str) and (peer is None or isinstance(peer, str))):
            raise InvalidInput(
                "request: expected method, path and peer as text, peer None for a UNIX socket, "
                f"got {shown(method)}, {shown(path)} and {type(peer).__name__}."
            )
        pairs = headers.items() if hasattr(headers, "items") else headers
        path, _, path_query = path.partition("?") if not decoded else (path, "", "")
        self.method = method
        self.path = path
        self.peer = peer
        try:
            self.headers = [(octets(name).lower(), octets(value)) for name, value in pairs]
        except (AttributeError, TypeError, ValueError):  # not shown: they may hold secrets
            raise InvalidInput(
                "request: expected headers as pairs or a dictionary of text, got something else."
            ) from None
        self._host = host
        self.route = route
        self.size = size
        self.query = octets(query) or octets(path_query)
        self.decoded = decoded
        self.facts = facts
        self.root_path = root_path

    @property
    def joins_names(self) -> bool:
        """Whether the server may have joined ``X_Name``, which any client can write, with ``X-Name`` of a proxy."""
        return False

    def values(self, name: bytes) -> list[str]:
        """Return the value of each line of a header; ``name`` in lower case.  ``X_Name`` differs from ``X-Name``."""
        return [value.decode("latin-1") for header, value in self.headers if header == name]

    def value(self, name: bytes) -> str | None:
        """Return the value of a header; None if it is missing or empty, or if there are several."""
        only = None
        for header, value in self.headers:
            if header == name:
                if only is not None:
                    return None
                only = value
        return only.decode("latin-1").strip() or None if only else None

    @property
    def host(self) -> str:
        """The host in lower case, without port and final dot; empty if unknown."""
        text = self._host if self._host is not None else self.value(b"host") or authority(self.path)
        return bare_host(text) if text else ""

    @property
    def length(self) -> int | None:
        """The length of the body in bytes; None if unknown."""
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
    scheme, separator, rest = path.partition("://")
    return rest.partition("/")[0] if separator and scheme.isalpha() else ""


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
    """Make a Request without checks, from what a server has already decoded and validated."""
    request = Request.__new__(Request)
    request.method = method
    request.path = path
    request.peer = peer
    request.headers = headers
    request._host = None
    request.route = None
    request.size = None
    request.query = query
    request.decoded = True
    request.facts = None
    request.root_path = ""
    return request


def is_preflight(request: Request) -> bool:
    """Whether a browser only asks for permission (CORS): such a request has no credentials and does no work."""
    return (
        request.method == "OPTIONS"
        and bool(request.values(b"origin"))
        and bool(request.values(b"access-control-request-method"))
    )

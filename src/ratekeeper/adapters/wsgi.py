"""WSGI middleware, for any WSGI application.

    application = RateLimitMiddleware(application, policy="rules.toml")

Bodies and streams pass untouched.  WSGI spells ``X_Name`` and ``X-Name`` alike: behind a proxy, use a server that drops
names with underscores, as gunicorn does.  It cannot tell that a client left either, so the place of one that leaves a
leaky bucket's queue stays taken.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.request_limits import DECIDED, RequestLimits
from ratekeeper.identity.request import new_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.identity.request import Request
    from ratekeeper.rules.policy import Policy

    Environ = dict[str, Any]
    StartResponse = Callable[..., Callable[[bytes], object]]
    App = Callable[[Environ, StartResponse], Iterable[bytes]]
    Facts = Callable[[Environ], Mapping[str, Any] | None]


class RateLimitMiddleware:
    """Ask a policy before each request.  ``facts`` tells what the application has verified, as a dictionary."""

    def __init__(self, app: App, policy: Policy | str | Path | Mapping[str, Any], facts: Facts | None = None) -> None:
        self.app = app
        self.policy = policy_of(policy)
        self.facts = facts

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        decided = environ[DECIDED] = RequestLimits(self)
        request = request_of(environ)
        if self.facts is not None:
            request.facts = self.facts(environ)
        refusal = decided.check(self.policy, request)
        if refusal is not None:
            return refuse(refusal, decided, environ, start_response)

        def with_fields(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *decided.added], *([exc_info] if exc_info else []))

        if not decided.leases:
            return self.app(environ, with_fields)
        try:
            return LeasedBody(self.app(environ, with_fields), decided)
        except BaseException:
            decided.release()
            raise


class LeasedBody:
    """A response whose end gives back what was held for it."""

    def __init__(self, response: Iterable[bytes], decided: RequestLimits) -> None:
        self.response = response
        self.decided = decided

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.response)

    def close(self) -> None:
        try:
            if hasattr(self.response, "close"):
                self.response.close()
        finally:
            self.decided.release()


def refuse(
    refusal: HttpVerdict, decided: RequestLimits, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    body = refusal.body
    fields = [*decided.fields, ("content-length", str(len(body)))]
    start_response(f"{refusal.status} {HTTPStatus(refusal.status).phrase}", fields)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def request_of(environ: Environ) -> Request:
    """The facts of a request; its path is the whole one, wherever the application is mounted."""
    path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    headers = [(name_of(name), octets(value)) for name, value in environ.items() if name[:5] == "HTTP_"]
    if environ.get("CONTENT_LENGTH"):
        headers.append((b"content-length", octets(environ["CONTENT_LENGTH"])))
    return new_request(
        environ["REQUEST_METHOD"],
        octets(path).decode("utf-8", "replace") or "/",
        environ.get("REMOTE_ADDR") or None,
        headers,
        octets(environ.get("QUERY_STRING", "")),
    )


@lru_cache(maxsize=512)
def name_of(key: str) -> bytes:
    return octets(key[5:].replace("_", "-").lower())


def octets(text: str) -> bytes:
    return text.encode("latin-1", "replace")

"""WSGI middleware, for any WSGI application.

    application = RateLimitMiddleware(application, policy="rules.toml")

Bodies and streams pass untouched.  WSGI spells ``X_Name`` and ``X-Name`` alike: behind a proxy, use a server that drops
names with underscores, as gunicorn does.  WSGI does not say either that a client has disconnected, so a client that
leaves the queue of a leaky bucket still uses up its turn.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import policy_of
from ratekeeper.adapters.request_limits import LIMITS, RequestLimits
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


__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Ask a policy before each request.

    ``facts`` is a function of the environ that returns what the application has verified, as a dictionary.
    """

    def __init__(self, app: App, policy: Policy | str | Path | Mapping[str, Any], facts: Facts | None = None) -> None:
        self._app = app
        self.policy = policy_of(policy)
        self._facts = facts

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = request_of(environ)
        if self._facts is not None:
            request.facts = self._facts(environ)
        limits = environ[LIMITS] = RequestLimits(self, self.policy, request.facts)
        verdict = limits.check(self.policy, request)
        if not verdict.allowed:
            return refuse(verdict, limits, environ, start_response)

        def start_with_headers(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            return start_response(status, [*headers, *limits.added_headers], *([exc_info] if exc_info else []))

        if not self.policy.leases:
            return self._app(environ, start_with_headers)
        try:
            return LeasedBody(self._app(environ, start_with_headers), limits)
        except BaseException:
            limits.release()
            raise


class LeasedBody:
    """A response body that releases the leases of its request when it is closed."""

    def __init__(self, response: Iterable[bytes], limits: RequestLimits) -> None:
        self.response = response
        self.limits = limits

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.response)

    def close(self) -> None:
        try:
            if hasattr(self.response, "close"):
                self.response.close()
        finally:
            self.limits.release()


def refuse(
    verdict: HttpVerdict, limits: RequestLimits, environ: Environ, start_response: StartResponse
) -> Iterable[bytes]:
    body = verdict.body
    headers = [*limits.headers, ("content-length", str(len(body)))]
    start_response(f"{verdict.status} {HTTPStatus(verdict.status).phrase}", headers)
    return [b"" if environ["REQUEST_METHOD"] == "HEAD" else body]


def request_of(environ: Environ) -> Request:
    """Translate the environ; the path is the full one, wherever the application is mounted."""
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

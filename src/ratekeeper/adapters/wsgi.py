"""WSGI middleware, for any WSGI application.

    application = RateLimitMiddleware(application, limit="100/minute")
    application = RateLimitMiddleware(application, policy="rules.toml")

Bodies and streams pass untouched.  WSGI spells ``X_Name`` and ``X-Name`` alike: see ``wsgi_server.py``.  It does not
say either that a client has disconnected, so a client that leaves the queue of a leaky bucket still uses up its turn.
"""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ratekeeper.adapters import TeachingConstructor, expect_facts, policy_of
from ratekeeper.adapters.hooks import Hooks
from ratekeeper.adapters.request_limits import LIMITS, RequestLimits
from ratekeeper.adapters.route_table import warn_of_unreachable_rules, werkzeug_routes
from ratekeeper.adapters.wsgi_server import joins_names, warn_of_server
from ratekeeper.errors import InvalidInput, LimitExceeded, shown
from ratekeeper.identity.request import Request
from ratekeeper.rules.condition import ResponseHead
from ratekeeper.rules.exceeded import exceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ratekeeper.adapters import PlainLimits, Rules
    from ratekeeper.adapters.hooks import ExemptWhen, OnBreach
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.stores.protocol import Store

    Environ = dict[str, Any]
    StartResponse = Callable[..., Callable[[bytes], object]]
    App = Callable[[Environ, StartResponse], Iterable[bytes]]
    Facts = Callable[[Environ], Mapping[str, Any] | None]


__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware(TeachingConstructor):
    """Ask a policy before each request, or one ``limit`` for each client: ``limit="100/minute"``.

    ``facts`` is a function of the environ that returns what the application has verified, as a dictionary.
    ``exempt_when`` is one that says whether a request is exempt from every limit.  ``on_breach`` is called with the
    verdict of each refusal; it returns a WSGI application that answers the request, or None.
    """

    def __init__(
        self,
        app: App,
        policy: Rules | None = None,
        facts: Facts | None = None,
        *,
        limit: PlainLimits | None = None,
        store: str | Store | None = None,
        exempt_when: ExemptWhen | None = None,
        on_breach: OnBreach | None = None,
    ) -> None:
        self._app = app
        self._hooks = Hooks("RateLimitMiddleware", exempt_when, on_breach)
        self.policy = policy_of(policy, limit=limit, store=store)
        self.policy.warm_up()
        self._facts = facts
        self._checked_rules: object = None  # whose unreachable rules were logged

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        request = request_of(environ)
        if self.policy.compiled is not self._checked_rules:
            self._look_for_unreachable_rules()
            warn_of_server(self.policy.compiled.identity.addresses, environ)
        if self._facts is not None:
            request.facts = expect_facts(self._facts(environ))
        limits = environ[LIMITS] = RequestLimits(self, self.policy, request.facts)
        limits.is_exempt = self._hooks.exempts(environ)
        if not limits.is_exempt:
            verdict = limits.check(self.policy, request)
            if not verdict.allowed:
                return self._refuse(verdict, limits, environ, start_response)

        def start_with_headers(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            if limits.reserves:
                status_code = int(status[:3])
                present = {name.lower(): value for name, value in headers}
                limits.settle(status_code, ResponseHead(status_code, present))
            headers = [*headers, *limits.headers_beside({name.lower() for name, _ in headers})]
            return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

        try:
            response = self._app(environ, start_with_headers)
        except LimitExceeded as error:
            limits.release()
            limits.refuse(exceeded(error, request, self.policy))
            return self._refuse(limits.verdict, limits, environ, start_response)  # type: ignore[arg-type]
        except BaseException:
            limits.settle(500, ResponseHead(500, {}))  # what the server in front answers
            limits.release()
            raise
        return LeasedBody(response, limits) if self.policy.leases else response

    def _refuse(
        self, verdict: HttpVerdict, limits: RequestLimits, environ: Environ, start_response: StartResponse
    ) -> Iterable[bytes]:
        answer = self._hooks.answer(verdict)
        if answer is None:
            return refuse(verdict, limits, environ, start_response)
        if not callable(answer):
            raise InvalidInput(
                f"RateLimitMiddleware: expected on_breach to return a WSGI application or None, got {shown(answer)}."
            )

        def start_with_headers(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            headers = [*headers, *limits.headers_beside({name.lower() for name, _ in headers})]
            return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

        return answer(environ, start_with_headers)

    def _look_for_unreachable_rules(self) -> None:
        """Log the rules that no route of Flask can match: at the first request, and after each reload."""
        self._checked_rules = self.policy.compiled
        url_map = getattr(getattr(self._app, "__self__", self._app), "url_map", None)
        if url_map is not None:
            warn_of_unreachable_rules(self.policy, werkzeug_routes(url_map))


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


class WsgiRequest(Request):
    """A request that looks its header fields up in the environ, instead of copying all of them first."""

    __slots__ = ("_environ",)
    _environ: Environ

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]
        """All header fields, with names in lower case."""
        environ = self._environ
        fields = [(key[5:].replace("_", "-").lower(), text) for key, text in environ.items() if key[:5] == "HTTP_"]
        if environ.get("CONTENT_LENGTH"):
            fields.append(("content-length", environ["CONTENT_LENGTH"]))
        return [(octets(name), octets(text)) for name, text in fields]

    @property
    def joins_names(self) -> bool:
        return joins_names(self._environ)

    def values(self, name: bytes) -> list[str]:
        text = self._environ.get(environ_key(name))
        if text is None or (not text and name == b"content-length"):  # a server may set that to nothing
            return []
        return [octets(text).decode("latin-1")]

    def value(self, name: bytes) -> str | None:
        text = self._environ.get(environ_key(name))
        if not text:
            return None
        return (text if text.isascii() else octets(text).decode("latin-1")).strip() or None


def request_of(environ: Environ) -> Request:
    """Translate the environ; rules match what follows the SCRIPT_NAME, as the application's own routes do."""
    path = environ.get("PATH_INFO", "")
    if not path.isascii():
        path = octets(path).decode("utf-8", "replace")
    root_path = environ.get("SCRIPT_NAME", "")
    if root_path:
        root_path = octets(root_path).decode("utf-8", "replace")
        path = root_path + path
    request = WsgiRequest.__new__(WsgiRequest)
    request._environ = environ.copy()  # the environ itself will lead to this request: a cycle, left to the collector
    request.method = environ["REQUEST_METHOD"]
    request.path = path or "/"
    request.root_path = root_path
    request.peer = environ.get("REMOTE_ADDR") or None
    request._host = request.route = request.size = request.facts = None
    request.query = environ.get("QUERY_STRING", "").encode("latin-1", "replace")
    request.decoded = True
    return request


@lru_cache(maxsize=512)
def environ_key(name: bytes) -> str:
    """The key of a header in an environ; of a name with an underscore none, as its dashed form has the same key."""
    if b"_" in name:
        return ""
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key == "CONTENT_LENGTH" else f"HTTP_{key}"


def octets(text: str) -> bytes:
    return text.encode("latin-1", "replace")

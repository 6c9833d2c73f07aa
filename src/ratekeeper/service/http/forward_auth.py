"""``/v1/auth/...``: may this request pass?  For nginx ``auth_request``, Traefik ForwardAuth, Caddy ``forward_auth``,
HAProxy and Envoy ``ext_authz``.

    /v1/auth/original         the request is in X-Original-Method, -URI and -Host (nginx, HAProxy)
    /v1/auth/forwarded        the request is in X-Forwarded-Method, -Uri and -Host (Traefik, Caddy)
    /v1/auth/path/...         the request is this one, without the prefix (Envoy)

Options stand before the last word: ``/v1/auth/deny-403/original``.  ``deny-NNN`` is the status of every refusal, for a
proxy that understands few; ``unavailable-NNN`` is that of a refusal because the store does not answer, for a proxy that
takes a 503 for a failure of the service.

Law: only a peer in ``trusted_proxies`` is believed.  Options come from the path that the proxy's configuration writes,
never from a query or a header field, which a client may have written.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.identity.request import Request
from ratekeeper.service.http.api import error_response
from ratekeeper.service.http.response import problem, response
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.server import Call

    AnyResponse = bytes | Awaitable[bytes]

log = logging.getLogger("ratekeeper")
PREFIX = "/v1/auth"
FORMS = {
    "original": (b"x-original-method", (b"x-original-uri", b"x-original-url"), b"x-original-host"),
    "forwarded": (b"x-forwarded-method", (b"x-forwarded-uri",), b"x-forwarded-host"),
}
PATH = "path"
PROXY_HEADERS = frozenset(name for method, uris, _ in FORMS.values() for name in (method, *uris))
OPTION = re.compile("(deny|unavailable)-(4[0-9][0-9])")
EXPECTED = (
    f"auth: expected {PREFIX}/original, {PREFIX}/forwarded or {PREFIX}/path/..., "
    "with deny-NNN or unavailable-NNN (400 to 499) before the last word. "
    "Correct the address in the proxy's configuration."
)
LONGEST_BODY = 2048  # bytes of a refusal's body as a header field: a proxy's buffer for all of them may be 4 kB


class AuthQuestion:
    """What the address says: where the request is, and the statuses that the proxy understands."""

    __slots__ = ("deny", "form", "path", "unavailable")

    def __init__(self, form: str, path: str, deny: int, unavailable: int) -> None:
        self.form = form
        self.path = path  # behind /path
        self.deny = deny  # 0: that of the verdict
        self.unavailable = unavailable


class ForwardAuth:
    """Answers proxies."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.has_warned = False

    def serve(self, call: Call) -> AnyResponse:
        try:
            question = question_of(call.path)
            request = self.original(call, question)
        except InvalidInput as error:
            return problem(400, str(error))
        if request is None:
            if not self.has_warned:
                self.has_warned = True
                log.warning(
                    "auth: rejected a peer that is not in trusted_proxies with 403. If it is your proxy, add it there."
                )
            return problem(403, "auth: expected a proxy that trusted_proxies names, got another peer.")
        outcome = self.decider.check(request)
        if hasattr(outcome, "__await__") or outcome.delay:

            async def later() -> bytes:
                try:
                    return await self.turn(await outcome if hasattr(outcome, "__await__") else outcome, question)
                except StoreUnavailable as error:
                    return error_response(error)

            return later()
        return auth_response(outcome, question)

    async def turn(self, verdict: HttpVerdict, question: AuthQuestion) -> bytes:
        """Answer when the turn of a queued request has come; if the proxy leaves, give its place back."""
        if verdict.allowed and verdict.delay:
            policy = self.decider.policy
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
            except BaseException:
                await policy.agive_back(verdict)
                raise
        return auth_response(verdict, question)

    def original(self, call: Call, question: AuthQuestion) -> Request | None:
        """The request that a proxy asks about; None if the peer is not in ``trusted_proxies``."""
        addresses = self.decider.policy.compiled.identity.addresses
        if not addresses.parse(call.peer).trusted:
            return None
        headers = [(name, value) for name, value in call.headers if name not in PROXY_HEADERS]
        if question.form == PATH:
            return Request(call.method, target_of(question.path), call.peer, headers, query=call.query)
        method_name, uri_names, host_name = FORMS[question.form]
        uris = [text for name in uri_names if (text := only_value(call, name))]
        method = only_value(call, method_name)
        if len(uris) != 1 or method is None:
            names = f"{method_name.decode()} and {uri_names[0].decode()}"
            raise InvalidInput(f"auth: expected the original request in {names}. Let the proxy set both.")
        (uri,) = uris
        if not uri.startswith("/"):  # X-Original-URL may be absolute
            uri = "/" + uri.partition("://")[2].partition("/")[2]
        return Request(method, target_of(uri), call.peer, headers, host=only_value(call, host_name))


def question_of(path: str) -> AuthQuestion:
    """Read the address that the proxy's configuration says."""
    rest = path[len(PREFIX) :]
    options = {"deny": 0, "unavailable": 0}
    while True:
        word, slash, rest = rest[1:].partition("/")
        option = OPTION.fullmatch(word)
        if option is not None:
            name, status = option.groups()
            if options[name]:
                raise InvalidInput(EXPECTED)
            options[name] = int(status)
            rest = slash + rest
        elif word == PATH:
            return AuthQuestion(word, slash + rest, **options)
        elif word in FORMS and not slash:
            return AuthQuestion(word, "", **options)
        else:
            raise InvalidInput(EXPECTED)


def only_value(call: Call, name: bytes) -> str | None:
    """The value of a header field; two of them are an error, because a client may have written one."""
    if sum([header == name for header, _ in call.headers]) > 1:
        raise InvalidInput(f"auth: expected {name.decode()} once. Let the proxy replace what clients send.")
    return call.value(name)


def target_of(uri: str) -> str:
    """The target of a request as rules read it: bytes beyond ASCII percent-encoded, without the fragment.

    A client may send both raw, and applications read them as other spellings of the same path.
    """
    uri = uri.partition("#")[0]
    if not uri.isascii():
        uri = "".join([letter if letter < "\x80" else f"%{ord(letter):02X}" for letter in uri])
    return uri or "/"


def auth_response(verdict: HttpVerdict, question: AuthQuestion) -> bytes:
    """The verdict as proxies understand it: its headers with 200, or a refusal that they pass on."""
    fields: list[Any] = [field for field in verdict.headers if field[0] not in (b"content-type", b"cache-control")]
    if verdict.allowed:
        return response(200, b"", b"", fields)
    status, body = verdict.status, verdict.body
    fields.append((b"x-ratelimit-status", b"%d" % status))
    if question.deny:
        if body and len(body) <= LONGEST_BODY:  # nginx does not pass a body on: its configuration writes this one
            fields.append((b"x-ratelimit-body", b" ".join(body.split())))
        status = question.deny
    elif status == 503 and question.unavailable:
        status = question.unavailable
    return response(status, body, dict(verdict.headers).get(b"content-type", b""), fields)

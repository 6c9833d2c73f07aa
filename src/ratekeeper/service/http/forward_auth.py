"""``/v1/auth``: may this request pass?  For nginx ``auth_request``, Traefik ForwardAuth, Caddy ``forward_auth``,
HAProxy and Envoy ``ext_authz``.

A proxy says which request it asks about: in ``X-Original-Method/-URI`` (nginx), in ``X-Forwarded-Method/-Uri/-Host``
(Traefik, Caddy), or by the request itself, behind ``/v1/auth/`` (Envoy).  Law: only a peer in ``trusted_proxies`` is
believed, and only one of these families of headers.  If a client sends the other family, we cannot tell which of them
the proxy wrote, so the request is rejected unless ``?headers=`` chooses.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.identity.request import Request
from ratekeeper.service.http.api import error_response
from ratekeeper.service.http.decision_response import deny_status
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
FAMILIES = {
    "original": (b"x-original-method", (b"x-original-uri", b"x-original-url"), b"x-original-host"),
    "forwarded": (b"x-forwarded-method", (b"x-forwarded-uri",), b"x-forwarded-host"),
}
PROXY_HEADERS = frozenset(name for method, uris, _ in FAMILIES.values() for name in (method, *uris))


class ForwardAuth:
    """Answers proxies."""

    def __init__(self, decider: Decider) -> None:
        self.decider = decider
        self.has_warned = False

    def serve(self, call: Call) -> AnyResponse:
        try:
            status = deny_status(call.query)
            request = self.original(call)
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
                    return await self.turn(await outcome if hasattr(outcome, "__await__") else outcome, status)
                except StoreUnavailable as error:
                    return error_response(error)

            return later()
        return auth_response(outcome, status)

    async def turn(self, verdict: HttpVerdict, status: int) -> bytes:
        """Answer when the turn of a queued request has come; if the proxy leaves, give its place back."""
        if verdict.allowed and verdict.delay:
            policy = self.decider.policy
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
            except BaseException:
                await policy.agive_back(verdict)
                raise
        return auth_response(verdict, status)

    def original(self, call: Call) -> Request | None:
        """The request that a proxy asks about; None if the peer is not in ``trusted_proxies``."""
        addresses = self.decider.policy.compiled.identity.addresses
        peer = addresses.parse(call.peer)
        if not peer.trusted:
            return None
        rest = call.path[len(PREFIX) :]
        family = header_family(call, bool(rest))
        headers = [(name, value) for name, value in call.headers if name not in PROXY_HEADERS]
        if family == "envoy":
            query = "&".join(
                [pair for pair in call.query.split("&") if not pair.startswith(("deny_status=", "headers="))]
            )
            return Request(call.method, rest or "/", call.peer, headers, query=query)
        method, uri_names, host = FAMILIES[family]
        uris = [text for name in uri_names if (text := call.value(name))]
        if len(uris) != 1:
            raise InvalidInput(f"auth: expected the original request in {uri_names[0].decode()}. Let the proxy set it.")
        (uri,) = uris
        if not uri.startswith("/"):  # X-Original-URL may be absolute
            uri = "/" + uri.partition("://")[2].partition("/")[2]
        return Request(call.value(method) or call.method, uri, call.peer, headers, host=call.value(host))


def header_family(call: Call, has_rest: bool) -> str:
    """The family of headers in which the proxy writes the original request."""
    for pair in call.query.split("&"):
        name, _, value = pair.partition("=")
        if name == "headers":
            if value not in FAMILIES:
                raise InvalidInput("headers: expected original or forwarded.")
            return value
    if has_rest:
        return "envoy"
    present = [
        family
        for family, (method, uris, _) in FAMILIES.items()
        if any(name == method or name in uris for name, _ in call.headers)
    ]
    if len(present) == 2:
        raise InvalidInput(
            "auth: expected X-Original-* or X-Forwarded-Method/-Uri, got both, and one of them may be the client's. "
            "Say which the proxy writes: ?headers=original or ?headers=forwarded."
        )
    return present[0] if present else "original"


def auth_response(verdict: HttpVerdict, status: int) -> bytes:
    """The verdict as proxies understand it: its headers with 200, or a refusal that they pass on."""
    fields: list[Any] = [field for field in verdict.headers if field[0] not in (b"content-type", b"cache-control")]
    if verdict.allowed:
        return response(200, b"", b"", fields)
    if status != 200:
        fields.append((b"x-ratelimit-status", b"%d" % verdict.status))
    media = dict(verdict.headers).get(b"content-type", b"")
    return response(status if status != 200 else verdict.status, verdict.body, media, fields)

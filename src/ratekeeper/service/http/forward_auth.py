"""``/v1/auth``: may this request pass?  For nginx ``auth_request``, Traefik ForwardAuth, Caddy ``forward_auth``,
HAProxy and Envoy ``ext_authz``.

A proxy tells which request it asks about: in ``X-Original-Method/-URI`` (nginx), in ``X-Forwarded-Method/-Uri/-Host``
(Traefik, Caddy), or by the request itself, behind ``/v1/auth/`` (Envoy).  Law: only a peer in ``trusted_proxies`` is
believed, and only one of these families.  A client can send the other one along; then, unless ``?headers=`` chooses,
nobody can tell which of them the proxy wrote, and the request is refused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, StoreUnavailable
from ratekeeper.identity.request import Request
from ratekeeper.service.http.api import deny_status, failed
from ratekeeper.service.http.response import answer, problem
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.service.decider import Decider
    from ratekeeper.service.http.server import Call

    Answer = bytes | Awaitable[bytes]

log = logging.getLogger("ratekeeper")
PREFIX = "/v1/auth"
FAMILIES = {
    "original": (b"x-original-method", (b"x-original-uri", b"x-original-url"), b"x-original-host"),
    "forwarded": (b"x-forwarded-method", (b"x-forwarded-uri",), b"x-forwarded-host"),
}
OURS = frozenset(name for method, uris, _ in FAMILIES.values() for name in (method, *uris))


class Auth:
    """Answers proxies."""

    def __init__(self, keeper: Decider) -> None:
        self.keeper = keeper
        self.warned = False

    def serve(self, call: Call) -> Answer:
        try:
            status = deny_status(call)
            request = self.original(call)
        except InvalidInput as error:
            return problem(400, str(error))
        if request is None:
            if not self.warned:
                self.warned = True
                log.warning("auth: a peer that is not in trusted_proxies asked; it gets 403. Add your proxy there")
            return problem(403, "auth: expected a proxy that trusted_proxies names, got another peer.")
        outcome = self.keeper.check(request)
        if hasattr(outcome, "__await__") or outcome.delay:

            async def later() -> bytes:
                try:
                    return await self.turn(await outcome if hasattr(outcome, "__await__") else outcome, status)
                except StoreUnavailable as error:
                    return failed(error)

            return later()
        return shown(outcome, status)

    async def turn(self, verdict: HttpVerdict, status: int) -> bytes:
        """Answer when the turn of the request has come; if the proxy leaves, its place is given back."""
        if verdict.allowed and verdict.delay:
            policy = self.keeper.policy
            try:
                await policy.clock.asleep(round(verdict.delay * SECOND))
            except BaseException:
                await policy.agive_back(verdict)
                raise
        return shown(verdict, status)

    def original(self, call: Call) -> Request | None:
        """The request that a proxy asks about; None if the peer is not one of ours."""
        addresses = self.keeper.policy.program.identity.addresses
        peer = addresses.known.get(call.peer) or addresses.learn(call.peer)
        if not peer.trusted:
            return None
        rest = call.path[len(PREFIX) :]
        family = chosen(call, bool(rest))
        headers = [(name, value) for name, value in call.headers if name not in OURS]
        if family == "envoy":
            query = "&".join(
                [pair for pair in call.query.split("&") if not pair.startswith(("deny_status=", "headers="))]
            )
            return Request(call.method, rest or "/", call.peer, headers, query=query)
        own_method, own_uris, own_host = FAMILIES[family]
        uris = [text for name in own_uris if (text := call.value(name))]
        if len(uris) != 1:
            raise InvalidInput(f"auth: expected the original request in {own_uris[0].decode()}. Let the proxy set it.")
        (uri,) = uris
        if not uri.startswith("/"):  # X-Original-URL may be absolute
            uri = "/" + uri.partition("://")[2].partition("/")[2]
        return Request(call.value(own_method) or call.method, uri, call.peer, headers, host=call.value(own_host))


def chosen(call: Call, has_rest: bool) -> str:
    """Where this proxy writes the original request."""
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
        if any(header == method or header in uris for header, _ in call.headers)
    ]
    if len(present) == 2:
        raise InvalidInput(
            "auth: expected X-Original-* or X-Forwarded-Method/-Uri, got both, and one of them may be the client's. "
            "Say which the proxy writes: ?headers=original or ?headers=forwarded."
        )
    return present[0] if present else "original"


def shown(verdict: HttpVerdict, status: int) -> bytes:
    """The verdict as proxies understand it: its headers, and 200, or a refusal they hand on."""
    fields: list[Any] = [field for field in verdict.headers if field[0] not in (b"content-type", b"cache-control")]
    if verdict.allowed:
        return answer(200, b"", b"", fields)
    if status != 200:
        fields.append((b"x-ratelimit-status", b"%d" % verdict.status))
    media = dict(verdict.headers).get(b"content-type", b"")
    return answer(status if status != 200 else verdict.status, verdict.body, media, fields)

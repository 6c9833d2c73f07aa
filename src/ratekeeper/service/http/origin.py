"""Whose page a browser speaks for: the Host and Origin of calls to the API and the dashboard.

A web page can make a browser call this service: by a name of its own that points here (DNS rebinding), or across
origins.  Names that a stranger can register are refused unless they are allowed, and so is the Origin of another page.
Callers that are not browsers send no Origin, and reach the service by its address or by a name of their network.

Law: no I/O.  Proxies ask on /v1/auth with the Host and Origin of their clients, and are not meant here: there the peer
must be in ``trusted_proxies``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.errors import shown
from ratekeeper.identity.address import parse_address
from ratekeeper.identity.request import bare_host
from ratekeeper.service.http.response import problem

if TYPE_CHECKING:
    from collections.abc import Collection

    from ratekeeper.service.http.server import Call

# Names under these cannot be registered by a stranger (RFC 6761, RFC 6762, and the root zone's promise).
LOCAL_SUFFIXES = (".localhost", ".local", ".internal", ".svc")


def is_local(host: str) -> bool:
    """Whether only this network can give the host its meaning: an address, one word, or a name reserved for that."""
    return (
        "." not in host
        or host.endswith(LOCAL_SUFFIXES)
        or parse_address(host.removeprefix("[").removesuffix("]")) is not None
    )


def host_of(call: Call) -> str:
    """The Host header in lower case; nothing if there is none, as in HTTP/1.0: every browser sends it."""
    return next((value.decode("latin-1").strip().lower() for name, value in call.headers if name == b"host"), "")


def refusal(call: Call, allowed: Collection[str]) -> bytes | None:
    """The response to a call that may come from a stranger's page; None if the call is in order."""
    named = host_of(call)
    host = bare_host(named)
    if not (is_local(host) or host in allowed):
        return problem(
            421,
            f"host: expected an address or an allowed name, got {shown(host)}. "
            "If this name is yours, start the service with --allowed-host and the name.",
        )
    origins = [value.decode("latin-1").strip().lower() for name, value in call.headers if name == b"origin"]
    for origin in origins:
        scheme, separator, authority = origin.partition("://")
        is_own = separator and scheme in ("http", "https") and (authority == named or bare_host(authority) in allowed)
        if not is_own:
            return problem(
                403,
                f"origin: expected a page of this service, got {shown(origin)}. "
                "If that page is yours, start the service with --allowed-host and its name.",
            )
    return None

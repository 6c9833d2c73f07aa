"""What WSGI servers do to the header fields that trusted proxies write.

WSGI has one key for ``X_Forwarded_For`` and ``X-Forwarded-For``.  Most servers join the two or keep the last one, so
that a client whose proxy passes both may choose its address.  Some drop names with underscores.  Law: behind any other
server, the header fields of a trusted proxy are believed only if the rules say ``proxies_drop_underscores``.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import shown

if TYPE_CHECKING:
    from ratekeeper.identity.address import Addresses

    Environ = dict[str, Any]

log = logging.getLogger("ratekeeper")

# Servers that drop names with underscores, by the beginning of their SERVER_SOFTWARE; Apache's is that of mod_wsgi.
DROPPING = ("gunicorn/", "gevent/", "waitress", "Werkzeug/", "Apache/")
FIRST_GUNICORN = 22  # older ones join them
# Django's own server and its test client are told by the stream that they read the body from.
DJANGO_STREAMS = ("django.core.handlers.wsgi", "django.test.client")


def joins_names(environ: Environ) -> bool:
    """Whether the server may join ``X_Name`` with ``X-Name``."""
    if drops_underscores(environ.get("SERVER_SOFTWARE", "")):
        return False
    return type(environ.get("wsgi.input")).__module__ not in DJANGO_STREAMS


@lru_cache(maxsize=64)
def drops_underscores(software: str) -> bool:
    if not software.startswith(DROPPING):
        return False
    name, _, version = software.partition("/")
    major = version.partition(".")[0]
    return name != "gunicorn" or (major.isdecimal() and int(major) >= FIRST_GUNICORN)


def warn_of_server(addresses: Addresses, environ: Environ) -> None:
    """Log what the server does to the header fields that trusted proxies write, at the first request."""
    if not addresses.trusted:
        return
    header = addresses.header.decode("latin-1").title()
    if not addresses.proxies_drop_underscores and joins_names(environ):
        software = environ.get("SERVER_SOFTWARE")
        log.warning(
            "%s may join %s, which any client can write, with %s of a trusted proxy. So no header of the proxy is "
            "believed, and all its clients count as one. If the proxy drops header names with underscores, as nginx "
            "does, set proxies_drop_underscores = true in the rules. Or use a server that drops them: gunicorn, "
            "gevent, mod_wsgi, waitress.",
            shown(software) if software else "The WSGI server",
            header.replace("-", "_"),
            header,
        )
    elif environ.get("SERVER_SOFTWARE") == "waitress" and removes(addresses, environ):
        log.warning(
            "waitress removes %s unless it is told clear_untrusted_proxy_headers=False, so that all clients of a "
            "trusted proxy count as one. Say that, or set waitress's own trusted_proxy in place of ours.",
            header,
        )


def removes(addresses: Addresses, environ: Environ) -> bool:
    """Whether a trusted proxy sent the request, but its header is missing."""
    key = "HTTP_" + addresses.header.decode("latin-1").upper().replace("-", "_")
    return key not in environ and addresses.parse(environ.get("REMOTE_ADDR") or None).trusted

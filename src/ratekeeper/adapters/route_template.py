"""Which route will answer an ASGI request: its template, as far as the framework lets it be known beforehand.

Litestar, Starlette and FastAPI tell in the scope; Quart's map of routes is found where its ``asgi_app`` is wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.identity.request import bare_host

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    Scope = MutableMapping[str, Any]

FULL = 2  # how Starlette says that method and path match


def route_of(scope: Scope, app: Any) -> str | None:
    """The template of the route of ``app`` that will answer; None if there is none, or nobody tells."""
    known = scope.get("path_template") or getattr(scope.get("route"), "path", None)
    if known:
        return str(known)
    rules = getattr(getattr(app, "__self__", None), "url_map", None)
    return template(getattr(scope.get("app"), "routes", ()), scope) if rules is None else rule_of(rules, scope)


def template(routes: Iterable[Any], scope: Scope) -> str | None:
    """Of the first route that matches, as Starlette looks for it; what lies within another begins with its path."""
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "value", 0) == FULL:
            within = getattr(route, "routes", None) or getattr(route, "effective_candidates", tuple)()  # FastAPI's own
            rest = template(within, {**scope, **child}) if within else None
            return (getattr(route, "path", None) or "") + (rest or "") or None
    return None


def rule_of(rules: Any, scope: Scope) -> str | None:
    """Of the rule of a Werkzeug map that matches, as Quart looks for it."""
    from werkzeug.exceptions import HTTPException

    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    is_socket = scope["type"] == "websocket"
    try:
        adapter = rules.bind(bare_host(host) or "localhost", path_info=scope["path"])
        rule, _ = adapter.match(method=scope.get("method", "GET"), return_rule=True, websocket=is_socket)
    except HTTPException:  # no such route, another method, a redirect to the final slash, or a host that is none
        return None
    return str(rule.rule)

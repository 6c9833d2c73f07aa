"""Find the template of the route that will answer an ASGI request, before the framework has routed it.

Litestar, Starlette and FastAPI have their routes in the scope; Quart's are on the object whose ``asgi_app`` is wrapped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.identity.request import bare_host

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping

    Scope = MutableMapping[str, Any]

FULL = 2  # Starlette's Match.FULL: method and path match


def route_of(scope: Scope, app: Any) -> str | None:
    """Return the template of the route of ``app`` that will answer; None if no route does, or it cannot be found."""
    matched = scope.get("path_template") or getattr(scope.get("route"), "path", None)
    if matched:
        return str(matched)
    url_map = getattr(getattr(app, "__self__", None), "url_map", None)
    if url_map is not None:
        return quart_route(url_map, scope)
    return starlette_route(getattr(scope.get("app"), "routes", ()), scope)


def starlette_route(routes: Iterable[Any], scope: Scope) -> str | None:
    """Match as Starlette does: the first full match wins, and a mounted route's template begins with its mount's."""
    for route in routes:
        match, child = route.matches(scope) if hasattr(route, "matches") else (None, {})
        if getattr(match, "value", 0) == FULL:
            children = getattr(route, "routes", None) or getattr(route, "effective_candidates", tuple)()  # FastAPI's
            rest = starlette_route(children, {**scope, **child}) if children else None
            return (getattr(route, "path", None) or "") + (rest or "") or None
    return None


def quart_route(url_map: Any, scope: Scope) -> str | None:
    """Match as Quart does, with its Werkzeug map."""
    from werkzeug.exceptions import HTTPException

    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    is_socket = scope["type"] == "websocket"
    try:
        path = scope["path"].removeprefix(scope.get("root_path") or "") or " "  # Quart's, and one that is no route
        adapter = url_map.bind(bare_host(host) or "localhost", path_info=path)
        rule, _ = adapter.match(method=scope.get("method", "GET"), return_rule=True, websocket=is_socket)
    except HTTPException:  # no such route, another method, a redirect to the final slash, or an invalid host
        return None
    return str(rule.rule)

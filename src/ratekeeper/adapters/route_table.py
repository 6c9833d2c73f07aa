"""The routes of an application as patterns, and the warning of rules that match none of them.

None stands for routes that cannot be listed; then nothing is said.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ratekeeper.rules.unreachable import route, unreachable

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence

    from ratekeeper.rules.match import Pattern
    from ratekeeper.rules.policy import Policy

    Scope = MutableMapping[str, Any]

log = logging.getLogger("ratekeeper")
DEEPEST = 32  # middleware around an application


def warn_of_unreachable_rules(policy: Policy, routes: Sequence[Pattern] | None) -> None:
    """Log each rule that no route can match."""
    for sentence in unreachable(policy.rules, routes) if routes else ():
        log.warning("%s", sentence)


def asgi_routes(scope: Scope, app: Any) -> list[Pattern] | None:
    """The routes of the ASGI application behind a middleware: of Starlette, FastAPI, Litestar or Quart."""
    url_map = getattr(getattr(app, "__self__", app), "url_map", None)
    if url_map is not None:
        return werkzeug_routes(url_map)
    table = getattr(scope.get("app"), "routes", None) or getattr(innermost(app), "routes", None)
    return starlette_routes(table) if table else None


def innermost(app: Any) -> Any:
    """The application inside of other middleware, as far as their ``app`` attributes lead."""
    for _ in range(DEEPEST):
        inside = getattr(app, "app", None) or getattr(app, "_app", None)
        if inside is None or hasattr(app, "routes"):
            break
        app = inside
    return app


def fastapi_root_path(app: Any) -> str:
    """The ``root_path`` that a FastAPI application was made with, and puts into each scope itself."""
    inside = innermost(app)
    return inside.root_path if hasattr(inside, "root_path_in_servers") else ""


def starlette_routes(table: Iterable[Any], prefix: str = "") -> list[Pattern] | None:
    patterns: list[Pattern] = []
    for entry in table:
        inner = getattr(entry, "starlette_route", None) or entry  # FastAPI's, of a router that was included
        path: Any = getattr(inner, "path", None)
        children = getattr(inner, "routes", None) or getattr(inner, "effective_candidates", list)()
        if path is None and not children:
            return None
        if children:
            below = starlette_routes(children, prefix + (path or ""))
            if below is None:
                return None
            patterns += below
        elif hasattr(inner, "app") and not hasattr(inner, "endpoint"):  # a mount of something without a table
            patterns.append(route(prefix + path + "/**"))
        elif type(inner).__name__ == "ASGIRoute":  # Litestar's mounts
            patterns.append(route(path + "/**"))
        else:
            patterns.append(route(prefix + path, getattr(inner, "methods", None)))
    return patterns


def werkzeug_routes(url_map: Any) -> list[Pattern]:
    """The routes of Flask and Quart."""
    patterns = []
    for rule in url_map.iter_rules():
        text = rule.rule
        converters = getattr(rule, "_converters", {}).values()
        if any(not getattr(converter, "part_isolating", True) for converter in converters):
            text = text.partition("<")[0] + "<path:rest>"
        patterns.append(route(text, rule.methods))
    return patterns

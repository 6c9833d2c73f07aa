"""What a function of a FastAPI user wants to know: just the request, or dependencies of its own."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

if TYPE_CHECKING:
    from collections.abc import Callable


def asks(function: Any) -> tuple[Callable[..., Any] | None, bool]:
    """The function, and whether it takes just the request: then it is called here, not by way of FastAPI."""
    parameters = list(inspect.signature(function).parameters.values()) if callable(function) else []
    if len(parameters) != 1:
        return function if callable(function) else None, False
    kind = parameters[0].annotation
    is_request = issubclass(kind, HTTPConnection) if inspect.isclass(kind) else str(kind).endswith("Request")
    return function, is_request or parameters[0].name in ("request", "connection")


async def called(function: Callable[..., Any], connection: HTTPConnection) -> Any:
    found = function(connection)
    return await found if inspect.isawaitable(found) else found

"""Limits that a function computes for each request, and functions that a rules file names by where they are.

``limit = "function:shop.limits:for_user"`` names code, as only the operator of a rules file can.  The module is
imported when the file is read, so that a mistake is found at start-up.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidLimit, did_you_mean
from ratekeeper.limit import Limit, LimitSet
from ratekeeper.rules.closed import parse_rule_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from ratekeeper.identity.request import Request

RETURNS = "a limit such as '100/minute', a list of limits or 'unlimited'"


class LimitFunction:
    """A function of a request that returns its limit, and the algorithm and window of limits that name none."""

    __slots__ = ("algorithm", "function", "is_async", "name", "timezone", "window")

    def __init__(
        self,
        function: Callable[[Request], Any],
        name: str,
        algorithm: str | None = None,
        window: str | None = None,
        timezone: str | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.algorithm = algorithm
        self.window = window
        self.timezone = timezone
        self.is_async = iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004

    def __call__(self, request: Request) -> Any:
        """What the function returns; an async one runs on an event loop of its own, so none may be running."""
        value = self.function(request)
        if not self.is_async:
            return value
        import asyncio

        async def awaited() -> Any:
            return await value

        return asyncio.run(awaited())

    def __str__(self) -> str:
        return f"function:{self.name}"

    def parse(self, value: Any) -> Limit | LimitSet:
        """Understand what the function returned.  Anything but a limit raises: it must never mean no limit."""
        advice = ""
        if isawaitable(value):
            getattr(value, "close", int)()  # else Python warns that it was never awaited
            advice = " Only an async function is awaited, on an event loop."
        elif value is None:
            advice = " To limit nobody, return 'unlimited'."
        elif isinstance(value, (str, Limit, LimitSet, list, tuple)):
            try:
                return parse_rule_limits(value, self.algorithm, self.window, self.timezone)
            except InvalidLimit as error:
                raise InvalidLimit(f"{self}: {error}") from None
        raise InvalidLimit(f"{self}: expected the function to return {RETURNS}, got {type(value).__name__}.{advice}")


def name_of_function(function: Callable[..., Any]) -> str:
    """The module and the name of a function."""
    named: Any = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '')}:{named.__qualname__}"


class NotLoadable(Exception):
    """No such function; ``str()`` says why, and what to do."""


def load_function(path: str) -> Callable[..., Any]:
    """Import the function at ``module:name``."""
    module_name, _, name = path.partition(":")
    try:
        value: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if not module_name.startswith(error.name or "?"):  # a module that this one imports
            raise NotLoadable(f"{module_name} cannot be imported: {error}.") from error
        raise NotLoadable(f"There is no module {error.name!r}. Install it, or add its folder to PYTHONPATH.") from error
    except Exception as error:
        raise NotLoadable(f"{module_name} cannot be imported: {type(error).__name__}: {error}"[:200]) from error
    for part in name.split("."):
        if not hasattr(value, part):
            raise NotLoadable(f"{module_name} has no {name!r}.{did_you_mean(part, dir(value))}")
        value = getattr(value, part)
    if not callable(value):
        raise NotLoadable(f"It is no function, but {type(value).__name__}.")
    return value

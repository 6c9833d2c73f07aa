"""What an application says about all of its requests: which are exempt, and what answers a refusal.

Every adapter takes the same two functions.  ``exempt_when`` exempts a request from every limit: those of the policy and
those on its route.  ``on_breach`` is called with the verdict of each refusal; what it returns answers the request,
unless it is None.  A limit on a route may have an ``on_breach`` of its own instead.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from ratekeeper.adapters.route_limit import takes_one
from ratekeeper.errors import InvalidInput, shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ratekeeper.adapters.route_limit import RouteLimit
    from ratekeeper.http.verdict import HttpVerdict

    ExemptWhen = Callable[..., Any]
    OnBreach = Callable[[HttpVerdict], Any]


class Hooks:
    """The functions of one application; ``adapter`` is its name in errors.  Only an event loop awaits async ones."""

    __slots__ = ("_takes_request", "adapter", "exempt_when", "on_breach")

    def __init__(
        self, adapter: str, exempt_when: ExemptWhen | None, on_breach: OnBreach | None, *, awaits: bool = False
    ) -> None:
        for word, function in (("exempt_when", exempt_when), ("on_breach", on_breach)):
            if function is not None and not callable(function):
                raise InvalidInput(f"{adapter}: expected a function as {word}, got {shown(function)}.")
        self.adapter = adapter
        self.exempt_when = exempt_when
        self.on_breach = on_breach
        self._takes_request = takes_one(exempt_when)
        if not awaits:
            self.expect_plain()

    def expect_plain(self) -> None:
        """Raise if one of the functions is async: nothing would await it."""
        for word, function in (("exempt_when", self.exempt_when), ("on_breach", self.on_breach)):
            if inspect.iscoroutinefunction(function):
                raise InvalidInput(
                    f"{self.adapter}: expected a plain function as {word}, got an async one. Nothing awaits it."
                )

    def _asked(self, request: Any) -> Any:
        function = self.exempt_when
        if function is None:
            return False
        return function(request) if self._takes_request else function()

    def exempts(self, request: Any) -> bool:
        """Whether a request is exempt from every limit."""
        return bool(self._expect_plain("exempt_when", self._asked(request)))

    async def aexempts(self, request: Any) -> bool:
        """``exempts`` for an event loop."""
        value = self._asked(request)
        return bool(await value if inspect.isawaitable(value) else value)

    def answer(self, verdict: HttpVerdict, route_limit: RouteLimit | None = None) -> Any:
        """What the application answers to a refusal, by its policy or by a limit on a route; None: our own answer."""
        function = self._of(route_limit)
        return None if function is None else self._expect_plain("on_breach", function(verdict))

    async def aanswer(self, verdict: HttpVerdict, route_limit: RouteLimit | None = None) -> Any:
        """``answer`` for an event loop."""
        function = self._of(route_limit)
        value = None if function is None else function(verdict)
        return await value if inspect.isawaitable(value) else value

    def _of(self, route_limit: RouteLimit | None) -> OnBreach | None:
        of_route = route_limit.on_breach if route_limit is not None else None
        return self.on_breach if of_route is None else of_route

    def _expect_plain(self, word: str, value: Any) -> Any:
        """A coroutine would be true, and exempt every request."""
        if not inspect.isawaitable(value):
            return value
        if inspect.iscoroutine(value):
            value.close()
        raise InvalidInput(
            f"{self.adapter}: expected {word} to return its answer, got an awaitable. Nothing awaits it."
        )


NO_HOOKS = Hooks("", None, None, awaits=True)  # of an application that says nothing

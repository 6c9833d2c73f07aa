"""A limit that stands at a route: what the decorators of all frameworks are made of.

Counts each client on each route; with a ``name``, all routes of that name together.  It believes the same proxies and
speaks the same dialects as the application's policy, and counts on its store.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.rules.parse import parse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.rules.policy import Policy
    from ratekeeper.rules.settings import Settings

    Limits = str | Limit | Sequence[str | Limit] | Mapping[str, Any]


class RouteLimit:
    """``limit`` for each client of a route, with the words of a rule beside it; wrong ones raise at once.

    ``by`` and ``cost`` may be functions of whatever the framework calls a request.  ``settings`` are those of a rules
    file, in place of the policy's own: ``{"trusted_proxies": [...], "rules": []}``.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: Any = 1,
        name: str | None = None,
        settings: Mapping[str, Any] | None = None,
        **rule: Any,
    ) -> None:
        self.by = by if callable(by) else None
        self.cost = cost if callable(cost) else None
        who = "app:subject" if callable(by) else by or "ip"
        rule |= {"name": name or title(limit, rule.get("algorithm")), "limit": plain(limit)}
        rule["by"] = who if name else ["route", who]
        rule["cost"] = (lambda request: request.facts["cost"]) if callable(cost) else cost
        self.is_held = is_held(limit)
        self.inherits = settings is None
        self.settings: Settings = parse({**(settings or {}), "rules": [rule]}, "limit")
        self.bound: tuple[object, Policy] | None = None

    def policy(self, main: Policy) -> Policy:
        """This limit beside ``main``, the policy of the application; made anew when that one is."""
        program = main.program
        if self.bound is None or self.bound[0] is not program:
            own, theirs = self.settings, program.settings
            if self.inherits:
                own = replace(own, identity=theirs.identity, response=theirs.response, exempt=theirs.exempt)
            self.bound = program, main.beside(own)
        return self.bound[1]

    def for_plain_view(self, view: str) -> None:
        """Refuse async functions where nothing could await them."""
        for word, function in (("by", self.by), ("cost", self.cost)):
            if inspect.iscoroutinefunction(function):
                raise InvalidInput(f"{view}: expected a plain function as {word}, got an async one. Nothing awaits it.")

    def facts(self, known: Mapping[str, Any] | None, *asked: Any) -> dict[str, Any]:
        """What ``by`` and ``cost`` say of the framework's request, beside what the application knows."""
        found = dict(known or {})
        for name, function in (("subject", self.by), ("cost", self.cost)):
            if function is not None:
                found[name] = function(*asked)
        return found

    async def afacts(self, known: Mapping[str, Any] | None, *asked: Any) -> dict[str, Any]:
        """``facts`` for an event loop: the functions may be async."""
        found = dict(known or {})
        for name, function in (("subject", self.by), ("cost", self.cost)):
            if function is not None:
                value = function(*asked)
                found[name] = await value if inspect.isawaitable(value) else value
        return found


def is_held(limit: Limits) -> bool:
    """Whether it is held while a response is made: ``"3 concurrent"``, of a tier at least."""
    given = plain(limit)
    texts = [given] if isinstance(given, str) else list(given.values()) if isinstance(given, dict) else given
    return any(isinstance(text, str) and "concurrent" in text for text in texts)


def plain(limit: Limits) -> Any:
    """As a rule has it: a text, a list of them, or a table by tier."""
    if isinstance(limit, dict):
        return limit
    if not isinstance(limit, (list, tuple)):
        return limit if isinstance(limit, str) else str(parse_limits(limit))
    return [one if isinstance(one, str) else str(Limit.parse(one)) for one in limit]


def title(limit: Limits, algorithm: str | None) -> str:
    """The name of a limit without one: its own text, so that different limits of a route never share a counter."""
    return "tiers" if isinstance(limit, dict) else str(parse_limits(plain(limit), algorithm))

"""A limit on one route: the decorators and dependencies of all frameworks are made of it.

It counts each client on each route; limits with the same ``name`` share one counter for all their routes.  It inherits
the application's policy: trusted proxies, identity, exemptions, form of the response, store and sinks.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidRules
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.rules.parse import parse
from ratekeeper.rules.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ratekeeper.clock import Clock
    from ratekeeper.rules.settings import Settings
    from ratekeeper.stores.protocol import Store

    Limits = str | Limit | Sequence[str | Limit] | Mapping[str, Any]

OTHER_NAMES_OF_BY = ("key", "key_func", "key_function", "identifier")  # in other libraries


class RouteLimit:
    """``limit`` for each client of a route, with the words of a rule beside it; mistakes raise at once.

    ``by`` and ``cost`` may be functions of whatever the framework calls a request.  ``settings`` are those of a rules
    file, in place of the policy's own: ``{"trusted_proxies": [...]}``.  With a ``store``, a ``clock`` or a store in the
    settings, the limit counts there; else on the store of the application's policy.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: Any = 1,
        name: str | None = None,
        store: str | Store | None = None,
        clock: Clock | None = None,
        settings: Mapping[str, Any] | None = None,
        **rule: Any,
    ) -> None:
        for word in OTHER_NAMES_OF_BY:
            if word in rule:
                raise InvalidInput(
                    f"limit: expected 'by' to say which clients are counted apart, got {word!r}. Write by=, with a "
                    "source such as 'header:X-Api-Key' or a function."
                )
        self.by = by if callable(by) else None
        self.cost = cost if callable(cost) else None
        source = "app:subject" if callable(by) else "ip" if by is None else by
        rule |= {"name": name or default_name(limit, rule.get("algorithm")), "limit": rule_text(limit)}
        rule["by"] = source if name else ["route", source]
        rule["cost"] = (lambda request: request.facts["cost"]) if callable(cost) else cost
        self.is_leased = is_leased(limit)
        self.inherits = settings is None
        try:
            self.settings: Settings = parse({**(settings or {}), "rules": [rule]}, "limit")
        except InvalidRules as error:
            raise at_route(error, rule["name"]) from None
        self.has_own_store = store is not None or clock is not None or "store" in (settings or {})
        self.alone: Policy | None = Policy(self.settings, store=store, clock=clock) if self.has_own_store else None
        self.bound: tuple[object, object, Policy] | None = None

    def policy(self, main: Policy) -> Policy:
        """Return a policy with this limit alone that inherits from ``main``; made again when ``main`` changes."""
        compiled, sinks = main.compiled, main.sinks
        if self.bound is None or self.bound[0] is not compiled or self.bound[1] is not sinks:
            settings, inherited = self.settings, compiled.settings
            if self.inherits:
                settings = replace(
                    settings,
                    identity=inherited.identity,
                    response=inherited.response,
                    exempt=inherited.exempt,
                    secret=inherited.secret,
                )
            self.bound = compiled, sinks, Policy(settings, sinks=sinks, host=self.alone or main)
        return self.bound[2]

    def without_main(self) -> Policy:
        """Return the policy for an application that has none: clients by peer address, counted in this process."""
        if self.alone is None:
            self.alone = Policy(self.settings)
        return self.alone

    def expect_plain_functions(self, view: str) -> None:
        """Raise if ``by`` or ``cost`` is async: a sync view cannot await it."""
        for word, function in (("by", self.by), ("cost", self.cost)):
            if inspect.iscoroutinefunction(function):
                raise InvalidInput(f"{view}: expected a plain function as {word}, got an async one. Nothing awaits it.")

    def facts(self, verified: Mapping[str, Any] | None, *arguments: Any) -> dict[str, Any]:
        """Add what ``by`` and ``cost`` return for ``arguments`` to the facts that the application verified."""
        facts = dict(verified or {})
        for name, function in (("subject", self.by), ("cost", self.cost)):
            if function is not None:
                facts[name] = function(*arguments)
        return facts

    async def afacts(self, verified: Mapping[str, Any] | None, *arguments: Any) -> dict[str, Any]:
        """``facts`` for an event loop: the functions may be async."""
        facts = dict(verified or {})
        for name, function in (("subject", self.by), ("cost", self.cost)):
            if function is not None:
                value = function(*arguments)
                facts[name] = await value if inspect.isawaitable(value) else value
        return facts


def at_route(error: InvalidRules, name: str) -> InvalidRules:
    """The error without the rules file that the caller did not write: ``limit '5/minute', by: expected …``."""
    _, is_rule, rest = error.place.partition("rules[0]")
    if not is_rule:
        return error
    word = rest.partition(" (rule ")[0].strip(".")
    if word.startswith("by["):  # one source for the caller, a list with the route in the rule
        word = "by"
    place = f"limit {name!r}, {word}" if word else f"limit {name!r}"
    return InvalidRules(place + str(error).removeprefix(error.place), place)


def is_leased(limit: Limits) -> bool:
    """Whether the limit, or that of one tier, is held until the response is done: ``"3 concurrent"``."""
    value = rule_text(limit)
    texts = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else value
    return any(isinstance(text, str) and "concurrent" in text for text in texts)


def rule_text(limit: Limits) -> Any:
    """The limit as a rules file spells it: a text, a list of texts, or a table by tier."""
    if isinstance(limit, dict):
        return limit
    if not isinstance(limit, (list, tuple)):
        return limit if isinstance(limit, str) else str(parse_limits(limit))
    return [part if isinstance(part, str) else str(Limit.parse(part)) for part in limit]


def default_name(limit: Limits, algorithm: str | None) -> str:
    """The name of a limit without one: its text, so that different limits on a route never share a counter."""
    return "tiers" if isinstance(limit, dict) else str(parse_limits(rule_text(limit), algorithm))

"""A limit on one route: the decorators and dependencies of all frameworks are made of it.

It counts each client on each route; limits with the same ``name`` share one counter for all their routes.  It inherits
the application's policy: trusted proxies, identity, exemptions, form of the response, store and sinks.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidRules, did_you_mean, shown
from ratekeeper.identity.identity import SUBJECT
from ratekeeper.limit import Limit
from ratekeeper.rules.closed import parse_rule_limits
from ratekeeper.rules.computed import name_of_function
from ratekeeper.rules.parse import parse
from ratekeeper.rules.policy import Policy
from ratekeeper.rules.validate import together

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Literal, TypedDict, Unpack

    from ratekeeper.algorithms import Algorithm
    from ratekeeper.clock import Clock
    from ratekeeper.http.verdict import HttpVerdict
    from ratekeeper.rules.rule import Rule
    from ratekeeper.rules.settings import Settings
    from ratekeeper.stores.protocol import Store

    Limits = str | Limit | Sequence[str | Limit] | Mapping[str, Any] | Callable[..., Any]

    class RuleWords(TypedDict, total=False):
        """The words of a rule that a limit on a route may have."""

        match: str | Sequence[str]
        host: str
        algorithm: Algorithm
        window: Literal["calendar", "first-use"]
        timezone: str
        scope: Literal["fleet", "instance"]
        mode: Literal["enforce", "shadow", "off"]
        enforce_percent: float
        warn_at: float
        grace: int
        penalty: Mapping[str, Any]
        allow_from: Sequence[str]
        exempt: Sequence[str]
        on_store_error: Literal["allow", "deny", "local"]
        max_delay: str | float
        message: str
        headers: bool

    class LimitWords(RuleWords, total=False):
        """Everything that stands beside the limit of a route."""

        by: str | Callable[..., Any] | None
        cost: int | str | Mapping[str, Any] | Callable[..., Any]
        name: str | None
        exempt_when: Callable[..., Any] | None
        count_when: str | Callable[[Any], bool] | None
        on_breach: Callable[[HttpVerdict], Any] | None
        replaces_default: bool
        store: str | Store | None
        clock: Clock | None
        settings: Mapping[str, Any] | None


COST = "ratekeeper.cost"  # the fact that a limit's cost function returned
LIMIT = "ratekeeper.limit"  # the fact that the function of a limit returned
EXEMPT = "ratekeeper.exempt"  # the fact that a limit's exempt_when returned
REPLACES_DEFAULT = "__ratekeeper_replaces_default__"  # on a view whose limit replaces the default ones
LONGEST_NAME = 64
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
OTHER_NAMES_OF_BY = ("key", "key_func", "key_function", "identifier")  # in other libraries
OTHER_NAMES = {  # words of other libraries -> what to write
    "deduct_when": "count_when=, with a function of the response or a condition such as 'status >= 400'",
    "override_defaults": "replaces_default=True",
    "methods": "match=, such as match='POST'",
    "method": "match=, such as match='POST'",
    "per_method": "by='method' beside other sources, or one limit for each method with match='POST'",
    "error_message": "message=",
    "block": "mode='shadow' for a limit that only reports",
    "rate": "the limit first, such as '5/minute'",
    "group": "name=, which all limits that share a counter have",
    "scope_name": "name=, which all limits that share a counter have",
}


class RouteLimit:
    """``limit`` for each client of a route, with the words of a rule beside it; mistakes raise at once.

    ``limit``, ``by`` and ``cost`` may be functions of whatever the framework calls a request.  ``exempt_when`` is one
    that says whether a request is exempt.  ``count_when`` says which responses count: ``"status >= 400"``, or a
    function of the response.  ``on_breach`` is called with the verdict of each refusal.

    ``settings`` are those of a rules file, in place of the policy's own: ``{"trusted_proxies": [...]}``.  With a
    ``store``, a ``clock`` or a store in the settings, the limit counts there; else on the store of the application's
    policy.
    """

    def __init__(
        self,
        limit: Limits,
        *,
        by: str | Callable[..., Any] | None = None,
        cost: int | str | Mapping[str, Any] | Callable[..., Any] = 1,
        name: str | None = None,
        exempt_when: Callable[..., Any] | None = None,
        count_when: str | Callable[[Any], bool] | None = None,
        on_breach: Callable[[HttpVerdict], Any] | None = None,
        replaces_default: bool = False,
        store: str | Store | None = None,
        clock: Clock | None = None,
        settings: Mapping[str, Any] | None = None,
        space: str | None = None,
        **words: Unpack[RuleWords],
    ) -> None:
        rule: dict[str, Any] = dict(words)
        for word, advice in OTHER_NAMES.items():
            if word in rule:
                raise InvalidInput(f"limit: expected another word for {word!r}. Write {advice}.")
        for word in OTHER_NAMES_OF_BY:
            if word in rule:
                raise InvalidInput(
                    f"limit: expected 'by' to say which clients are counted apart, got {word!r}. Write by=, with a "
                    "source such as 'header:X-Api-Key' or a function."
                )
        if rule.get("default"):
            raise InvalidInput(
                "limit: expected a limit for this route, got default=True, which is for rules files and for FastAPI's "
                "RateLimit. Write a rule with default = true."
            )
        self.by = by if callable(by) else None
        self.cost = cost if callable(cost) else None
        self.limit = limit if callable(limit) else None
        for word, function in (("exempt_when", exempt_when), ("on_breach", on_breach)):
            if function is not None and not callable(function):
                raise InvalidInput(f"limit: expected a function as {word}, got {shown(function)}.")
        self.exempt_when = exempt_when
        self.on_breach = on_breach
        self.counts_responses = count_when is not None
        self.replaces_default = replaces_default
        self.functions = [
            (fact, function, takes_one(function))
            for fact, function in ((SUBJECT, self.by), (COST, self.cost), (LIMIT, self.limit))
            if function is not None
        ]
        if exempt_when is not None:
            rule["exempt"] = [*rule.get("exempt", ()), lambda request: request.facts[EXEMPT]]
        if count_when is not None:
            rule["count_when"] = count_when
        source = f"app:{SUBJECT}" if callable(by) else "ip" if by is None else by
        text = default_name(limit, rule.get("algorithm"))
        kind = "tiers" if isinstance(limit, dict) else "computed" if callable(limit) else shortened(text)
        rule |= {"name": name or kind, "limit": rule_text(limit)}
        rule["by"] = source if name else ["route", source]
        rule["cost"] = (lambda request: request.facts[COST]) if callable(cost) else cost
        self.is_leased = is_leased(limit)
        self.inherits = settings is None
        self.inherits_tiers = isinstance(limit, dict) and "tiers" not in (settings or {})
        self.inherits_store_error = "on_store_error" not in {**rule, **(settings or {})}
        content: dict[str, Any] = {**(settings or {}), "rules": [rule]}
        if self.inherits_tiers and isinstance(limit, dict) and limit:
            content["tiers"] = {"default": next(iter(limit))}  # until the application's policy is known
        try:
            self.settings: Settings = parse(content, "limit")
        except InvalidRules as error:
            raise at_route(error, rule["name"]) from None
        self.space = space or (name or identity_of(text, by, rule))
        self.is_named = bool(name or space)  # else its place among equal limits of a route counts too
        self.has_own_store = store is not None or clock is not None or "store" in (settings or {})
        self.alone: Policy | None = Policy(self.settings, store=store, clock=clock) if self.has_own_store else None
        self.bound: dict[int, tuple[object, object, Policy]] = {}

    def policy(self, main: Policy | None, place: int = 0) -> Policy:
        """Return a policy with this limit alone that inherits from ``main``; made again when ``main`` changes.

        ``place`` numbers limits of one route that are alike but not the same: each has counters of its own.
        """
        compiled, sinks = (None, None) if main is None else (main.compiled, main.sinks)
        bound = self.bound.get(place)
        if bound is None or bound[0] is not compiled or bound[1] is not sinks:
            bound = self.bound[place] = compiled, sinks, self.bind(main, place)
        return bound[2]

    def bind(self, main: Policy | None, place: int) -> Policy:
        settings = self.settings
        (rule,) = settings.rules
        rule = replace(rule, space=self.space if not place else f"{self.space} #{place + 1}")
        inherited = main.compiled.settings if main is not None else None
        if inherited is not None and self.inherits:
            settings = replace(
                settings,
                identity=inherited.identity,
                response=inherited.response,
                exempt=inherited.exempt,
                secret=inherited.secret,
            )
            if self.inherits_store_error:
                rule = replace(rule, on_store_error=inherited.on_store_error)
        if self.inherits_tiers:
            rule = replace(rule, tier_default=expect_tiers(rule, inherited if self.inherits else None))
        settings = replace(settings, rules=(rule,))
        if main is None and not self.has_own_store:  # clients by peer address, counted in this process
            return Policy(settings)
        return Policy(settings, sinks=() if main is None else main.sinks, host=self.alone or main)

    def expect_plain_functions(self, view: str) -> None:
        """Raise if one of the functions is async: a sync view cannot await it."""
        functions = {
            "by": self.by,
            "cost": self.cost,
            "limit": self.limit,
            "exempt_when": self.exempt_when,
            "on_breach": self.on_breach,
        }
        for word, function in functions.items():
            if inspect.iscoroutinefunction(function):
                raise InvalidInput(f"{view}: expected a plain function as {word}, got an async one. Nothing awaits it.")

    def facts(self, verified: Mapping[str, Any] | None, request: Any) -> dict[str, Any]:
        """Add what the functions return for ``request`` to the facts that the application verified."""
        facts = dict(verified or {})
        if self.exempt_when is not None:
            facts[EXEMPT] = call(self.exempt_when, request)
            if facts[EXEMPT] is True:
                return facts  # the other functions need not know such a request
        for fact, function, takes_request in self.functions:
            facts[fact] = function(request) if takes_request else function()
        return facts

    async def afacts(self, verified: Mapping[str, Any] | None, request: Any) -> dict[str, Any]:
        """``facts`` for an event loop: the functions may be async."""
        facts = self.facts(verified, request)
        for fact in (EXEMPT, SUBJECT, COST, LIMIT):
            if inspect.isawaitable(facts.get(fact)):
                facts[fact] = await facts[fact]
        return facts


def call(function: Callable[..., Any], request: Any) -> Any:
    return function(request) if takes_one(function) else function()


def takes_one(function: Callable[..., Any] | None) -> bool:
    """Whether a function takes the request, under any name; else it must need no arguments."""
    if function is None:
        return False
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return True
    positional = [each for each in parameters if each.kind in POSITIONAL]
    return bool(positional) or any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)


def identity_of(text: str, by: object, rule: Mapping[str, Any]) -> str:
    """The name of the counters of a limit without a name: its text, what it counts by and what it matches.

    The route is a part of every key.
    """
    if callable(by):
        by = name_of_function(by).replace(":", ".", 1)
    words = {"by": by, "match": rule.get("match"), "host": rule.get("host")}
    return text + "".join([f" {word} {value}" for word, value in words.items() if value is not None])


def expect_tiers(rule: Rule, inherited: Settings | None) -> str:
    """The default tier of the application, which must have a limit."""
    default = inherited.tier_default if inherited is not None else None
    place = f"limit {rule.name!r}"
    if default is None:
        raise InvalidRules(
            f"{place}: expected tiers in the application's policy, as the limit is a table by tier, got none. "
            "Add [tiers] with 'from' and 'default' to its rules.",
            place,
        )
    if default not in rule.limits:
        raise InvalidRules(
            f"{place}: expected a limit for the default tier {default!r} too, got {', '.join(rule.limits)}."
            f"{did_you_mean(default, rule.limits)}",
            place,
        )
    return default


def shortened(text: str) -> str:
    """A text as the name of a rule, of at most 64 letters."""
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 3] + "..."


def at_route(error: InvalidRules, name: str) -> InvalidRules:
    """The error without the rules file that the caller did not write: ``limit '5/minute', by: expected …``."""
    if len(error.mistakes) > 1:
        return together([at_route(mistake, name) for mistake in error.mistakes])
    _, is_rule, rest = error.place.partition("rules[0]")
    if not is_rule:
        return error
    word = rest.partition(" (rule ")[0].strip(".")
    if word.startswith("by["):  # one source for the caller, a list with the route in the rule
        word = "by"
    place = f"limit {name!r}, {word}" if word else f"limit {name!r}"
    return InvalidRules(place + str(error).removeprefix(error.place), place)


def is_leased(limit: Limits) -> bool:
    """Whether the limit, or that of one tier, is held until the response is done: ``"3 concurrent"``.

    A function may return such a limit.
    """
    if callable(limit):
        return True
    value = rule_text(limit)
    texts = [value] if isinstance(value, str) else list(value.values()) if isinstance(value, dict) else value
    return any(isinstance(text, str) and "concurrent" in text for text in texts)


def rule_text(limit: Limits) -> Any:
    """The limit as a rules file spells it: a text, a list of texts, or a table by tier; or a function."""
    if callable(limit):
        return lambda request: request.facts[LIMIT]
    if isinstance(limit, dict):
        return limit
    if not isinstance(limit, (list, tuple)):
        return limit if isinstance(limit, str) else str(parse_rule_limits(limit, None))
    return [part if isinstance(part, str) else str(Limit.parse(part)) for part in limit]


def default_name(limit: Limits, algorithm: str | None) -> str:
    """The text of a limit, or the name of its function."""
    if callable(limit):
        return f"function {name_of_function(limit)}"
    if not isinstance(limit, dict):
        return str(parse_rule_limits(rule_text(limit), algorithm))
    return "tiers " + ", ".join([f"{tier} {shown(text, 200)}" for tier, text in limit.items()])

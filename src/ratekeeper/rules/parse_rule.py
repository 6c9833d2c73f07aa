"""One of ``[[rules]]`` in a rules file -> Rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, did_you_mean, shown
from ratekeeper.identity.identity import NAMED, PLAIN
from ratekeeper.rules.closed import parse_rule_limits
from ratekeeper.rules.computed import LimitFunction, name_of_function
from ratekeeper.rules.condition import EXPECTED as CONDITION
from ratekeeper.rules.condition import Condition
from ratekeeper.rules.match import Pattern
from ratekeeper.rules.rule import ANY_TIER, THIRTY_SECONDS, Cost, Penalty, Rule
from ratekeeper.rules.validate import Attempts

if TYPE_CHECKING:
    from ratekeeper.limit import Limit, LimitSet
    from ratekeeper.rules.parse_values import ValueParser
    from ratekeeper.rules.validate import Place


class RuleParser:
    """Reads rules; some of their settings depend on settings of the whole file."""

    def __init__(self, content: dict[str, Any], values: ValueParser) -> None:
        self.content = content
        self.values = values
        self.tiers: dict[str, Any] | None = content.get("tiers")

    def rule(self, place: Place, table: dict[str, Any]) -> Rule:
        attempt = Attempts()
        by = table.get("by", "ip")
        sources: tuple[Any, ...] = (by,) if isinstance(by, str) or callable(by) else tuple(by)
        named = [source for source in sources if isinstance(source, str)]
        attempt(self.values.sources, place.key("by"), named, NAMED, PLAIN)
        attempt(self.expect_limit, place, table)
        allow_from = None
        if "allow_from" in table:
            allow_from = attempt(self.values.networks, place.key("allow_from"), table["allow_from"])
        if table.get("counts") == "messages" and table.get("mode") != "off" and allow_from is not None:
            message = "The handshake decides for the messages."
            attempt(place.key("allow_from").refuse, "a rule that counts requests", None, message)
        if "message" in table:
            attempt(self.values.message, place.key("message"), table["message"])
        function = attempt(self.limit_function, place.key("limit"), table)
        limits = attempt(self.limits, place, table) if function is None else {}
        if limits:
            attempt(self.leases, place, table, limits)
        patterns, exclusions = attempt(self.patterns, place, table) or ((), ())
        count_when = attempt(self.condition, place.key("count_when"), table) if "count_when" in table else None
        cost = attempt(self.cost, place.key("cost"), table.get("cost", 1))
        penalty = attempt(self.penalty, place.key("penalty"), table["penalty"]) if table.get("penalty") else None
        exempt = attempt(self.values.exempt, place.key("exempt"), table["exempt"]) if "exempt" in table else None
        max_delay = THIRTY_SECONDS
        if "max_delay" in table:
            max_delay = attempt(self.values.micros, place.key("max_delay"), table["max_delay"])
        attempt.finish()
        return Rule(
            name=table["name"],
            patterns=patterns,
            by=sources,
            limits=limits,
            tier_default=self.tiers["default"] if self.tiers is not None else ANY_TIER,
            cost=cost,
            counts=table.get("counts", "requests"),
            scope=table.get("scope", "fleet"),
            mode=table.get("mode", "enforce"),
            enforce_percent=table.get("enforce_percent", 100),
            warn_at=table.get("warn_at"),
            grace=table.get("grace", 0),
            penalty=penalty,
            allow_from=allow_from,
            exempt=exempt,
            on_store_error=table.get("on_store_error", self.content.get("on_store_error", "local")),
            max_delay=max_delay,
            message=table.get("message"),
            headers=table.get("headers", True),
            exclusions=exclusions + (exempt.paths if exempt is not None else ()),
            is_default=table.get("default", False),
            limit_function=function,
            count_when=count_when,
        )

    def expect_limit(self, place: Place, table: dict[str, Any]) -> None:
        if "limit" in table:
            return
        if "allow_from" not in table:
            place.refuse("'limit' or 'allow_from'", None, "A rule needs one of them.")
        for name in ("penalty", "grace", "warn_at", "algorithm", "window", "timezone", "cost", "count_when"):
            if name in table:
                place.key(name).refuse("a limit beside it", table[name], "Without a limit it does nothing.")

    def leases(self, place: Place, table: dict[str, Any], limits: dict[str, Limit | LimitSet]) -> None:
        """Refuse leases that no response would give back: of messages, and of rules that are not enforced."""
        leased = [limit for limit in limits.values() if limit.is_leased]
        if leased and "count_when" in table:
            place.key("count_when").refuse(
                f"a limit per time, as a lease of '{leased[0]}' ends with the response", table["count_when"]
            )
        if leased and table.get("counts") == "messages":
            place.key("counts").refuse(f"'requests' with '{leased[0]}'", "messages", "A message holds no lease.")
        if leased and (table.get("mode") == "shadow" or table.get("enforce_percent", 100) != 100):
            word = "mode" if table.get("mode") == "shadow" else "enforce_percent"
            place.key(word).refuse(
                f"every request to hold a lease of '{leased[0]}'", table[word], "Enforce the rule, or remove it."
            )

    def limit_function(self, place: Place, table: dict[str, Any]) -> LimitFunction | None:
        """The function that computes the limit of each request, if there is one."""
        given = table.get("limit")
        if isinstance(given, str) and given.startswith("function:"):
            function, name = self.values.expect_function(place, given), given[9:]
        elif callable(given):
            function, name = given, name_of_function(given)
        else:
            return None
        timezone = table.get("timezone", self.content.get("timezone"))
        return LimitFunction(function, name, table.get("algorithm"), table.get("window"), timezone)

    def limits(self, place: Place, table: dict[str, Any]) -> dict[str, Limit | LimitSet]:
        given = table.get("limit")
        if given is None or (isinstance(given, str) and given.startswith("function:")):
            return {}
        limit_place = place.key("limit")
        if not isinstance(given, dict):
            return self.calendars(place, table, {ANY_TIER: self.limit(limit_place, given, table)})
        if self.tiers is None:
            limit_place.refuse(
                "a limit for everybody, as there is no [tiers]", given, "Add [tiers] with 'from' and 'default'."
            )
        default = self.tiers["default"]
        if default not in given:
            suggestion = did_you_mean(default, given).strip()
            limit_place.refuse(f"a limit for the default tier {default!r} too", sorted(given), suggestion)
        limits = {tier: self.limit(limit_place.key(tier), limit, table) for tier, limit in given.items()}
        return self.calendars(place, table, limits)

    def calendars(
        self, place: Place, table: dict[str, Any], limits: dict[str, Limit | LimitSet]
    ) -> dict[str, Limit | LimitSet]:
        """The limits; refuse a time zone that none of them has."""
        if "timezone" in table and not any(part.timezone for limit in limits.values() for part in limit.parts):
            place.key("timezone").refuse(
                "a calendar limit beside it",
                table["timezone"],
                "Write limit = '1000/day calendar', limit = '1000/month', or window = 'calendar'.",
            )
        return limits

    def limit(self, place: Place, given: Any, table: dict[str, Any]) -> Limit | LimitSet:
        algorithm, window = table.get("algorithm"), table.get("window")
        timezone = table.get("timezone", self.content.get("timezone"))
        if window is not None and algorithm not in (None, "fixed_window"):
            place.refuse(f"fixed_window or no algorithm beside window = {window!r}", algorithm)
        try:
            return parse_rule_limits(given, algorithm, window, timezone)
        except InvalidInput as error:
            head, _, rest = str(error).partition(": expected ")
            advice = rest.partition(" To refuse everybody")[0]
            cure = (
                " To switch the rule off, write mode = 'off'; to refuse everybody, allow_from = []."
                if advice != rest
                else ""
            )
            place.refuse((advice or head).rstrip(".") + f" ({shown(given)})", None, cure.strip())

    def patterns(self, place: Place, table: dict[str, Any]) -> tuple[tuple[Pattern, ...], tuple[Pattern, ...]]:
        """The patterns of a rule, and those that begin with ``!``, which it excludes."""
        given = table.get("match", "/**")
        texts = [given] if isinstance(given, str) else list(given)
        attempt = Attempts()
        for number, text in enumerate(texts):
            item = place.key("match") if isinstance(given, str) else place.key("match").key(number)
            attempt(self.values.pattern, item, text.removeprefix("!"))
        attempt.finish()
        included = [text for text in texts if not text.startswith("!")] or ["/**"]
        excluded = [text[1:] for text in texts if text.startswith("!")]
        host = table.get("host")
        return (
            tuple([Pattern(text, host) for text in included]),
            tuple([Pattern(text, exact=True) for text in excluded]),
        )

    def condition(self, place: Place, table: dict[str, Any]) -> Condition:
        given = table["count_when"]
        if table.get("counts") == "messages":
            place.refuse("a rule that counts requests", given, "A message has no response.")
        if isinstance(given, str) and given.startswith("function:"):
            given = self.values.expect_function(place, given)
        try:
            condition = Condition(given)
        except ValueError:
            place.refuse(CONDITION, given)
        return condition

    def cost(self, place: Place, given: Any) -> Cost:
        if isinstance(given, int):
            return Cost(constant=given)
        if callable(given):
            return Cost(source="function", function=given)
        table: dict[str, Any] = {"from": given} if isinstance(given, str) else given
        source_place = place if isinstance(given, str) else place.key("from")
        (source,) = self.values.sources(source_place, [table["from"]], ("header", "function"), ("body",))
        kind, _, name = source.partition(":")
        most = table.get("most")
        return Cost(
            source=kind,
            name=name,
            function=self.values.functions[name] if kind == "function" else None,
            per=table.get("per", 1),
            most=most,
            missing=table.get("missing", most or 1),
        )

    def penalty(self, place: Place, table: dict[str, Any]) -> Penalty:
        within = self.values.micros(place.key("within"), table["within"])
        block = self.values.micros(place.key("block"), table["block"])
        for name, value in (("within", within), ("block", block)):
            if not 1_000 <= value <= 400 * 86_400_000_000:
                place.key(name).refuse("a time from 1 millisecond to 400 days", table[name])
        return Penalty(table["after"], within, block)

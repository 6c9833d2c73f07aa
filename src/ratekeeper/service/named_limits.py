"""The limits that callers name, and a cache of the questions that callers ask about them.

A caller names a rule, or writes a limit such as ``100/minute``, with a name of its own if it likes.  Each different
limit has a table of its own, so their number is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, shown
from ratekeeper.limit import LimitSet, parse_limits
from ratekeeper.rules.rule import ANY_TIER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.limit import Limit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.service.counters import Counters, RuleCounts
    from ratekeeper.service.retired_limits import RetiredLimits

    Name = tuple[str | None, Any, str | None]  # a rule, a limit, and the name of that limit, as a caller wrote them
    # What a request body asks: a limit with a key and a cost, or None with a described request.
    Question = tuple["NamedLimit | None", Any, int]

MOST_QUESTIONS = 4096
LONGEST_BODY = 512  # bytes of a question that is cached


class NamedLimit:
    """A limit, the name that it is counted under, its table in the store, and the counts of its decisions."""

    __slots__ = ("counts", "is_queue", "limit", "name", "table")

    def __init__(self, name: str, limit: Limit | LimitSet, table: Any, counts: RuleCounts) -> None:
        self.name = name
        self.limit = limit
        self.table = table
        self.counts = counts
        self.is_queue = limit.is_queue  # only then has a decision a delay


class NamedLimits:
    """The limits of one worker's callers."""

    def __init__(self, policy: Policy, counters: Counters, retired: RetiredLimits, most: int) -> None:
        self.policy = policy
        self.counters = counters
        self.retired = retired
        self.most = most
        self.by_name: dict[Name, NamedLimit] = {}
        self.questions: dict[bytes, Question] = {}  # by request body: most callers send the same few again and again

    def find(self, rule: str | None, limit: Any, name: str | None) -> NamedLimit:
        """The limit that a caller means."""
        place = rule, tuple(limit) if isinstance(limit, list) else limit, name
        try:
            named = self.by_name.get(place)
        except TypeError:
            raise InvalidInput(f"limit: expected text such as '100/minute', got {shown(limit)}.") from None
        return named or self.resolve(place)

    def resolve(self, place: Name) -> NamedLimit:
        rule_name, limit, name = place
        if rule_name is not None:
            if limit is not None or name is not None:
                raise InvalidInput("rule: expected no limit or name beside it, as the rule has its own.")
            space, parsed = rule_name, self.limit_of_rule(rule_name)
        else:
            if limit is None:
                raise InvalidInput("check: expected a limit such as '100/minute', or the name of a rule.")
            if name is not None and not (isinstance(name, str) and 0 < len(name) <= 200):
                raise InvalidInput(f"name: expected text of 1 to 200 characters, got {shown(name)}.")
            parsed = parse_limits(limit)
            space = name or str(parsed)
        return self.add(place, space, parsed)

    def limit_of_rule(self, name: str) -> Limit | LimitSet:
        rule = next((rule for rule in self.policy.rules if rule.name == name), None)
        if rule is None:
            names = ", ".join([rule.name for rule in self.policy.rules]) or "none"
            raise InvalidInput(f"rule: expected the name of a rule ({names}), got {shown(name)}.")
        limit = rule.limits.get(ANY_TIER) or rule.limits.get(rule.tier_default)
        if limit is None:
            raise InvalidInput(f"rule: expected one with a limit, got {shown(name)}, which has none.")
        return limit

    def add(self, place: Name, space: str, limit: Limit | LimitSet) -> NamedLimit:
        """Give a limit a table, unless callers have named too many."""
        if len(self.by_name) >= self.most:
            raise InvalidInput(
                f"limit: expected at most {self.most} different ones. "
                "Give clients different keys, not different limits."
            )
        self.retired.revive(space, limit)
        table = self.policy.async_store.table(space, limit)
        named = self.by_name[place] = NamedLimit(space, limit, table, self.counters.of(space))
        return named

    def remember(self, body: bytes, question: Question) -> None:
        """Cache what a request body asks."""
        if len(body) <= LONGEST_BODY:
            if len(self.questions) >= MOST_QUESTIONS:
                self.questions.clear()
            self.questions[body] = question

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Every space that callers count in, and its limit."""
        for named in self.by_name.values():
            yield named.name, named.limit

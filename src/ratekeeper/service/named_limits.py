"""The limits that callers name, and a cache of the questions that callers ask about them.

A caller names a rule, or writes a limit such as ``100/minute``, with a name of its own if it likes.  Each different
limit has a table of its own, so their number is bounded, and so is the memory of their tables.  When there is no room
for another, the limit that was used longest ago gives way, among those on which every key has recovered: no caller
gets a fresh limit by naming many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratekeeper.errors import InvalidInput, InvalidStore, shown
from ratekeeper.limit import LimitSet, parse_limits
from ratekeeper.rules.closed import is_closed
from ratekeeper.rules.rule import ANY_TIER
from ratekeeper.service.table_budget import NoRoom
from ratekeeper.units import SECOND

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ratekeeper.limit import Limit
    from ratekeeper.rules.policy import Policy
    from ratekeeper.service.counters import Counters, RuleCounts
    from ratekeeper.service.retired_limits import RetiredLimits
    from ratekeeper.service.table_budget import TableBudget

    Name = tuple[str | None, Any, str | None]  # a rule, a limit, and the name of that limit, as a caller wrote them
    # What a request body asks: a limit with a key and a cost, or None with a described request.
    Question = tuple["NamedLimit | None", Any, int]

MOST_QUESTIONS = 4096
LONGEST_BODY = 512  # bytes of a question that is cached
LONGEST_LIMIT = 200  # characters of a limit
MOST_PARTS = 8  # limits that are decided together under one name
LEEWAY = 2.0  # seconds between the recovery of a limit and the end of its table: listeners cache tables for one
FORGET_SHARE = 8  # of the limits, one part is forgotten at once


class NamedLimit:
    """A limit, the name that it is counted under, its table in the store, and the counts of its decisions."""

    __slots__ = ("counts", "is_queue", "limit", "name", "table", "used_at", "uses")

    def __init__(self, name: str, limit: Limit | LimitSet, table: Any, counts: RuleCounts) -> None:
        self.name = name
        self.limit = limit
        self.table = table
        self.counts = counts
        self.is_queue = limit.is_queue  # only then has a decision a delay
        self.used_at = 0.0
        self.uses = 0  # since then; counted on the hot path, which has no time to look at a clock

    def recovered_at(self, now: float) -> float:
        """When every key has recovered, at the latest."""
        if self.uses:
            self.uses, self.used_at = 0, now
        return self.used_at + self.limit.recovery / SECOND + LEEWAY


class NamedLimits:
    """The limits of one worker's callers."""

    def __init__(
        self, policy: Policy, counters: Counters, retired: RetiredLimits, most: int, budget: TableBudget
    ) -> None:
        self.policy = policy
        self.counters = counters
        self.retired = retired
        self.most = most
        self.budget = budget
        self.by_name: dict[Name, NamedLimit] = {}
        self.questions: dict[bytes, Question] = {}  # by request body: most callers send the same few again and again
        self.store: Any = None  # of the tables
        self.full_until = 0.0  # no limit will have recovered before
        retired.release_hooks.append(budget.release)

    def find(self, rule: str | None, limit: Any, name: str | None) -> NamedLimit:
        """The limit that a caller means."""
        place = rule, tuple(limit) if isinstance(limit, list) else limit, name
        try:
            named = self.by_name.get(place)
        except TypeError:
            raise InvalidInput(f"limit: expected text such as '100/minute', got {shown(limit)}.") from None
        if named is None:
            return self.resolve(place)
        named.used_at = self.now()
        return named

    def resolve(self, place: Name) -> NamedLimit:
        rule_name, limit, name = place
        if rule_name is not None:
            if limit is not None or name is not None:
                raise InvalidInput("rule: expected no limit or name beside it, as the rule has its own.")
            space, parsed = rule_name, self.limit_of_rule(rule_name)
        else:
            if limit is None:
                raise InvalidInput("check: expected a limit such as '100/minute', or the name of a rule.")
            if name is not None:
                expect_name(name)
            expect_short(limit)
            parsed = parse_limits(limit)
            self.expect_zone(parsed)
            space = name or str(parsed)
        return self.add(place, space, parsed)

    def expect_zone(self, limit: Limit | LimitSet) -> None:
        """Raise if a calendar has a time zone that no rule has: each costs 400 kB, and a tenth of a second."""
        zones = {part.timezone for rule in self.policy.rules for each in rule.limits.values() for part in each.parts}
        for part in limit.parts:
            if part.timezone not in (None, "UTC") and part.timezone not in zones:
                raise NoRoom(
                    f"limit: expected a calendar of UTC, or of a time zone that a rule has, got {part.timezone!r}. "
                    f"Add a rule with timezone = {part.timezone!r}."
                )

    def share(self, space: str, limit: Limit | LimitSet) -> None:
        """Give a limit that came with a request its table in ``space``, within the bounds of what callers name."""
        place = None, limit, space
        named = self.by_name.get(place)
        if named is None:
            expect_name(space)
            named = self.add(place, space, limit)
        named.uses += 1

    def limit_of_rule(self, name: str) -> Limit | LimitSet:
        rule = next((rule for rule in self.policy.rules if rule.name == name), None)
        if rule is None:
            names = ", ".join([rule.name for rule in self.policy.rules]) or "none"
            raise InvalidInput(f"rule: expected the name of a rule ({names}), got {shown(name)}.")
        limit = rule.limits.get(ANY_TIER) or rule.limits.get(rule.tier_default)
        if rule.limit_function is not None or (limit is not None and is_closed(limit)):
            raise InvalidInput(
                f"rule: expected one with a limit for every caller, got {shown(name)}, whose limit "
                f"{'a function computes' if rule.limit_function is not None else 'admits nobody'}."
            )
        if limit is None:
            raise InvalidInput(f"rule: expected one with a limit, got {shown(name)}, which has none.")
        return limit

    def add(self, place: Name, space: str, limit: Limit | LimitSet) -> NamedLimit:
        """Give a limit a table; NoRoom if callers have named too many, and none of them has recovered."""
        store: Any = self.policy.async_store
        if len(self.by_name) >= self.most and not self.forget_recovered():
            raise NoRoom(
                f"limit: expected at most {self.most} different ones. "
                "Give clients different keys, not different limits, or raise --max-limits."
            )
        is_rule = place[0] is not None and place[1] is None
        while True:
            try:
                keys = None if is_rule else self.budget.reserve(store, space, limit)
                break
            except NoRoom:
                self.budget.expect_short_log(limit)
                if not self.forget_recovered():
                    raise
        self.retired.revive(space, limit)
        more = {} if keys is None else {"max_keys": keys}
        try:
            table = store.table(space, limit, **more)
        except BaseException as error:
            self.budget.release(space, limit)
            if isinstance(error, InvalidStore):  # the shared memory is full, whatever the budget says
                raise NoRoom(str(error)) from error
            raise
        named = self.by_name[place] = NamedLimit(space, limit, table, self.counters.of(space))
        named.used_at = self.now()
        self.full_until = min(self.full_until, named.recovered_at(self.now()))
        return named

    def now(self) -> float:
        """Seconds, by the clock of the states."""
        return self.policy.clock.nanos() / 1e9

    def forget_recovered(self) -> bool:
        """Forget the limits that were used longest ago, among those that have recovered; False if there is none.

        Several at once, so that a caller who names many pays little of the others' time.
        """
        now = self.now()
        if now < self.full_until:
            return False
        recovered_at = {place: named.recovered_at(now) for place, named in self.by_name.items()}
        self.full_until = min(recovered_at.values(), default=0.0)
        recovered = [place for place, at in recovered_at.items() if at <= now]
        if not recovered:
            return False
        recovered.sort(key=lambda place: self.by_name[place].used_at)
        forgotten = [self.by_name.pop(place) for place in recovered[: max(1, self.most // FORGET_SHARE)]]
        self.questions.clear()  # they hold tables
        in_use = self.retired.in_use()
        for named in forgotten:
            if (named.name, named.limit.layout) not in in_use:  # no other name counts on the same states
                self.retired.retire(named.name, named.limit)
        return True

    def refresh(self) -> None:
        """After rules or overrides have changed: find rules by name again, and all limits if the store is another."""
        self.questions.clear()
        if self.policy.async_store is not self.store:
            self.store = self.policy.async_store
            self.by_name.clear()
            self.budget.clear()
        for place in [place for place in self.by_name if place[0] is not None and place[1] is None]:
            del self.by_name[place]

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


def expect_name(name: Any) -> None:
    if not (isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()):
        raise InvalidInput(f"name: expected printable text of 1 to 200 characters, got {shown(name)}.")


def expect_short(limit: Any) -> None:
    """Raise if a limit is so long that it must be a mistake: what callers write is kept."""
    texts = limit if isinstance(limit, tuple) else (limit,)
    if len(texts) > MOST_PARTS:
        raise InvalidInput(f"limit: expected at most {MOST_PARTS} limits together, got {len(texts)}.")
    if any(isinstance(text, str) and len(text) > LONGEST_LIMIT for text in texts):
        raise InvalidInput(f"limit: expected at most {LONGEST_LIMIT} characters, got more.")

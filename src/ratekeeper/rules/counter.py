"""A rule that is ready to count on its store, its limit for each tier, and one check of it for one request.  No I/O."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ratekeeper.check import Check, to_cost
from ratekeeper.errors import InvalidCost, InvalidInput, InvalidLimit
from ratekeeper.http.headers import LimitLabel
from ratekeeper.identity.identity import Caller, Identity, key_of, written
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import Limit, LimitSet
from ratekeeper.rules.closed import is_closed
from ratekeeper.rules.rule import ANY_TIER, Exempt, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ratekeeper.decision import Decision
    from ratekeeper.identity.request import Request
    from ratekeeper.stores.protocol import Store

# Added to a rule's name: the spaces that count blocked subjects, their refusals, and the grace they used.  The
# fallback of a store knows them, too: BESIDE.
BLOCKED = "#blocked"
REFUSED = "#refused"
GRACED = "#graced"
MOST_COMPUTED = 256  # different limits that the function of one rule has returned


class TierLimit:
    """The limit of one tier, or of every tier, with the labels that headers show for it."""

    __slots__ = ("counter", "is_closed", "is_unlimited", "labels", "limit", "plain")

    def __init__(self, counter: RuleCounter, limit: Limit | LimitSet) -> None:
        rule, parts = counter.rule, limit.parts
        self.counter = counter
        self.limit = limit
        self.labels = tuple([LimitLabel(rule, part, len(parts) == 1) for part in parts])
        label = self.labels[0]
        has_usual_headers = len(parts) == 1 and rule.warn_at is None and not rule.grace and not label.hidden
        # The label, if the usual header fields can be written from it alone: two thirds of the cost of headers.
        self.plain = label if has_usual_headers and not label.window and not label.leased else None
        self.is_unlimited = isinstance(limit, Limit) and limit.is_unlimited
        self.is_closed = is_closed(limit)


class RuleCounter:
    """A rule, ready to count on its store."""

    __slots__ = (
        "block",
        "by_tier",
        "computed",
        "constant",
        "default",
        "entries",
        "exempt",
        "identity",
        "is_local",
        "key",
        "name",
        "refusals",
        "rule",
        "space",
        "store",
    )

    def __init__(self, rule: Rule, identity: Identity, store: Store, is_local: bool, exempt_everywhere: Exempt) -> None:
        self.rule = rule
        self.name = rule.name
        self.space = rule.space or rule.name
        self.store = store
        self.is_local = is_local
        self.identity = identity
        self.key = key_of(identity, rule.by, rule.patterns[0].text)
        self.entries = {tier: TierLimit(self, limit) for tier, limit in rule.limits.items()}
        self.by_tier = rule.by_tier
        self.default = self.entries.get(ANY_TIER) or self.entries.get(rule.tier_default)
        self.computed: dict[Any, TierLimit] = {}  # by what the rule's function returned, the last used last
        # 0: the cost depends on the request, or the rule only looks.
        self.constant = rule.cost.constant if not rule.cost.source else 0
        self.exempt = [exempt for exempt in (exempt_everywhere, rule.exempt) if exempt]
        self.block = self.refusals = None
        if rule.penalty is not None:
            self.block = Limit(1, rule.penalty.block / 1_000_000, burst=1)
            self.refusals = Limit(rule.penalty.after, rule.penalty.within / 1_000_000, algorithm="sliding_log")

    @property
    def is_shadow(self) -> bool:
        """Whether the rule is enforced for no subject at all."""
        return self.rule.mode != "enforce" or self.rule.enforce_percent <= 0

    @property
    def is_unconditional(self) -> bool:
        """Whether each request that matches pays a fixed cost, and the limit alone decides.

        Then the checks of a request are known in advance, except for their keys, which can be made again to give back.
        A function of the application may answer differently the second time.
        """
        rule = self.rule
        depends_on_request = bool(self.exempt) or rule.allow_from is not None or not self.constant or not self.entries
        depends_on_request |= any(callable(source) for source in rule.by)
        is_closed_to_some = any(entry.is_closed for entry in self.entries.values())
        depends_on_request = depends_on_request or rule.count_when is not None or is_closed_to_some
        if depends_on_request or self.is_shadow:
            return not depends_on_request
        has_consequences = (
            rule.penalty is not None or bool(rule.grace) or any(limit.is_leased for limit in rule.limits.values())
        )
        is_queue = any(limit.is_queue for limit in rule.limits.values())
        return rule.enforce_percent >= 100 and not has_consequences and not is_queue

    @property
    def is_guardable(self) -> bool:
        """Whether ``GuardedSelection`` understands all that the rule depends on.

        What a request took must be found again from the request alone, to give it back.
        """
        rule = self.rule
        return (
            bool(self.entries) and rule.allow_from is None and rule.count_when is None
            and (self.constant > 0 or rule.cost.source in ("header", "body"))
            and not any(callable(source) for source in rule.by)
            and not any(entry.is_closed or entry.limit.is_leased for entry in self.entries.values())
            and (self.is_shadow or rule.enforce_percent >= 100)
        )  # fmt: skip

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Each space that the rule counts in, with its limit there."""
        for entry in [*self.entries.values(), *list(self.computed.values())]:
            if entry.is_closed:
                continue
            yield self.space, entry.limit
            if self.rule.grace:
                yield self.space + GRACED, self.grace_limit(entry.limit)
        for suffix, limit in ((BLOCKED, self.block), (REFUSED, self.refusals)):
            if limit is not None:
                yield self.space + suffix, limit

    def entry(self, caller: Caller) -> TierLimit | None:
        """The limit of the caller's tier, or what the rule's function returns; None if the rule limits nothing."""
        if self.rule.limit_function is not None:
            return self.computed_entry(self.rule.limit_function(caller.request))
        return self.entries.get(caller.tier, self.default) if self.by_tier else self.default

    def computed_entry(self, value: Any) -> TierLimit:
        """The limit that the rule's function returned, parsed once."""
        result = tuple(value) if isinstance(value, list) else value
        try:
            entry = self.computed.get(result)
        except TypeError:  # nothing that could be a limit
            entry = None
        if entry is None:
            entry = self.computed[result] = TierLimit(self, self.parse_computed(value))
            if len(self.computed) > MOST_COMPUTED:
                self.forget_oldest()
        elif len(self.computed) > MOST_COMPUTED // 2:
            self.computed.pop(result, None)  # it moves to the end, so that the ones in use are kept
            self.computed[result] = entry
        return entry

    def parse_computed(self, value: Any) -> Limit | LimitSet:
        limit = self.rule.limit_function.parse(value)  # type: ignore[union-attr]
        if limit.is_leased and (self.rule.counts == "messages" or self.is_shadow or self.rule.enforce_percent < 100):
            raise InvalidLimit(
                f"{self.rule.limit_function}: expected a limit per time, got '{limit}', "
                "which only an enforced rule that counts requests can hold."
            )
        return limit

    def forget_oldest(self) -> None:
        """Drop the limit that was used least recently, and its states unless another limit reads them."""
        oldest = self.computed.pop(next(iter(self.computed))).limit
        layouts = {entry.limit.layout for entry in self.computed.values()}
        if oldest.layout not in layouts and not is_closed(oldest):
            self.store.release(self.space, oldest)

    def is_exempt(self, caller: Caller) -> bool:
        for exempt in self.exempt:
            for function in exempt.functions:
                if expect_answer(function(caller.request)):
                    return True
            if exempt.networks and caller.client_address.address in exempt.networks:
                return True
            if exempt.users and written(caller.user) in exempt.users:
                return True
            if exempt.tiers and caller.tier in exempt.tiers:
                return True
        return False

    def is_enforced(self, key: str | bytes) -> bool:
        """Whether the rule is enforced for this subject.  The answer for one subject never changes."""
        if self.is_shadow:
            return False
        percent = self.rule.enforce_percent
        if percent >= 100:
            return True
        raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        place = blake2b(raw, digest_size=8, person=blake2b(self.name.encode(), digest_size=16).digest()).digest()
        return int.from_bytes(place, "big") * 100 < percent * 2**64

    def grace_limit(self, limit: Limit | LimitSet) -> Limit:
        return Limit(self.rule.grace, max(part.period for part in limit.parts), algorithm="fixed_window")

    def pending(self, entry: TierLimit, caller: Caller, cost: int) -> PendingCheck:
        """The check that ``caller`` must pass."""
        key: str | bytes = self.key(caller)
        if len(key) > LONGEST:
            key = encode(key)
        return PendingCheck(self, entry, Check(self.space, key, entry.limit, cost, self.rule.on_store_error))


class PendingCheck:
    """One check of a rule for one request, and its decision once it has been made."""

    __slots__ = ("check", "counter", "decision", "entry")
    decision: Decision

    def __init__(self, counter: RuleCounter, entry: TierLimit, check: Check) -> None:
        self.counter = counter
        self.entry = entry
        self.check = check

    @property
    def is_reserved(self) -> bool:
        """Whether it took something that the response may give back."""
        return self.counter.rule.count_when is not None and self.decision.allowed

    def beside(self, suffix: str, limit: Limit) -> Check:
        """A check of the same subject in another space of the rule: of blocks, refusals or grace.

        While the store is away, this process counts it.
        """
        return Check(self.counter.space + suffix, self.check.key, limit, 1, "local")


def expect_answer(answer: Any) -> bool:
    """Whether a function said that the request is exempt."""
    if hasattr(answer, "__await__"):
        getattr(answer, "close", int)()  # else Python warns that it was never awaited
        raise InvalidInput("exempt: expected a plain function of the request, got an async one. Nothing awaits it.")
    return bool(answer)


def cost_of(rule: Rule, request: Request) -> int:
    """The cost of ``request``, 0 if it only looks; InvalidCost if the request states one that is no whole number."""
    cost = rule.cost
    if not cost.source:
        return cost.constant
    stated: object
    if cost.source == "body":
        stated = request.length
        if stated == 0:
            return 1
    elif cost.source == "header":
        lines = request.values(cost.name.lower().encode("latin-1"))
        stated = header_number(lines[0]) if len(lines) == 1 else None if not lines else -1
    else:
        stated = cost.function(request)  # type: ignore[misc]
    if stated is None:
        return cost.missing
    if stated.__class__ is int and stated == 0 and cost.source == "function":
        return 0
    number = -(-to_cost(stated) // cost.per)
    return number if cost.most is None else min(number, cost.most)


def header_number(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidCost("cost: expected a whole number in the header, got something else.")
    return int(text)

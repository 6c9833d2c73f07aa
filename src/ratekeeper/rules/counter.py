"""A rule made ready to count on its store: RuleCounter, its limit of each tier, and one check of it.  No I/O."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

from ratekeeper.check import Check, whole_cost
from ratekeeper.errors import InvalidCost
from ratekeeper.http.headers import LimitLabel
from ratekeeper.identity.identity import Caller, Identity, key_of
from ratekeeper.keys import LONGEST, encode
from ratekeeper.limit import Limit, LimitSet
from ratekeeper.rules.rule import ANY_TIER, Exempt, Rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ratekeeper.decision import Decision
    from ratekeeper.identity.request import Request
    from ratekeeper.stores.protocol import Store

BLOCKED = "#blocked"  # behind a rule's name: who is blocked, how often somebody was refused, who used up the grace
REFUSED = "#refused"
GRACED = "#graced"


class TierLimit:
    """One limit of a counter: of a tier, or of everybody."""

    __slots__ = ("check", "counter", "is_unlimited", "labels", "limit", "plain")

    def __init__(self, counter: RuleCounter, limit: Limit | LimitSet) -> None:
        rule, store = counter.rule, counter.store
        self.counter = counter
        parts = limit.parts
        self.limit = limit
        self.labels = tuple([LimitLabel(rule, part, len(parts) == 1) for part in parts])
        is_plain = len(parts) == 1 and rule.warn_at is None and not rule.grace and not self.labels[0].hidden
        self.plain = self.labels[0] if is_plain and not self.labels[0].window and not self.labels[0].leased else None
        self.is_unlimited = isinstance(limit, Limit) and limit.is_unlimited
        self.check: Callable[..., Decision] | None = None
        if not store.blocking and not self.is_unlimited:
            self.check = store.table(rule.name, limit).check


class RuleCounter:
    """A rule, ready to count on its store."""

    __slots__ = (
        "block",
        "by_tier",
        "constant",
        "default",
        "entries",
        "exempt",
        "identity",
        "is_local",
        "key",
        "name",
        "only_ip",
        "refusals",
        "rule",
        "simple",
        "store",
    )

    def __init__(self, rule: Rule, identity: Identity, store: Store, is_local: bool, everywhere: Exempt) -> None:
        self.rule = rule
        self.name = rule.name
        self.store = store
        self.is_local = is_local
        self.identity = identity
        self.key = key_of(identity, rule.by, rule.patterns[0].text)
        self.only_ip = rule.by == ("ip",)
        self.entries = {tier: TierLimit(self, limit) for tier, limit in rule.limits.items()}
        self.by_tier = rule.by_tier
        self.default = self.entries.get(ANY_TIER) or self.entries.get(rule.tier_default)
        self.constant = rule.cost.constant if not rule.cost.source else 0
        self.exempt = [own for own in (everywhere, rule.exempt) if own]
        self.block = self.refusals = None
        if rule.penalty is not None:
            self.block = Limit(1, rule.penalty.block / 1_000_000, burst=1)
            self.refusals = Limit(rule.penalty.after, rule.penalty.within / 1_000_000, algorithm="sliding_log")
        delays = any(limit.is_queue for limit in rule.limits.values())
        self.simple = (
            rule.mode == "enforce"
            and rule.enforce_percent >= 100
            and rule.penalty is None
            and not rule.grace
            and rule.allow_from is None
            and not self.exempt
            and not delays
            and bool(self.constant)
            and not store.blocking
            and bool(self.entries)
        )

    def places(self) -> Iterator[tuple[str, Limit | LimitSet]]:
        """Each space it counts in, with the limit it has there."""
        for entry in self.entries.values():
            yield self.name, entry.limit
            if self.rule.grace:
                yield self.name + GRACED, self.grace_limit(entry.limit)
        for kind, limit in ((BLOCKED, self.block), (REFUSED, self.refusals)):
            if limit is not None:
                yield self.name + kind, limit

    def entry(self, caller: Caller) -> TierLimit | None:
        return self.entries.get(caller.tier, self.default) if self.by_tier else self.default

    def check_of(self, key: str | bytes, limit: Limit | LimitSet, cost: int) -> Check:
        return Check(self.name, key, limit, cost, self.rule.on_store_error)

    def leaves_alone(self, caller: Caller) -> bool:
        for exempt in self.exempt:
            if exempt.networks and caller.known.address in exempt.networks:
                return True
            if exempt.users and caller.user in exempt.users:
                return True
            if exempt.tiers and caller.tier in exempt.tiers:
                return True
        return False

    def is_enforced(self, key: str | bytes) -> bool:
        """Whether this subject belongs to the share for which the rule is enforced: always the same answer."""
        percent = self.rule.enforce_percent
        if self.rule.mode != "enforce" or percent <= 0:
            return False
        if percent >= 100:
            return True
        raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        place = blake2b(raw, digest_size=8, person=blake2b(self.name.encode(), digest_size=16).digest()).digest()
        return int.from_bytes(place, "big") * 100 < percent * 2**64

    def grace_limit(self, limit: Limit | LimitSet) -> Limit:
        parts = limit.parts
        return Limit(self.rule.grace, max(part.period for part in parts), algorithm="fixed_window")


class PendingCheck:
    """One counter for one request."""

    __slots__ = ("check", "counter", "decision", "entry")
    decision: Decision

    def __init__(self, counter: RuleCounter, entry: TierLimit, check: Check) -> None:
        self.counter = counter
        self.entry = entry
        self.check = check

    def side(self, kind: str, limit: Limit) -> Check:
        """A check beside the rule's own: of blocks, refusals or grace; in this process while the store is away."""
        return Check(self.counter.name + kind, self.check.key, limit, 1, "local")


def asked(counter: RuleCounter, entry: TierLimit, caller: Caller, cost: int) -> PendingCheck:
    key: str | bytes = counter.key(caller)
    if len(key) > LONGEST:
        key = encode(key)
    return PendingCheck(counter, entry, counter.check_of(key, entry.limit, cost))


def cost_of(rule: Rule, request: Request) -> int:
    """What ``request`` takes; InvalidCost where it claims nonsense."""
    cost = rule.cost
    if not cost.source:
        return cost.constant
    found: object
    if cost.source == "body":
        found = request.length
        if found == 0:
            return 1
    elif cost.source == "header":
        lines = request.values(cost.name.lower().encode("latin-1"))
        found = whole_text(lines[0]) if len(lines) == 1 else None if not lines else -1
    else:
        found = cost.function(request)  # type: ignore[misc]
    if found is None:
        return cost.missing
    number = -(-whole_cost(found) // cost.per)
    return number if cost.most is None else min(number, cost.most)


def whole_text(text: str) -> int:
    text = text.strip()
    if not (text.isascii() and text.isdecimal() and len(text) <= 15):
        raise InvalidCost("cost: expected a whole number in the header, got something else.")
    return int(text)

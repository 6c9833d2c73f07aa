"""Advice on rules that are valid but probably unwise.  No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ratekeeper.identity.identity import Identity
from ratekeeper.limit import Limit
from ratekeeper.rules.match import Pattern
from ratekeeper.rules.rule import Rule
from ratekeeper.rules.warn import is_covered

SENSITIVE = (
    "login",
    "signin",
    "sign-in",
    "auth",
    "password",
    "token",
    "otp",
    "payment",
    "checkout",
    "register",
    "signup",
)


def advise(rules: Iterable[Rule], identity: Identity) -> list[str]:
    """Advice on each rule, and on rules beside each other."""
    rules = list(rules)
    return [
        *[f"rule {rule.name!r} {text}" for rule in rules for text in on_belief(rule, rules, identity)],
        *[f"rule {rule.name!r} {text}" for rule in rules for text in about(rule)],
        *[f"rule {rule.name!r} {text}" for rule, text in beside(rules)],
    ]


def on_belief(rule: Rule, rules: list[Rule], identity: Identity) -> Iterator[str]:
    source = identity.unverified(rule.by)
    if source == "host":  # no list of hosts would help, and a rule that is not covered has a warning of its own
        return
    if source and rule.has_limit and is_covered(rule, rules):
        yield (
            f"counts by {source!r} and accepts any value: a client that sends a new one each time is limited by "
            "the rules by ip only. List the keys you issued in [identity.api_keys]."
        )


def about(rule: Rule) -> Iterator[str]:
    sensitive = [pattern.text for pattern in rule.patterns if any(word in pattern.text.lower() for word in SENSITIVE)]
    limits = list(each_limit(rule))
    if sensitive and any(limit.algorithm == "fixed_window" for limit in limits):
        yield (
            f"guards {sensitive[0]} with a fixed window, which can admit twice its count around the end of a window. "
            "Use gcra or sliding_log."
        )
    if sensitive and rule.mode == "enforce" and rule.on_store_error == "allow":
        advice = "Use on_store_error = 'deny' or 'local'."
        yield f"guards {sensitive[0]} and fails open while the store is down. {advice}"
    if any(not limit.count for limit in limits) and not rule.by_tier:
        yield "refuses every request, as its limit is 0. To switch the rule off, write mode = 'off'."
    for limit in limits:
        if limit.algorithm in ("gcra", "token_bucket", "leaky_bucket") and limit.burst == 1 and limit.count > 1:
            yield f"has a burst of 1: two requests at once are refused although {limit} allows more. Raise the burst."
        if limit.burst > 100 * limit.count:
            yield f"has a burst of {limit.burst}, more than 100 periods' worth of {limit}. Is that meant?"
    if rule.by and set(rule.by) <= {"all", "route", "host", "method"} and not rule.patterns[0].methods and limits:
        smallest = min(limits, key=lambda limit: limit.count / limit.micros)
        if smallest.count * 1_000_000 < smallest.micros * 10 and rule.mode == "enforce":
            yield (
                f"counts all callers together and admits only {smallest}: one caller can lock all others out. "
                "Count by ip too."
            )
    if rule.mode == "enforce" and rule.enforce_percent == 0:
        yield "is enforced for 0 % of its subjects. Write mode = 'shadow' if that is meant."


def beside(rules: list[Rule]) -> Iterator[tuple[Rule, str]]:
    for rule in rules:
        if rule.mode == "off":
            continue
        for other in rules:
            if other is rule or other.mode != "enforce" or other.allow_from is None or other.allow_from.texts:
                continue
            if all(any(covers(wide, pattern) for wide in other.patterns) for pattern in rule.patterns):
                yield rule, f"never decides anything: {other.name!r} refuses every request before it."
    enforced = [(number, rule) for number, rule in enumerate(rules) if rule.mode == "enforce" and rule.has_limit]
    bounds = [pair for pair in enforced if is_unconditional(pair[1])]
    wide = [pair for pair in bounds if any(pattern.text.endswith("/**") for pattern in pair[1].patterns)]
    alike: dict[object, list[tuple[int, Rule]]] = {}
    for pair in bounds:
        alike.setdefault(repr(texts(pair[1])), []).append(pair)
    for number, rule in enforced:
        for place, other in [*alike.get(repr(texts(rule)), ()), *wide]:
            same = other.by == rule.by and texts(other) == texts(rule)
            if other is rule or (same and place > number) or not counts_at_least(other, rule):
                continue
            if each_is_looser(rule, other):
                words = "the same" if same else "the same requests and more"
                yield rule, f"never refuses a request: {other.name!r} counts {words} and is stricter."
                break


def is_unconditional(rule: Rule) -> bool:
    return rule.enforce_percent >= 100 and not (rule.exempt or rule.exclusions or rule.is_default or rule.count_when)


def counts_at_least(wide: Rule, narrow: Rule) -> bool:
    """Whether each request that ``narrow`` counts is counted by ``wide`` too, in the same counter or a shared one."""
    if wide.counts != narrow.counts or wide.scope != narrow.scope:
        return False
    if wide.cost.source or narrow.cost.source or wide.cost.constant < narrow.cost.constant:
        return False
    if not (wide.by == ("all",) or set(wide.by) <= set(narrow.by)):
        return False
    return all(any(covers(pattern, each) for pattern in wide.patterns) for each in narrow.patterns)


def covers(wide: Pattern, narrow: Pattern) -> bool:
    """Whether ``wide`` certainly matches every request that ``narrow`` matches."""
    if wide.host is not None and wide.host != narrow.host:
        return False
    if wide.methods is not None and (narrow.methods is None or not narrow.methods <= wide.methods):
        return False
    if wide.text in ("/**", narrow.text):
        return True
    return wide.text.endswith("/**") and narrow.text.startswith(wide.text[:-2])


def texts(rule: Rule) -> list[tuple[str, object, object]]:
    return [(pattern.text, pattern.methods, pattern.host) for pattern in rule.patterns]


def each_limit(rule: Rule) -> Iterator[Limit]:
    for limit in rule.limits.values():
        yield from (part for part in limit.parts if not part.is_unlimited)


def each_is_looser(rule: Rule, other: Rule) -> bool:
    """Whether one limit of ``other`` refuses before each limit of ``rule`` does."""
    limits = list(each_limit(rule))
    if other.by_tier or not limits:
        return False
    return all(any(is_looser(limit, bound) for bound in each_limit(other)) for limit in limits)


def is_looser(limit: Limit, bound: Limit) -> bool:
    return (
        limit.algorithm == bound.algorithm
        and limit.count * bound.micros >= bound.count * limit.micros
        and limit.capacity >= bound.capacity
        and limit.slices == bound.slices
        and not limit.is_leased
    )

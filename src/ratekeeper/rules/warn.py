"""Warnings of rules that a file may hold, and that do less than they seem to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ratekeeper.identity.identity import Identity
    from ratekeeper.rules.rule import Exempt, Rule


def warn(content: dict[str, Any], rules: tuple[Rule, ...], exempt: Exempt, identity: Identity) -> Iterator[str]:
    yield from warn_of_missing_identity(content.get("tiers"), rules, exempt, identity)
    yield from warn_of_chosen_costs(rules, has_proxies=bool(content.get("trusted_proxies")))
    yield from warn_of_unverified_sources(rules, identity)


def warn_of_missing_identity(
    tiers: dict[str, Any] | None, rules: tuple[Rule, ...], exempt: Exempt, identity: Identity
) -> Iterator[str]:
    """Warn of users and tiers that nothing in the file can name."""
    for rule in rules:
        if "user" in rule.by and not identity.user_sources:
            yield (
                f"rule {rule.name!r} counts by 'user', but identity.user does not say who that is, so each client "
                "is counted by address. Add [identity] with user = 'jwt:sub', 'app:user' or another source."
            )
        if "tier" in rule.by and tiers is None:
            yield (
                f"rule {rule.name!r} counts by 'tier', but there is no [tiers], so all clients are counted "
                "together. Add [tiers] with 'from' and 'default'."
            )
    for where, clients in [("exempt", exempt), *[(f"rule {rule.name!r}", rule.exempt) for rule in rules]]:
        if clients is not None and clients.users and not identity.user_sources:
            yield (
                f"{where} exempts users, but identity.user does not say who they are, so none is exempt. "
                "Add [identity] with user = 'jwt:sub', 'app:user' or another source."
            )
        if clients is not None and clients.tiers and not (tiers and tiers.get("from")):
            yield (f"{where} exempts tiers, but tiers.from does not say who is in them. Add [tiers] with 'from'.")


def warn_of_chosen_costs(rules: tuple[Rule, ...], *, has_proxies: bool) -> Iterator[str]:
    """Warn of costs that a client can lower by what it sends, or leaves out."""
    for rule in rules:
        if rule.cost.source == "body" and rule.cost.most is None:
            yield (
                f"rule {rule.name!r} takes its cost from the body, but a client can send a body without stating "
                f"its length, which costs {rule.cost.missing}. Write cost = {{ from = 'body', most = N }}: "
                "then such a body costs N."
            )
        elif rule.cost.source == "header" and not has_proxies:
            yield (
                f"rule {rule.name!r} takes its cost from the header {rule.cost.name!r}, which a client can write "
                "itself. Let a trusted proxy set the header, and name the proxy in trusted_proxies."
            )


def warn_of_unverified_sources(rules: tuple[Rule, ...], identity: Identity) -> Iterator[str]:
    """Warn of rules that a client can avoid by sending another value."""
    for rule in rules:
        source = identity.unverified(rule.by)
        if source and rule.has_limit and not is_covered(rule, rules):
            yield (
                f"rule {rule.name!r} counts by {source!r}, which a client can change at will. "
                "Add a rule by ip for every path beside it."
            )


def is_covered(rule: Rule, rules: Iterable[Rule]) -> bool:
    """Whether a client that avoids ``rule`` still meets a rule by address."""
    return any(
        other is not rule and other.mode == "enforce" and other.has_limit and other.count_when is None
        and list(other.by) == ["ip"]
        and any(pattern.text == "/**" and pattern.methods is None for pattern in other.patterns)
        for other in rules
    )  # fmt: skip

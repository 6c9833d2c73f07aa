"""Rules that can never match a route of the application: most often a path that was written with, or without, the
prefix under which the application is mounted.  No I/O.

A route is a ``Pattern`` too.  It may stand for more paths than the framework serves, never for fewer: a warning must
be true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.errors import did_you_mean
from ratekeeper.rules.match import Pattern, SegmentShape, wildcard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ratekeeper.rules.rule import Rule

EVERYTHING = ("**",)


def unreachable(rules: Iterable[Rule], routes: Sequence[Pattern]) -> list[str]:
    """A sentence for each pattern of a limiting rule that no route can match."""
    if any(route.segments == EVERYTHING for route in routes):
        return []
    limiting = [rule for rule in rules if rule.has_limit and rule.mode != "off"]
    return [sentence for rule in limiting for sentence in about(rule, routes)]


def about(rule: Rule, routes: Sequence[Pattern]) -> Iterator[str]:
    for pattern in rule.patterns:
        if pattern.segments == EVERYTHING or any(meet(pattern, route) for route in routes):
            continue
        methods = ",".join(sorted(pattern.methods - {"HEAD"})) + " " if pattern.methods else ""
        yield (
            f"rule {rule.name!r} never applies: no route of the application matches {methods}{pattern.text}. "
            f"{advice(pattern, routes)}"
        )


def advice(pattern: Pattern, routes: Sequence[Pattern]) -> str:
    for route in routes:
        if ends_with(pattern.segments, route.segments) or ends_with(route.segments, pattern.segments):
            return f"A rule's path begins where the application's routes begin, below any mount: write {route.text!r}."
    if any(paths_meet(pattern.segments, route.segments) for route in routes):
        return "The route takes other methods."
    return did_you_mean(pattern.text, [route.text for route in routes]).strip() or "Correct its path, or remove it."


def ends_with(longer: tuple[str, ...], shorter: tuple[str, ...]) -> bool:
    return 0 < len(shorter) < len(longer) and longer[-len(shorter) :] == shorter


def meet(one: Pattern, other: Pattern) -> bool:
    """Whether some request matches both."""
    if one.methods is not None and other.methods is not None and one.methods.isdisjoint(other.methods):
        return False
    return paths_meet(one.segments, other.segments)


def paths_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether some path matches both lists of segments; both may hold a ``**``."""
    states = {(0, 0)}
    pending = [(0, 0)]
    while pending:
        i, j = pending.pop()
        if i == len(one) and j == len(other):
            return True
        steps = []
        if i < len(one) and one[i] == "**":
            steps += [(i + 1, j)] + [(i, j + 1)] * (j < len(other))
        elif j < len(other) and other[j] == "**":
            steps += [(i, j + 1)] + [(i + 1, j)] * (i < len(one))
        elif i < len(one) and j < len(other) and segments_meet(one[i], other[j]):
            steps += [(i + 1, j + 1)]
        for step in steps:
            if step not in states:
                states.add(step)
                pending.append(step)
    return False


def segments_meet(one: str, other: str) -> bool:
    """Whether some text matches both.  Two shapes with wildcards meet if their ends do: all the rest can be joined."""
    left, right = SegmentShape(one), SegmentShape(other)
    if left.is_literal:
        return right.matches(one)
    if right.is_literal:
        return left.matches(other)
    starts = left.first.startswith(right.first) or right.first.startswith(left.first)
    return starts and (left.last.endswith(right.last) or right.last.endswith(left.last))


def route(path: str, methods: Iterable[str] | None = None) -> Pattern:
    """A route of an application as a pattern: ``path`` with placeholders, whatever else it holds."""
    pattern = Pattern("/")
    pattern.text = path if path.startswith("/") else "/" + path
    pattern.segments = only_one_rest([wildcard(part) for part in pattern.text.lower().split("/") if part])
    if methods is not None:
        pattern.methods = frozenset([method.upper() for method in methods])
        if "GET" in pattern.methods:
            pattern.methods |= {"HEAD"}
    return pattern


def only_one_rest(parts: list[str]) -> tuple[str, ...]:
    """The segments up to the first that may hold slashes."""
    return tuple(parts[: parts.index("**") + 1] if "**" in parts else parts)

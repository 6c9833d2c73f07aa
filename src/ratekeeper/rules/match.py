"""Which rules a request meets: method, host and path against all patterns at once.

Patterns are kept in a tree of path segments, so that a thousand rules cost little more than ten.  Two paths that a
router may send to one handler must meet the same rules.  Case, doubled and final slashes and a final line feed do not
matter, HEAD counts as GET, and a path with dot segments or matrix parameters (``/login;v=1``) meets the rules of all
its readings: as written, without parameters, and as resolved.

Law: no I/O.  Meeting too many rules is safe; meeting too few would let a client past a limit.
Law: no backtracking.  One search visits each node of the tree at most once, and compares each segment with a pattern
by looking at each of its characters once: linear in the path, and linear in the rules.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from ratekeeper.identity.request import Request

MOST_CACHED = 4096  # results by (method, host, path), so that the tree is walked once for each
LONGEST_CACHED = 256
UNUSUAL = re.compile(r"[;\\%?#\x00-\x20\x7f]")
PLACEHOLDER = re.compile(r"\{[^{}]*\}|<[^<>]*>")


class Pattern:
    """``"GET,POST /users/{id}/**"``, with the host beside it; ``text`` without its methods names the route."""

    __slots__ = ("host", "methods", "segments", "text")

    def __init__(self, text: str, host: str | None = None, *, exact: bool = False) -> None:
        words = text.split()
        path = words[-1] if words and words[-1].startswith("/") else "/**"
        named = words[0] if words and not words[0].startswith("/") else "*"
        methods = frozenset(named.upper().split(",")) if named != "*" else None
        if methods is not None and "GET" in methods:
            methods |= {"HEAD"}
        self.methods = methods
        self.host = host.lower() if host else None
        parts = segments(path) if not exact else tuple([part for part in path.split("/") if part])
        self.segments = tuple([wildcard(part) for part in parts])
        self.text = path

    @property
    def is_every_path(self) -> bool:
        return self.segments == ("**",)

    def admits(self, method: str, host: str) -> bool:
        if self.methods is not None and method not in self.methods:
            return False
        if self.host is None or self.host == host:
            return True
        return self.host.startswith("*.") and host.endswith(self.host[1:])


class SegmentShape:
    """A segment of a pattern: ``a``, ``*``, ``{name}.json`` or ``{year}-{month}``, as its literal pieces in order.

    The first piece must begin a text and the last must end it.  Each piece between is searched for behind the one
    before it, and the leftmost place is always good enough: it leaves most of the text to the pieces that follow.
    So a text is searched once, from left to right, however many pieces there are.
    """

    __slots__ = ("first", "inner", "is_literal", "last", "shortest")

    def __init__(self, part: str) -> None:
        pieces = part.split("*")
        self.is_literal = len(pieces) == 1
        self.first, self.last = pieces[0], pieces[-1]
        self.inner = tuple([piece for piece in pieces[1:-1] if piece])
        self.shortest = len(part) - part.count("*")

    def matches(self, text: str) -> bool:
        if self.is_literal:
            return text == self.first
        if len(text) < self.shortest or not (text.startswith(self.first) and text.endswith(self.last)):
            return False
        at, end = len(self.first), len(text) - len(self.last)
        for piece in self.inner:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True


class SegmentNode:
    """A node of the tree: what may follow the segments that lead to it."""

    __slots__ = ("any_one", "here", "literal", "partial", "rest")

    def __init__(self) -> None:
        self.literal: dict[str, SegmentNode] = {}
        self.any_one: SegmentNode | None = None
        self.partial: dict[str, tuple[SegmentShape, SegmentNode]] = {}
        self.here: list[tuple[int, Pattern]] = []
        self.rest: list[tuple[int, Pattern, tuple[SegmentShape, ...]]] = []  # patterns with ** here, and what follows


class Index:
    """Rules by what they match.  ``find`` gives the numbers of all rules that match a request, in order."""

    def __init__(
        self,
        patterns: Sequence[Sequence[Pattern]],
        exclusions: Sequence[Sequence[Pattern]] = (),
        *,
        defaults: Set[int] = frozenset(),
        replacing: Set[int] = frozenset(),
    ) -> None:
        self.root = SegmentNode()
        self.excluded_root = SegmentNode()
        self.excludes = any(exclusions)
        self.defaults = defaults  # rules for requests that meet no replacing rule by its path
        self.replacing = replacing
        self.always = tuple([number for number, rule in enumerate(patterns) if any(map(is_everything, rule))])
        self.by_host = any(pattern.host for rule in patterns for pattern in rule)
        # Every rule matches every request: nothing to look up.
        self.plain = len(self.always) == len(patterns) and not self.excludes
        self.cache: dict[tuple[str, str, str, str], tuple[int, ...]] = {}
        always = set(self.always)
        for number, rule in enumerate(patterns):
            if number not in always:
                for pattern in rule:
                    add(self.root, number, pattern)
        for number, rule in enumerate(exclusions):
            for pattern in rule:
                add(self.excluded_root, number, pattern)

    def find(self, request: Request) -> tuple[int, ...]:
        if self.plain:
            return self.always
        name = request.method, request.host if self.by_host else "", request.path, request.root_path
        numbers = self.cache.get(name)
        if numbers is None:
            numbers = tuple(sorted(self.search(request).numbers))
            if max(map(len, name)) <= LONGEST_CACHED:
                if len(self.cache) >= MOST_CACHED:
                    self.cache.clear()
                self.cache[name] = numbers
        return numbers

    def search(self, request: Request) -> Matches:
        """What ``find`` finds, and the rules that it leaves out."""
        method, host = request.method.upper(), request.host if self.by_host else ""
        ways = readings(request)
        numbers, by_path = set(self.always), set()
        for parts in ways:
            for number, pattern in candidates(self.root, parts):
                if pattern.admits(method, host):
                    numbers.add(number)
                    if number in self.replacing and not pattern.is_every_path:
                        by_path.add(number)
        excluded = set()
        if self.excludes and len(ways) == 1 and (exact := exact_segments(request)) is not None:
            for number, pattern in candidates(self.excluded_root, exact):
                if number in numbers and pattern.admits(method, host):
                    excluded.add(number)
        numbers -= excluded
        by_path -= excluded
        replaced = numbers & self.defaults if by_path else set()
        return Matches(numbers - replaced, excluded, replaced, min(by_path, default=-1))


class Matches(NamedTuple):
    """The numbers of the rules that a request meets, and of those that would match it otherwise."""

    numbers: set[int]
    excluded: set[int]  # by an exclusion of the rule, or by its path being exempt
    replaced: set[int]  # defaults, which give way to
    replaced_by: int  # this rule, the first of those that match by their path


def add(root: SegmentNode, number: int, pattern: Pattern) -> None:
    node = root
    for depth, part in enumerate(pattern.segments):
        if part == "**":
            after = tuple([SegmentShape(part) for part in pattern.segments[depth + 1 :]])
            node.rest.append((number, pattern, after))
            return
        node = child(node, part)
    node.here.append((number, pattern))


def candidates(root: SegmentNode, parts: tuple[str, ...]) -> Iterator[tuple[int, Pattern]]:
    """The patterns whose path matches, each with the number of its rule."""
    for node, depth in walk(root, parts):
        for number, pattern, after in node.rest:
            if len(after) <= len(parts) - depth and tail_matches(after, parts):
                yield number, pattern
        if depth == len(parts):
            yield from node.here


def walk(root: SegmentNode, parts: tuple[str, ...]) -> Iterator[tuple[SegmentNode, int]]:
    """The nodes that the first segments lead to, with the number of those segments; each node once."""
    nodes = [(root, 0)]
    while nodes:
        node, depth = nodes.pop()
        yield node, depth
        if depth == len(parts):
            continue
        part = parts[depth]
        depth += 1
        if (literal := node.literal.get(part)) is not None:
            nodes.append((literal, depth))
        if node.any_one is not None:
            nodes.append((node.any_one, depth))
        for shape, partial in node.partial.values():
            if shape.matches(part):
                nodes.append((partial, depth))


def child(node: SegmentNode, part: str) -> SegmentNode:
    if part == "*":
        if node.any_one is None:
            node.any_one = SegmentNode()
        return node.any_one
    if "*" not in part:
        return node.literal.setdefault(part, SegmentNode())
    return node.partial.setdefault(part, (SegmentShape(part), SegmentNode()))[1]


def tail_matches(after: tuple[SegmentShape, ...], parts: tuple[str, ...]) -> bool:
    """Whether the last segments match ``after``, the segments that follow a ``**``."""
    first = len(parts) - len(after)
    return all(shape.matches(parts[first + number]) for number, shape in enumerate(after))


def wildcard(part: str) -> str:
    """``{id}``, ``{id:int}`` and ``<id>`` match any text in a segment; ``{rest:path}`` matches all that follow."""
    if ":path}" in part or "<path:" in part:
        return "**"
    return PLACEHOLDER.sub("*", part)


def is_everything(pattern: Pattern) -> bool:
    return pattern.segments == ("**",) and pattern.methods is None and pattern.host is None


def segments(path: str) -> tuple[str, ...]:
    return tuple([part for part in path.lower().split("/") if part])


def readings(request: Request) -> list[tuple[str, ...]]:
    """The path below the mount: as written, without matrix parameters, and as resolved, where these differ."""
    path = request.path
    scheme, absolute, rest = path.partition("://")
    if absolute and scheme.isalpha():
        path = "/" + rest.partition("/")[2]
    if not request.decoded:
        path = unquote(path.partition("?")[0])
    ways = []
    for text in below(request.root_path, path) if request.root_path else (path,):
        text = text.removesuffix("\n")  # the $ of a router's expression matches before a final one
        ways.append(segments(text))
        if ";" in text:  # Java servers cut parameters off each segment
            ways.append(segments("/".join([part.partition(";")[0] for part in text.split("/")])))
    ways += [resolved(parts) for parts in ways if "." in parts or ".." in parts]
    return ways


def exact_segments(request: Request) -> tuple[str, ...] | None:
    """The segments in their own case; None for any path but the plainest spelling of a route, with or without a final
    slash.  Excluding too much would let a client past a limit, so no other spelling is ever excluded.
    """
    path = request.path
    if not request.decoded:
        if "%2f" in path.lower():
            return None
        path = unquote(path.partition("?")[0])
    if request.root_path:
        below_mount = below(request.root_path, path)
        if len(below_mount) != 1:
            return None
        path = below_mount[0] or "/"
    if not path.startswith("/") or "//" in path or UNUSUAL.search(path):
        return None
    parts = tuple([part for part in path.split("/") if part])
    return None if "." in parts or ".." in parts else parts


def below(root_path: str, path: str) -> tuple[str, ...]:
    """The path below ``root_path``: one text for usual paths, and every one that a framework may take for others.

    Starlette and Django remove a prefix that ends at a slash, Quart any prefix, Litestar the first occurrence.  Servers
    may send a path without it, and then all take the whole path.
    """
    _, is_below, rest = path.partition(root_path)
    if not is_below:
        return (path,)
    if path.startswith(root_path) and rest[:1] in ("", "/"):
        return (rest,)
    return path, rest


def resolved(parts: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            if kept:
                kept.pop()
        elif part != ".":
            kept.append(part)
    return tuple(kept)

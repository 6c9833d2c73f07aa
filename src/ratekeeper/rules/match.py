"""Which rules a request meets: method, host and path against all patterns at once.

Patterns are kept in a tree of path segments, so that a thousand rules cost little more than ten.  Two paths that a
router may send to one handler must meet the same rules.  Case, doubled and final slashes and a final line feed do not
matter, HEAD counts as GET, and a path with dot segments meets the rules of both its readings, as written and as
resolved.

Law: no I/O.  Meeting too many rules is safe; meeting too few would let a client past a limit.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratekeeper.identity.request import Request

MOST_CACHED = 4096  # results by (method, host, path), so that the tree is walked once for each
LONGEST_CACHED = 256
PLACEHOLDER = re.compile(r"\{[^{}]*\}|<[^<>]*>")


class Pattern:
    """``"GET,POST /users/{id}/**"``, with the host beside it; ``text`` without its methods names the route."""

    __slots__ = ("host", "methods", "segments", "text")

    def __init__(self, text: str, host: str | None = None) -> None:
        words = text.split()
        path = words[-1] if words and words[-1].startswith("/") else "/**"
        named = words[0] if words and not words[0].startswith("/") else "*"
        methods = frozenset(named.upper().split(",")) if named != "*" else None
        if methods is not None and "GET" in methods:
            methods |= {"HEAD"}
        self.methods = methods
        self.host = host.lower() if host else None
        self.segments = tuple([wildcard(part) for part in segments(path)])
        self.text = path

    def admits(self, method: str, host: str) -> bool:
        if self.methods is not None and method not in self.methods:
            return False
        if self.host is None or self.host == host:
            return True
        return self.host.startswith("*.") and host.endswith(self.host[1:])


class SegmentNode:
    """A node of the tree: what may follow the segments that lead to it."""

    __slots__ = ("any_one", "here", "literal", "partial", "rest")

    def __init__(self) -> None:
        self.literal: dict[str, SegmentNode] = {}
        self.any_one: SegmentNode | None = None
        self.partial: list[tuple[re.Pattern[str], SegmentNode]] = []
        self.here: list[tuple[int, Pattern]] = []
        self.rest: list[tuple[int, Pattern, tuple[str, ...]]] = []  # patterns with ** here, and the segments after it


class Index:
    """Rules by what they match.  ``find`` gives the numbers of all rules that match a request, in order."""

    def __init__(self, patterns: Sequence[Sequence[Pattern]]) -> None:
        self.root = SegmentNode()
        self.always = tuple([number for number, rule in enumerate(patterns) if any(map(is_everything, rule))])
        self.size = len(patterns)
        self.by_host = any(pattern.host for rule in patterns for pattern in rule)
        self.plain = len(self.always) == self.size  # every rule matches every request: nothing to look up
        self.cache: dict[tuple[str, str, str], tuple[int, ...]] = {}
        for number, rule in enumerate(patterns):
            if number not in self.always:
                for pattern in rule:
                    self.add(number, pattern)

    def add(self, number: int, pattern: Pattern) -> None:
        node = self.root
        for depth, part in enumerate(pattern.segments):
            if part == "**":
                node.rest.append((number, pattern, pattern.segments[depth + 1 :]))
                return
            node = child(node, part)
        node.here.append((number, pattern))

    def find(self, request: Request) -> tuple[int, ...]:
        if self.plain:
            return self.always
        name = request.method, request.host if self.by_host else "", request.path
        numbers = self.cache.get(name)
        if numbers is None:
            numbers = self.search(request, name[1])
            if len(request.path) <= LONGEST_CACHED and len(name[1]) <= LONGEST_CACHED:
                if len(self.cache) >= MOST_CACHED:
                    self.cache.clear()
                self.cache[name] = numbers
        return numbers

    def search(self, request: Request, host: str) -> tuple[int, ...]:
        method = request.method.upper()
        numbers = set(self.always)
        for parts in readings(request):
            for number, pattern in self.walk(self.root, parts, 0):
                if number not in numbers and pattern.admits(method, host):
                    numbers.add(number)
        return tuple(sorted(numbers))

    def walk(self, node: SegmentNode, parts: tuple[str, ...], depth: int) -> Iterable[tuple[int, Pattern]]:
        for number, pattern, after in node.rest:
            if not after or rest_matches(after, parts[depth:]):
                yield number, pattern
        if depth == len(parts):
            yield from node.here
            return
        part = parts[depth]
        if (literal := node.literal.get(part)) is not None:
            yield from self.walk(literal, parts, depth + 1)
        if node.any_one is not None:
            yield from self.walk(node.any_one, parts, depth + 1)
        for shape, partial in node.partial:
            if shape.fullmatch(part):
                yield from self.walk(partial, parts, depth + 1)


def child(node: SegmentNode, part: str) -> SegmentNode:
    if part == "*":
        if node.any_one is None:
            node.any_one = SegmentNode()
        return node.any_one
    if "*" not in part:
        return node.literal.setdefault(part, SegmentNode())
    shape = shape_of(part)
    for known_shape, partial in node.partial:
        if known_shape.pattern == shape.pattern:
            return partial
    partial = SegmentNode()
    node.partial.append((shape, partial))
    return partial


def shape_of(part: str) -> re.Pattern[str]:
    return re.compile("[^/]*".join(re.escape(piece) for piece in part.split("*")))


def rest_matches(after: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """Whether the last segments match ``after``, the segments that follow a ``**``."""
    if len(after) > len(parts):
        return False
    tail = parts[len(parts) - len(after) :]
    return all(segment_matches(pattern, part) for pattern, part in zip(after, tail, strict=True))


def segment_matches(pattern: str, part: str) -> bool:
    return pattern == "*" or pattern == part or ("*" in pattern and shape_of(pattern).fullmatch(part) is not None)


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
    """The path as written, and as resolved where that differs."""
    path = request.path
    scheme, absolute, rest = path.partition("://")
    if absolute and scheme.isalpha():
        path = "/" + rest.partition("/")[2]
    if not request.decoded:
        path = unquote(path.partition("?")[0])
    written = segments(path.removesuffix("\n"))  # the $ of a router's expression matches before a final one
    if "." in written or ".." in written:
        return [written, resolved(written)]
    return [written]


def resolved(parts: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            if kept:
                kept.pop()
        elif part != ".":
            kept.append(part)
    return tuple(kept)

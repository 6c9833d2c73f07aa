"""Which rules a request meets: method, host and path against all patterns at once.

Patterns are kept in a tree of path segments, so that a thousand rules cost little more than ten.  What a router may
send to one handler must meet one rule: case, doubled and final slashes and a final line feed do not matter, HEAD counts
as GET, and a path with dot segments meets the rules of both its readings, as written and as resolved.

Law: no I/O; meeting too many rules is safe, meeting too few is a hole.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ratekeeper.identity.request import Request

MOST_KNOWN = 4096  # (method, host, path) remembered, so that the tree is walked once for each
LONGEST_KNOWN = 256
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
    """One segment deep in the tree."""

    __slots__ = ("any_one", "here", "literal", "partial", "rest")

    def __init__(self) -> None:
        self.literal: dict[str, SegmentNode] = {}
        self.any_one: SegmentNode | None = None
        self.partial: list[tuple[re.Pattern[str], SegmentNode]] = []
        self.here: list[tuple[int, Pattern]] = []
        self.rest: list[tuple[int, Pattern, tuple[str, ...]]] = []  # patterns with ** at this place, and what follows


class Index:
    """Rules by what they match.  ``find`` gives the numbers of all that do, in order."""

    def __init__(self, patterns: Sequence[Sequence[Pattern]]) -> None:
        self.root = SegmentNode()
        self.always = tuple([number for number, own in enumerate(patterns) if any(map(is_everything, own))])
        self.size = len(patterns)
        self.by_host = any(pattern.host for own in patterns for pattern in own)
        self.plain = len(self.always) == self.size
        self.known: dict[tuple[str, str, str], tuple[int, ...]] = {}
        for number, own in enumerate(patterns):
            if number not in self.always:
                for pattern in own:
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
        found = self.known.get(name)
        if found is None:
            found = self.search(request, name[1])
            if len(request.path) <= LONGEST_KNOWN and len(name[1]) <= LONGEST_KNOWN:
                if len(self.known) >= MOST_KNOWN:
                    self.known.clear()
                self.known[name] = found
        return found

    def search(self, request: Request, host: str) -> tuple[int, ...]:
        method = request.method.upper()
        found = set(self.always)
        for parts in readings(request):
            for number, pattern in self.walk(self.root, parts, 0):
                if number not in found and pattern.admits(method, host):
                    found.add(number)
        return tuple(sorted(found))

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
    for own, found in node.partial:
        if own.pattern == shape.pattern:
            return found
    made = SegmentNode()
    node.partial.append((shape, made))
    return made


def shape_of(part: str) -> re.Pattern[str]:
    return re.compile("[^/]*".join(re.escape(piece) for piece in part.split("*")))


def rest_matches(after: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    """``after`` stands behind the ``**``, which swallows all but as many segments."""
    if len(after) > len(parts):
        return False
    tail = parts[len(parts) - len(after) :]
    return all(one_matches(own, part) for own, part in zip(after, tail, strict=True))


def one_matches(own: str, part: str) -> bool:
    return own == "*" or own == part or ("*" in own and shape_of(own).fullmatch(part) is not None)


def wildcard(part: str) -> str:
    """``{id}``, ``{id:int}`` and ``<id>`` are any text in their segment; ``{rest:path}`` is all that follow it."""
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
    found = [written]
    if "." in written or ".." in written:
        found.append(resolved(written))
    return found


def resolved(parts: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for part in parts:
        if part == "..":
            if kept:
                kept.pop()
        elif part != ".":
            kept.append(part)
    return tuple(kept)

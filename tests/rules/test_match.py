"""Which rules a request meets: a table, and the tree against trying every pattern by itself."""

from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Policy, Request
from ratekeeper.rules.match import Index, Pattern, SegmentShape, segments, walk


def meets(text, request, host=None):
    return Index([[Pattern(text, host)], [Pattern("/never/met/by/anything")]]).find(request) == (0,)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("/**", ["GET /", "POST /a/b"], []),
        (
            "/login",
            ["GET /login", "POST /LOGIN/", "GET //login", "GET /login?x=1", "GET /%6Cogin"],
            ["GET /login/x", "GET /logi"],
        ),
        ("POST /login", ["POST /login", "post /login"], ["GET /login"]),
        ("GET,PUT /a", ["GET /a", "PUT /a", "HEAD /a"], ["POST /a"]),
        ("POST", ["POST /", "POST /a/b"], ["GET /"]),
        ("* /a", ["BREW /a"], ["BREW /b"]),
        ("/users/{id}", ["GET /users/1", "GET /users/a.b"], ["GET /users", "GET /users/1/2"]),
        ("/users/<int:id>", ["GET /users/1"], ["GET /users"]),
        ("/users/*/posts", ["GET /users/1/posts"], ["GET /users/posts"]),
        ("/a/**", ["GET /a", "GET /a/b", "GET /a/b/c"], ["GET /ab"]),
        ("/a/{rest:path}", ["GET /a/b/c"], ["GET /b"]),
        ("/a/**/z", ["GET /a/z", "GET /a/b/c/z"], ["GET /a", "GET /a/b"]),
        ("/files/{name}.json", ["GET /files/a.json", "GET /FILES/b.c.json"], ["GET /files/a", "GET /files/a/b.json"]),
        ("/{a}-{b}/x", ["GET /1-2/x"], ["GET /12/x"]),
        ("/at/<int:year>-<int:month>", ["GET /at/2026-11"], ["GET /at/2026"]),
        ("/dl/f-{rest:path}", ["GET /dl/f-a/b"], ["GET /up/f-a"]),
        ("/v*/x", ["GET /v1/x", "GET /v/x"], ["GET /w1/x"]),
        ("/files/*.js", ["GET /files/a.js"], ["GET /files/a.css"]),
        ("/login", ["GET /a/../login", "GET /./login", "GET /%2e/login", "GET http://host/login"], ["GET /login/.."]),
        ("/login", ["GET /login;v=1", "GET /;x/login;a/", "GET /..;/login", "GET /%3bx/login"], ["GET /login;/x"]),
        ("/a;b", ["GET /a;b", "GET /A%3BB"], ["GET /a"]),
        ("/files/**", ["GET /files/../login"], []),  # a router that does not resolve sends this to files
        ("/login", ["GET /files/../login"], []),  # and one that does, to login
    ],
)
def test_patterns(pattern, yes, no):
    for text in yes + no:
        method, path = text.split(" ")
        assert meets(pattern, Request(method, path)) is (text in yes), text


def test_a_path_that_the_server_decoded_is_not_decoded_again():
    assert not meets("/a/b", Request(path="/a%2Fb", decoded=True))
    assert meets("/a/b", Request(path="/a%2Fb"))
    assert not meets("/login", Request(path="/%256cogin"))


@pytest.mark.parametrize("host", ["api.example", "API.Example", "api.example:443", "api.example.", "Api.Example.:8080"])
def test_hosts(host):
    request = Request(headers={"Host": host})
    assert meets("/**", request, "api.example")
    assert meets("/**", request, "*.example")
    assert not meets("/**", request, "example")
    assert not meets("/**", request, "other.example")


def test_hosts_of_ipv6_and_absolute_form():
    assert Request(headers={"Host": "[2001:db8::1]:443"}).host == "[2001:db8::1]"
    assert Request(path="http://Api.Example:80/x").host == "api.example"
    assert Request().host == ""


part = st.one_of(
    st.sampled_from(["a", "b", "*", "{x}", "a*"]),
    st.lists(st.sampled_from(["", "a", "b", "ab", "x", "-"]), min_size=1, max_size=4).map("{n}".join).filter(bool),
)
pattern = st.builds(
    lambda method, parts, rest, tail: f"{method}/{'/'.join([*parts, *(['**', *tail] if rest else [])])}",
    st.sampled_from(["", "GET ", "POST "]),
    st.lists(part, max_size=3),
    st.booleans(),
    st.lists(part, max_size=1),
)


def by_itself(text, method, path):
    """The simplest matcher: the letters of the pattern one by one, with every way to continue at a wildcard."""
    compared = Pattern(text)
    if compared.methods is not None and method not in compared.methods:
        return False

    @cache
    def segment(shape, part):
        if not shape:
            return not part
        if shape[0] == "*":
            return segment(shape[1:], part) or bool(part and segment(shape, part[1:]))
        return bool(part) and shape[0] == part[0] and segment(shape[1:], part[1:])

    @cache
    def path_matches(shapes, parts):
        if not shapes:
            return not parts
        if shapes[0] == "**":
            return path_matches(shapes[1:], parts) or bool(parts and path_matches(shapes, parts[1:]))
        return bool(parts) and segment(shapes[0], parts[0]) and path_matches(shapes[1:], parts[1:])

    return path_matches(compared.segments, segments(path))


@given(
    st.lists(pattern, min_size=1, max_size=12),
    st.sampled_from(["GET", "POST"]),
    st.lists(st.text("abx-", min_size=1, max_size=6), max_size=4),
)
def test_the_tree_finds_what_each_pattern_finds(texts, method, parts):
    path = "/" + "/".join(parts)
    expected = tuple(number for number, text in enumerate(texts) if by_itself(text, method, path))
    index = Index([[Pattern(text)] for text in texts])
    for _ in range(2):  # the second answer is remembered
        assert index.find(Request(method, path)) == expected


def nodes_visited(index, path):
    return len(list(walk(index.root, segments(path))))


def test_a_thousand_rules_touch_as_few_nodes_as_ten():
    def visited(count):
        index = Index([[Pattern(f"GET /api/{number}/{{id}}")] for number in range(count)])
        assert index.find(Request("GET", "/api/7/x")) == (7,)
        return nodes_visited(index, "/api/7/x")

    assert visited(1000) == visited(10) == 4


class Counted(str):
    """A text that notes which of its characters each search looks at."""

    searched = ()

    def find(self, piece, start=0, end=None):
        at = super().find(piece, start, end)
        self.searched = (*self.searched, (start, len(self) if at < 0 else at + len(piece)))
        return at


@given(st.lists(st.sampled_from(["", "a", "b", "ab", "-"]), min_size=2, max_size=9), st.text("ab-", max_size=40))
def test_no_character_of_a_segment_is_searched_twice(pieces, text):
    """Linear in the path, however many placeholders a segment has: searches never go back over what they have seen."""
    counted = Counted(text)
    SegmentShape("*".join(pieces)).matches(counted)
    for (_, end), (start, _) in pairwise(counted.searched):
        assert start == end
    assert len(counted.searched) <= len(pieces)


@pytest.mark.parametrize("count", [2, 10, 100])
def test_many_placeholders_in_a_segment_search_a_long_path_once(count):
    """Backtracking took 60 s for five placeholders and 800 characters."""
    text = Counted("-" * 30_000)
    assert not SegmentShape("-".join(["*"] * count) + "x").matches(text)
    assert SegmentShape("-".join(["*"] * count)).matches(text)
    assert sum(end - start for start, end in text.searched) == count - 1
    assert Index([[Pattern("/" + "-".join(["{a}"] * count) + "x")]]).find(Request(path="/" + "-" * 30_000)) == ()


@given(st.lists(pattern, min_size=1, max_size=12), st.lists(st.sampled_from("ab"), max_size=6))
def test_a_search_visits_no_node_twice(texts, parts):
    index = Index([[Pattern(text)] for text in texts])
    visited = [id(node) for node, _ in walk(index.root, tuple(parts))]
    assert len(visited) == len(set(visited))


def test_a_pattern_may_be_deeper_than_the_stack_of_python():
    deep = "/" + "/".join(["a{b}"] * 5_000)
    assert meets(deep, Request(path=deep.replace("{b}", "x")))
    assert not meets(deep, Request(path=deep.replace("{b}", "x") + "/x"))


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("ratekeeper.rules.match.MOST_CACHED", 10)
    index = Index([[Pattern("/a/*")]])
    for number in range(100):
        assert index.find(Request(path=f"/a/{number}")) == (0,)
        assert len(index.cache) <= 10
    before = len(index.cache)
    assert index.find(Request(path="/a/" + "x" * 10_000)) == (0,)
    assert index.find(Request("X" * 10_000, path="/a/x")) == (0,)
    assert len(index.cache) == before


def names_met(rules, *requests, **settings):
    policy = Policy.parse({**settings, "rules": [{"limit": "5/minute", **rule} for rule in rules]})
    return [[policy.rules[number].name for number in policy.compiled.requests.find(request)] for request in requests]


EXCLUDING = [
    {"name": "api", "match": ["/api/**", "!/api/health", "!GET /api/docs/**"]},
    {"name": "rest", "match": "!/x"},
]


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("GET", "/api/users", ["api", "rest"]),
        ("POST", "/api/health", ["rest"]),
        ("GET", "/api/health/", ["rest"]),
        ("GET", "/api/health?x=1", ["rest"]),
        ("GET", "/api/docs/a/b", ["rest"]),
        ("HEAD", "/api/docs/a/b", ["rest"]),
        ("POST", "/api/docs/a/b", ["api", "rest"]),
        ("GET", "/x", []),
    ],
)
def test_exclusions(method, path, names):
    assert names_met(EXCLUDING, Request(method, path)) == [names]


@pytest.mark.parametrize(
    "path",
    [
        "/api/HEALTH", "/api//health", "/api/./health", "/api/x/../health", "/api/health;x=1", "/api/%2e/health",
        "/api%2fhealth", "/api/%2568ealth", "/api/health%0a", "/api/docs/../users", "/api/docs/..;/users",
        "/api/docs/..%5cusers", "/api/docs\\..\\users", "/api/docs%2f..%2fusers", "http://host/api/health",
    ],
)  # fmt: skip
def test_only_the_plainest_spelling_is_excluded(path):
    """A router may send any other spelling to another handler: counting it is safe."""
    assert "api" in names_met(EXCLUDING, Request(path=path))[0]


def test_exclusions_of_a_mounted_application():
    found = names_met(EXCLUDING, *[Request(path=path, root_path="/m") for path in ["/m/x", "/mx", "/y/m/x", "/x"]])
    assert found == [[], ["rest"], ["rest"], []]


def test_paths_that_are_exempt_from_a_rule_or_from_all():
    rules = [{"name": "a", "exempt": ["/health", "10.0.0.0/8"]}, {"name": "b"}]
    requests = [Request(path=path) for path in ["/", "/health", "/metrics"]]
    assert names_met(rules, *requests) == [["a", "b"], ["b"], ["a", "b"]]
    assert names_met(rules, *requests, exempt=["GET /metrics"]) == [["a", "b"], ["b"], []]
    assert names_met(rules, Request("POST", "/metrics"), exempt=["GET /metrics"]) == [["a", "b"]]


DEFAULTS = [
    {"name": "rest", "default": True},
    {"name": "ip"},
    {"name": "login", "match": "POST /login"},
    {"name": "trial", "match": "/trial", "mode": "shadow"},
    {"name": "partly", "match": "/partly", "enforce_percent": 50},
    {"name": "off", "match": "/off", "mode": "off"},
    {"name": "admin", "match": "/admin", "allow_from": ["10.0.0.0/8"]},
    {"name": "not-x", "match": ["/not/**", "!/not/x"]},
]


@pytest.mark.parametrize(
    ("method", "path", "names"),
    [
        ("GET", "/", ["rest", "ip"]),
        ("POST", "/login", ["ip", "login"]),
        ("GET", "/login", ["rest", "ip"]),  # the rule is for POST
        ("GET", "/trial", ["rest", "ip", "trial"]),  # a rule that refuses nobody replaces nothing
        ("GET", "/partly", ["rest", "ip", "partly"]),
        ("GET", "/off", ["rest", "ip"]),
        ("GET", "/not/y", ["ip", "not-x"]),
        ("GET", "/not/x", ["rest", "ip"]),
    ],
)
def test_defaults_are_for_requests_that_no_other_limit_matches_by_its_path(method, path, names):
    assert names_met(DEFAULTS, Request(method, path)) == [names]


def test_a_rule_without_a_limit_replaces_no_default():
    policy = Policy.parse({"rules": [{"name": "rest", "limit": "5/minute", "default": True},
                                     {"name": "admin", "match": "/admin", "allow_from": []}]})  # fmt: skip
    assert policy.compiled.requests.find(Request(path="/admin")) == (0, 1)

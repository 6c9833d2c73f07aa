"""Which rules a request meets: a table, and the tree against trying every pattern by itself."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Request
from ratekeeper.rules.match import Index, Pattern, segments


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


part = st.sampled_from(["a", "b", "*", "{x}", "a*"])
pattern = st.builds(
    lambda method, parts, rest, tail: f"{method}/{'/'.join([*parts, *(['**', *tail] if rest else [])])}",
    st.sampled_from(["", "GET ", "POST "]),
    st.lists(part, max_size=3),
    st.booleans(),
    st.lists(part, max_size=1),
)


def by_itself(text, method, path):
    own = Pattern(text)
    if own.methods is not None and method not in own.methods:
        return False
    shape = "".join(
        r"(/[^/]+)*" if part == "**" else "/" + re.escape(part).replace(r"\*", "[^/]*" if part != "*" else "[^/]+")
        for part in own.segments
    )
    return re.fullmatch(shape, "".join("/" + part for part in segments(path))) is not None


@given(
    st.lists(pattern, min_size=1, max_size=12),
    st.sampled_from(["GET", "POST"]),
    st.lists(st.sampled_from("ab"), max_size=4),
)
def test_the_tree_finds_what_each_pattern_finds(texts, method, parts):
    path = "/" + "/".join(parts)
    expected = tuple(number for number, text in enumerate(texts) if by_itself(text, method, path))
    index = Index([[Pattern(text)] for text in texts])
    for _ in range(2):  # the second answer is remembered
        assert index.find(Request(method, path)) == expected


def test_a_thousand_rules_touch_as_few_nodes_as_ten(monkeypatch):
    def visited(count):
        index = Index([[Pattern(f"GET /api/{number}/{{id}}")] for number in range(count)])
        seen = []
        walk = Index.walk
        monkeypatch.setattr(Index, "walk", lambda *arguments: seen.append(1) or walk(*arguments))
        assert index.find(Request("GET", "/api/7/x")) == (7,)
        monkeypatch.setattr(Index, "walk", walk)
        return len(seen)

    assert visited(1000) == visited(10)


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr("ratekeeper.rules.match.MOST_CACHED", 10)
    index = Index([[Pattern("/a/*")]])
    for number in range(100):
        assert index.find(Request(path=f"/a/{number}")) == (0,)
        assert len(index.cache) <= 10
    before = len(index.cache)
    assert index.find(Request(path="/a/" + "x" * 10_000)) == (0,)
    assert len(index.cache) == before

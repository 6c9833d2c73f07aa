"""Rules that no route can match: whether two patterns meet, against trying every path; and each sentence."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Policy
from ratekeeper.rules.match import Pattern, SegmentShape
from ratekeeper.rules.unreachable import meet, paths_meet, route, segments_meet, unreachable

shape = st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=3).map("*".join).filter(bool)
path = st.lists(st.sampled_from(["a", "b", "*", "**"]), max_size=3).filter(lambda parts: parts.count("**") < 2)
TEXTS = ["".join(letters) for length in range(1, 7) for letters in product("abc", repeat=length)]
PATHS = [parts for length in range(7) for parts in product("abc", repeat=length)]


def reference(shapes, parts):
    if "**" not in shapes:
        return len(shapes) == len(parts) and all(SegmentShape(s).matches(p) for s, p in zip(shapes, parts, strict=True))
    at = shapes.index("**")
    rests = range(len(parts) - len(shapes) + 2)
    return any(reference((*shapes[:at], *["*"] * rest, *shapes[at + 1 :]), parts) for rest in rests)


@given(shape, shape)
def test_two_segments_meet_if_some_text_matches_both(one, other):
    expected = any(SegmentShape(one).matches(text) and SegmentShape(other).matches(text) for text in TEXTS)
    assert segments_meet(one, other) is segments_meet(other, one) is expected


@given(path.map(tuple), path.map(tuple))
def test_two_paths_meet_if_some_path_matches_both(one, other):
    expected = any(reference(one, parts) and reference(other, parts) for parts in PATHS)
    assert paths_meet(one, other) is paths_meet(other, one) is expected


def test_methods_must_meet_too():
    assert meet(Pattern("POST /a"), route("/a"))
    assert meet(Pattern("GET /a"), route("/a", ["GET"]))
    assert meet(Pattern("HEAD /a"), route("/a", ["get"]))
    assert not meet(Pattern("POST /a"), route("/a", ["GET"]))


ROUTES = [
    route("/users/{id}", ["GET"]),
    route("/v1/login", ["POST"]),
    route("/files/<path:name>"),
    route("/Static/{rest:path}/x"),
    route("odd name/ü", ["GET"]),
]


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({"match": "/login"}, "rule 'r' never applies: no route of the application matches /login. A rule's path "
         "begins where the application's routes begin, below any mount: write '/v1/login'."),
        ({"match": "/api/v1/login"}, "rule 'r' never applies: no route of the application matches /api/v1/login. "
         "A rule's path begins where the application's routes begin, below any mount: write '/v1/login'."),
        ({"match": "GET /v1/login"}, "rule 'r' never applies: no route of the application matches GET /v1/login. "
         "The route takes other methods."),
        ({"match": "/v1/logni"}, "rule 'r' never applies: no route of the application matches /v1/logni. "
         "Did you mean '/v1/login'?"),
        ({"match": ["/v1/login", "PUT,GET /zzz"]}, "rule 'r' never applies: no route of the application matches "
         "GET,PUT /zzz. Correct its path, or remove it."),
    ],
)  # fmt: skip
def test_each_sentence(rule, sentence):
    policy = Policy.parse({"rules": [{"name": "r", "limit": "5/minute", **rule}]})
    assert unreachable(policy.rules, ROUTES) == [sentence]


@pytest.mark.parametrize(
    "rule",
    [
        {"match": "/users/7"},
        {"match": "/USERS/*"},
        {"match": "/files/a/b/c"},
        {"match": "/static/a/b/x"},
        {"match": "/**/login"},
        {"match": "PATCH"},
        {"match": "/zzz", "mode": "off"},
        {"match": "/zzz", "limit": None, "allow_from": []},  # it refuses what looks for weak spots
    ],
)
def test_what_gets_none(rule):
    table = {name: value for name, value in {"name": "r", "limit": "5/minute", **rule}.items() if value is not None}
    assert unreachable(Policy.parse({"rules": [table]}).rules, ROUTES) == []


def test_an_application_that_takes_every_path_gets_none():
    policy = Policy.parse({"rules": [{"name": "r", "match": "/zzz", "limit": "5/minute"}]})
    assert unreachable(policy.rules, [*ROUTES, route("/{rest:path}")]) == []

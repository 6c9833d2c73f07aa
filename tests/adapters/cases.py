"""One table of cases for every adapter: what an application behind a policy answers, step by step.

An adapter's test makes a client of a policy: a function of a Step that sends it through the framework's own test client
and returns an Answer.  The application behind it answers 200 with the body ``ok`` and the header ``x-app: yes`` on
every path and method, and streams ``one``, ``two``, ``three`` on ``/stream``.
"""

# ruff: noqa: E501 - a table reads better with its rows whole

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from ratekeeper import Policy
from ratekeeper.testing import FakeClock

HERE = "203.0.113.9"
THERE = "198.51.100.7"
ABSENT = None


@dataclass(frozen=True)
class Step:
    """One request, and what must come back; a header of ABSENT must not be there."""

    method: str = "GET"
    path: str = "/"
    peer: str = HERE
    headers: tuple[tuple[str, str], ...] = ()
    after: float = 0.0  # seconds that pass before it
    waits: float = 0.0  # seconds that it must wait for its turn
    status: int = 200
    expected: dict[str, str | None] = field(default_factory=dict)
    body: dict[str, Any] | bytes | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    headers: list[tuple[str, str]]  # names in lower case
    body: bytes


@dataclass(frozen=True)
class Case:
    name: str
    rules: dict[str, Any]
    steps: list[Step]


def rules(*listed: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {**settings, "rules": [{"name": f"rule-{number}", **rule} for number, rule in enumerate(listed)]}


CASES = [
    Case(
        "the lease of a request ends when its response is done",
        rules({"limit": "1 concurrent for 1 hour"}),
        [
            Step(expected={"ratelimit-policy": '"rule-0";q=1;qu="concurrent-requests"', "ratelimit": '"rule-0";r=0'}),
            Step(method="POST", path="/stream"),
            Step(),
        ],
    ),
    Case(
        "headers say what is left, and a refusal when to try again",
        rules({"limit": "2/minute"}),
        [
            Step(expected={"x-ratelimit-limit": "2", "x-ratelimit-remaining": "1", "x-app": "yes", "retry-after": ABSENT,
                           "ratelimit-policy": '"rule-0";q=2;w=60', "ratelimit": '"rule-0";r=1;t=30'}, body=b"ok"),
            Step(expected={"x-ratelimit-remaining": "0", "ratelimit": '"rule-0";r=0;t=30'}),
            Step(status=429, expected={"retry-after": "30", "x-ratelimit-remaining": "0", "cache-control": "no-store",
                                       "content-type": "application/json", "ratelimit": '"rule-0";r=0;t=30',
                                       "x-app": ABSENT},
                 body={"error": "rate_limited", "limit": 2, "retry_after": 30}),
            Step(after=29.999999, status=429, expected={"retry-after": "1"}),
            Step(after=0.000001, status=200),
        ],
    ),
    Case(
        "clients are apart",
        rules({"limit": "1/minute"}),
        [Step(), Step(status=429), Step(peer=THERE), Step(peer=THERE, status=429)],
    ),
    Case(
        "a header that a client wrote identifies no client",
        rules({"limit": "1/minute"}),
        [Step(headers=(("X-Forwarded-For", "192.0.2.1"),)), Step(headers=(("X-Forwarded-For", "192.0.2.2"),), status=429)],
    ),
    Case(
        "a trusted proxy speaks for its clients",
        rules({"limit": "1/minute"}, trusted_proxies=["203.0.113.0/24"], proxies_drop_underscores=True),
        [
            Step(headers=(("X-Forwarded-For", "192.0.2.1"),)),
            Step(headers=(("X-Forwarded-For", "6.6.6.6, 192.0.2.1"),), status=429),
            Step(headers=(("X-Forwarded-For", "192.0.2.2"),)),
        ],
    ),
    Case(
        "what one handler answers counts as one",
        rules({"match": "GET /items/{id}", "limit": "2/minute"}),
        [
            Step(path="/items/1"),
            Step(path="/items/2/"),
            Step(path="/items/3", status=429),
            Step(path="/ITEMS/4", status=429),
            Step(path="/items/%33", status=429),
            Step(path="/items/5?a=b", status=429),
            Step(method="HEAD", path="/items/1", status=429, body=b""),
            Step(method="POST", path="/items/1"),
            Step(path="/other"),
        ],
    ),
    Case(
        "method overrides are ignored",
        rules({"match": "POST /", "limit": "1/minute"}),
        [
            Step(method="POST"),
            Step(method="POST", headers=(("X-HTTP-Method-Override", "GET"),), status=429),
            Step(method="GET", headers=(("X-HTTP-Method-Override", "POST"),)),
        ],
    ),
    Case(
        "preflights do not count and pass an exhausted limit",
        rules({"limit": "1/minute"}),
        [
            Step(method="OPTIONS", headers=(("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT"))),
            Step(),
            Step(status=429),
            Step(method="OPTIONS", headers=(("Origin", "https://a.example"), ("Access-Control-Request-Method", "PUT"))),
            Step(method="OPTIONS", status=429),
        ],
    ),
    Case(
        "a browser may read a refusal",
        rules({"limit": "1/minute"}, response={"cors": ["https://a.example"]}),
        [
            Step(headers=(("Origin", "https://a.example"),), expected={"access-control-allow-origin": ABSENT}),
            Step(headers=(("Origin", "https://a.example"),), status=429,
                 expected={"access-control-allow-origin": "https://a.example", "vary": "Origin"}),
            Step(headers=(("Origin", "https://b.example"),), status=429, expected={"access-control-allow-origin": ABSENT}),
        ],
    ),
    Case(
        "an address outside allow_from is forbidden, and learns nothing else",
        rules({"match": "/admin/**", "allow_from": ["198.51.100.0/24"]}),
        [
            Step(path="/admin/x", status=403, expected={"retry-after": ABSENT, "x-ratelimit-limit": ABSENT},
                 body={"error": "forbidden"}),
            Step(path="/admin/x", peer=THERE),
            Step(path="/open"),
        ],
    ),
    Case(
        "all rules apply together, and a refused request is charged to none",
        rules({"limit": "5/minute"}, {"match": "/a", "limit": "1/minute"}),
        [
            Step(path="/a", expected={"x-ratelimit-limit": "1", "x-ratelimit-remaining": "0"}),
            *[Step(path="/a", status=429) for _ in range(9)],
            *[Step(path="/b") for _ in range(4)],
            Step(path="/b", status=429),
        ],
    ),
    Case(
        "warnings come before refusals, and grace between them",
        rules({"limit": "4/minute fixed_window", "warn_at": 0.75, "grace": 1}),
        [
            Step(expected={"x-ratelimit-warning": ABSENT}),
            Step(expected={"x-ratelimit-warning": ABSENT}),
            Step(expected={"x-ratelimit-warning": '"rule-0";used=75'}),
            Step(expected={"x-ratelimit-warning": '"rule-0";used=100'}),
            Step(expected={"x-ratelimit-warning": '"rule-0";grace', "x-ratelimit-remaining": "0"}),
            Step(status=429),
        ],
    ),
    Case(
        "a client that does not stop is blocked",
        rules({"limit": "1/second", "penalty": {"after": 2, "within": "1 minute", "block": "1 hour"}}),
        [
            Step(), Step(status=429), Step(status=429),
            Step(after=10, status=429, expected={"retry-after": "3590"}),
            Step(peer=THERE),
            Step(after=3590, status=200),
        ],
    ),
    Case(
        "shadow counts and refuses no request",
        rules({"limit": "1/minute", "mode": "shadow"}),
        [Step(), Step(expected={"x-ratelimit-limit": ABSENT, "retry-after": ABSENT}), Step()],
    ),
    Case(
        "a cost from a header, and nonsense in it",
        rules({"limit": "10/minute", "cost": "header:X-Cost"}),
        [
            Step(headers=(("X-Cost", "9"),), expected={"x-ratelimit-remaining": "1"}),
            Step(headers=(("X-Cost", "-9"),), status=400, body={"error": "invalid_cost"}),
            Step(headers=(("X-Cost", "nan"),), status=400),
            Step(headers=(("X-Cost", "11"),), status=429, expected={"retry-after": ABSENT}),
            Step(expected={"x-ratelimit-remaining": "0"}),
        ],
    ),
    Case(
        "a problem document",
        rules({"limit": "1/minute"}, response={"body": "problem", "headers": []}),
        [
            Step(expected={"ratelimit": ABSENT, "x-ratelimit-limit": ABSENT}),
            Step(status=429, expected={"content-type": "application/problem+json", "retry-after": "60"},
                 body={"type": "https://iana.org/assignments/http-problem-types#quota-exceeded", "status": 429,
                       "violated-policies": ["rule-0"], "retry-after": 60}),
        ],
    ),
    Case(
        "no body, no headers, still a refusal",
        rules({"limit": "1/minute"}, response={"body": "none", "headers": []}),
        [Step(), Step(status=429, expected={"retry-after": "60"}, body=b""), Step(method="HEAD", status=429, body=b"")],
    ),
    Case(
        "a custom message",
        rules({"limit": "1/minute", "message": "Slow down: {limit} a minute, back in {retry_after} s."}),
        [Step(), Step(status=429, body={"message": "Slow down: 1 a minute, back in 60 s."})],
    ),
    Case(
        "a stream passes untouched",
        rules({"limit": "1/minute"}),
        [Step(path="/stream", expected={"x-ratelimit-remaining": "0"}, body=b"onetwothree"), Step(path="/stream", status=429)],
    ),
    Case(
        "users are counted from any address, and anonymous clients by address",
        rules({"by": "user", "limit": "1/minute"}, identity={"user": "header:X-Api-Key"}),
        [
            Step(headers=(("X-Api-Key", "ann"),)),
            Step(headers=(("X-Api-Key", "ann"),), peer=THERE, status=429),
            Step(headers=(("X-Api-Key", "bob"),)),
            Step(),
            Step(status=429),
        ],
    ),
    Case(
        "an exempt client is not counted",
        rules({"limit": "1/minute"}, exempt=["198.51.100.0/24"]),
        [Step(), Step(status=429), *[Step(peer=THERE, expected={"x-ratelimit-limit": ABSENT}) for _ in range(3)]],
    ),
    Case(
        "the route is a template, never the path",
        rules({"match": "/items/{id}", "by": ["route", "ip"], "limit": "1/minute"}),
        [Step(path="/items/1"), Step(path="/items/2", status=429)],
    ),
    Case(
        "a leaky bucket delays instead of refusing",
        rules({"limit": "2/second burst 3 leaky_bucket", "max_delay": "1 second"}),
        [Step(), Step(waits=0.5), Step(waits=0.5, body=b"ok"), Step(after=10), Step(waits=0.5)],
    ),
    Case(
        "a store that cannot decide is a 503 where a rule says deny, and nothing elsewhere",
        rules({"match": "/login", "limit": "1/minute", "on_store_error": "deny"},
              {"match": "/news", "limit": "1/minute", "on_store_error": "allow"}, store="redis://127.0.0.1:1/0"),
        [
            Step(path="/login", status=503, body={"error": "unavailable"},
                 expected={"retry-after": "1", "x-ratelimit-limit": ABSENT, "cache-control": "no-store", "x-app": ABSENT}),
            Step(path="/news", expected={"x-app": "yes"}),
            Step(path="/news"),
        ],
    ),
]  # fmt: skip


def policy_of(case: Case, **more: Any) -> tuple[Policy, FakeClock]:
    clock = FakeClock(1_000_000.0)
    return Policy.parse(case.rules, clock=clock, **more), clock


def run(case: Case, make_client: Any) -> None:
    """Send each step through ``make_client(policy)`` and compare."""
    policy, clock = policy_of(case)
    client = make_client(policy)
    for number, step in enumerate(case.steps):
        clock.advance(step.after)
        before = clock.now
        answer = client(step)
        compare(f"{case.name}: step {number}", step, answer)
        assert clock.now == before + step.waits, (case.name, number)
    policy.close()


def compare(where: str, step: Step, answer: Answer) -> None:
    assert answer.status == step.status, (where, answer)
    for name, expected in step.expected.items():
        values = [value for header, value in answer.headers if header == name]
        assert values == ([] if expected is ABSENT else [expected]), (where, name, values)
    if isinstance(step.body, bytes):
        assert answer.body == step.body, where
    elif step.body is not None:
        body = json.loads(answer.body)
        assert {name: body.get(name) for name in step.body} == step.body, (where, body)

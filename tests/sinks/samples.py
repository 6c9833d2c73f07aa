"""One policy and its requests, for every sink."""

from ratekeeper import Policy, Request
from ratekeeper.testing import FakeClock

HERE = "203.0.113.9"
RULES = {
    "rules": [
        {"name": "per-ip", "limit": "3/minute fixed_window"},
        {"name": "search", "match": "GET /search/{id}", "limit": "2/minute sliding_log", "grace": 1},
        {"name": "dark", "limit": "1/minute", "mode": "shadow"},
        {"name": "admin", "match": "/admin", "allow_from": []},
    ]
}


def policy(sink, **more):
    return Policy.parse({**RULES, **more}, clock=FakeClock(1_000_020.0), sinks=[sink])


def visit(own, *paths, peer=HERE, **more):
    return [own.check(Request("GET", path, peer, **more)) for path in paths]

"""A policy on a clock that tests move, and requests to it."""

from ratekeeper import Policy, Request
from ratekeeper.testing import FakeClock

HERE, THERE = "203.0.113.9", "198.51.100.7"


def make(*rules, clock=None, **more):
    clock = clock or FakeClock(1_000_000.0)
    sinks = more.pop("sinks", ())
    store = more.pop("given_store", None)
    found = {**more, "rules": [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]}
    return Policy.parse(found, clock=clock, sinks=sinks, store=store), clock


def ask(policy, path="/", peer=HERE, method="GET", **more):
    return policy.check(Request(method, path, peer, **more))


def count(policy, times, **more):
    return sum(ask(policy, **more).allowed for _ in range(times))

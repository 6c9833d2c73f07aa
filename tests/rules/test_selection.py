"""The short cuts of a policy decide as the steps of ``decide.py`` do, over random requests, rules and gaps."""

import random

import pytest

from ratekeeper import Request
from ratekeeper.rules.selection import AddressSelection, GeneralSelection, GuardedSelection, PreparedSelection
from tests import tier
from tests.rules.deciding import HERE, THERE, make

PENALTY = {"after": 3, "within": "1 minute", "block": "5 seconds"}
COST = {"from": "header:X-Cost", "most": 4}
TIERS = {"trusted_proxies": ["10.0.0.0/8"], "tiers": {"from": "header:X-Tier", "default": "free"}}
CASES = {
    "exempt": [{"limit": "5/second", "exempt": ["10.0.0.0/8", "2001:db8::/32"]}],
    "exempt tier": [{"limit": {"free": "3/second", "paid": "9/second"}, "exempt": ["tier:staff"]}],
    "penalty": [{"limit": "4/second", "penalty": PENALTY}],
    "queue": [{"limit": "5/second leaky_bucket", "max_delay": "300 ms"}],
    "cost": [{"limit": "9/second", "cost": COST}],
    "grace": [{"limit": "3/second", "grace": 2}],
    "tiers": [{"limit": {"free": "3/second", "paid": "9/second", "staff": "unlimited"}}],
    "shadow": [{"limit": "5/second"}, {"limit": "2/second", "mode": "shadow"}],
    "all of it": [
        {"limit": "6/second leaky_bucket", "max_delay": "500 ms", "penalty": PENALTY},
        {"limit": {"free": "3/second", "paid": "9/second"}, "exempt": ["10.0.0.3"], "grace": 1},
        {"by": "all", "limit": "20/second", "mode": "shadow", "exempt": ["tier:paid"]},
    ],
}


def shown(verdict):
    """Whatever anyone can see of a verdict."""
    notes = verdict.notes
    pairs = zip(verdict.names, verdict.decisions, strict=True)
    return (
        (verdict.reason, verdict.status, verdict.retry_after, verdict.delay, verdict.rule, verdict.remaining),
        [(name, decision.allowed, decision.remaining, decision.at) for name, decision in pairs],
        (notes.graced, notes.shadow, [(entry.counter.name, d.allowed, d.remaining) for entry, d in notes.unenforced]),
        ([field for field in verdict.headers if field[0] != b"x-ratelimit-reset"], verdict.wait),
    )  # fmt: skip


def a_request(chance):
    headers = [("X-Tier", chance.choice(["free", "paid", "staff"])), ("X-Forwarded-For", chance.choice([HERE, THERE]))]
    cost = chance.choice([None, "1", "3", "7", "0", "-1", "x"])
    headers += [("X-Cost", cost)] if cost is not None else []
    return Request("GET", "/", chance.choice(["10.0.0.1", "10.0.0.3", HERE, THERE, "2001:db8::1"]), headers)


@pytest.mark.parametrize("case", CASES)
def test_a_guarded_selection_decides_as_the_steps_do(case):
    chance = random.Random(case)
    for _ in range(tier.steps(20, 4)):
        (quick, quick_clock), (slow, slow_clock) = make(*CASES[case], **TIERS), make(*CASES[case], **TIERS)
        general = GeneralSelection(slow.compiled, slow.compiled.selection(Request()).counters)
        for step in range(150):
            request, gap = a_request(chance), chance.choice([0, 0, 0, 0.01, 0.2, 1.5])
            selection = quick.compiled.selection(request)
            assert type(selection) is GuardedSelection
            quick_clock.advance(gap), slow_clock.advance(gap)
            one, other = quick.check(request), general.check(request)
            assert shown(one) == shown(other), step
            if chance.random() < 0.2:  # what was taken is found again
                quick.give_back(one), slow.give_back(other)


def kind(*rules, **more):
    return type(make(*rules, **more)[0].compiled.selection(Request()))


def test_each_rule_has_the_quickest_way():
    assert kind({"limit": "1/second"}) is AddressSelection
    assert kind({"limit": "1/second"}, {"limit": "9/minute"}) is PreparedSelection
    for rules in CASES.values():
        assert kind(*rules, **TIERS) is GuardedSelection
    for rule in (
        {"limit": "1/second", "allow_from": ["10.0.0.0/8"]},
        {"limit": "1/second", "enforce_percent": 50},
        {"limit": "0/second"},
        {"limit": "5 concurrent"},
        {"limit": "1/second", "count_when": "status >= 400"},
        {"limit": "1/second", "cost": lambda request: 2},
        {"limit": "1/second", "by": lambda request: "x"},
    ):
        assert kind(rule) is GeneralSelection, rule
    assert kind({"limit": "1/second", "cost": COST}, {"limit": "9/minute"}) is GeneralSelection

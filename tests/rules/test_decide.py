"""The order of deciding: shadow, percentage, grace, penalties, exemptions, costs and scopes."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import MemoryStore, Request
from ratekeeper.testing import FakeClock
from tests import tier
from tests.rules.deciding import HERE, THERE, ask, count, make


def test_off_does_nothing():
    policy, _ = make({"limit": "1/minute", "mode": "off"}, {"limit": "2/minute"})
    assert count(policy, 5) == 2


def test_shadow_never_changes_an_answer():
    plain, clock = make({"limit": "3/minute"}, {"match": "/a", "limit": "2/minute"})
    shadowed, _ = make(
        {"limit": "3/minute"},
        {"match": "/a", "limit": "2/minute"},
        {"limit": "1/hour", "mode": "shadow"},
        {"limit": "1/hour", "mode": "shadow", "penalty": {"after": 1, "within": "1 hour", "block": "1 day"}},
        {"allow_from": [], "mode": "shadow"},
        clock=clock,
    )
    rng = random.Random(1)
    for _ in range(200):
        clock.advance(rng.random() * 20)
        path = rng.choice("ab")
        one, two = ask(plain, "/" + path), ask(shadowed, "/" + path)
        assert (one.allowed, one.names, one.remaining, one.retry_after) == (
            two.allowed,
            two.names,
            two.remaining,
            two.retry_after,
        )
        assert one.headers == two.headers


def test_shadow_says_what_it_would_have_done():
    policy, clock = make({"limit": "2/minute", "mode": "shadow"})
    assert [ask(policy).notes.shadow for _ in range(4)] == [(), (), ("r0",), ("r0",)]
    clock.advance(30)
    assert [ask(policy).notes.shadow for _ in range(2)] == [(), ("r0",)]


def test_shadow_counts_only_what_was_admitted():
    policy, _ = make({"limit": "1/minute"}, {"limit": "2/minute", "mode": "shadow"})
    assert count(policy, 10) == 1
    assert policy.explain(Request(peer=HERE)).steps[1].text.startswith("2/minute, by ip, cost 1: 1 of 2 left")


@given(st.integers(0, 100))
@settings(max_examples=tier.examples(20), deadline=None)
def test_a_percentage_of_subjects_is_enforced_and_always_the_same(percent):
    policy, _ = make({"limit": "1/minute", "enforce_percent": percent})
    peers = [f"192.0.2.{number}" for number in range(200)]
    for peer in peers:
        ask(policy, peer=peer)
    first = [ask(policy, peer=peer).allowed for peer in peers]
    assert [ask(policy, peer=peer).allowed for peer in peers] == first
    refused = first.count(False)
    assert abs(refused - 2 * percent) < 40
    if percent in (0, 100):
        assert refused == 2 * percent


def test_grace_is_used_up_by_the_period_and_takes_from_the_other_rules():
    policy, clock = make({"limit": "2/minute fixed_window", "grace": 2}, {"limit": "10/hour"})
    answers = [ask(policy) for _ in range(6)]
    assert [verdict.allowed for verdict in answers] == [True, True, True, True, False, False]
    assert [verdict.notes.graced for verdict in answers] == [(), (), ("r0",), ("r0",), (), ()]
    assert answers[-1].decisions[1].remaining == 6  # two admitted, two graced, two refused for nothing
    clock.advance(60)
    assert count(policy, 6) == 4


def test_grace_does_not_help_against_a_rule_without_it():
    policy, _ = make({"limit": "2/minute", "grace": 5}, {"limit": "3/minute"})
    assert count(policy, 10) == 3
    assert make({"limit": "2/minute", "grace": 1}, {"limit": "2/minute"})[0].rules[0].grace == 1


def test_penalty_blocks_the_subject_and_nobody_else_and_ends():
    policy, clock = make({"limit": "2/second", "penalty": {"after": 3, "within": "1 minute", "block": "1 hour"}})
    assert count(policy, 2) == 2
    assert [ask(policy).reason for _ in range(4)] == ["limit", "limit", "limit", "blocked"]
    clock.advance(1800)
    verdict = ask(policy)
    assert (verdict.reason, verdict.status, verdict.retry_after, verdict.rule) == ("blocked", 429, 1800.0, "r0")
    assert ask(policy, peer=THERE).allowed
    clock.advance(1799.999999)
    assert not ask(policy).allowed
    clock.advance(0.000001)
    assert ask(policy).allowed


def test_slow_violations_are_forgiven():
    policy, clock = make({"limit": "1/second", "penalty": {"after": 3, "within": "10 seconds", "block": "1 hour"}})
    for _ in range(20):
        assert ask(policy).allowed
        assert ask(policy).reason == "limit"
        clock.advance(6)


def test_allow_from():
    policy, _ = make({"match": "/admin/**", "allow_from": ["10.0.0.0/8", "2001:db8::/32"]}, {"limit": "1/minute"})
    assert ask(policy, "/admin").status == 403
    assert ask(policy, "/admin", peer=None).status == 403
    assert ask(policy, "/admin", peer="2002:a00:1::1").status == 403
    assert ask(policy, "/admin", peer="::ffff:10.0.0.1").allowed
    assert ask(policy, "/admin", peer="2001:db8::1").allowed
    assert ask(policy).allowed  # a refusal by address took nothing


def test_exempt():
    policy, _ = make(
        {"limit": "1/minute", "exempt": ["192.0.2.0/24", "tier:staff", "user:root"]},
        {"limit": "2/minute"},
        exempt=["198.51.100.0/24"],
        identity={"user": "app:user"},
        tiers={"from": "app:tier", "default": "none"},
    )
    assert count(policy, 5) == 1
    assert count(policy, 5, peer="192.0.2.1") == 2
    assert count(policy, 5, peer="198.51.100.1") == 5
    assert count(policy, 5, peer="203.0.113.1", facts={"tier": "staff"}) == 2
    assert count(policy, 5, peer="203.0.113.2", facts={"user": "root"}) == 2
    assert count(policy, 5, peer="203.0.113.3", headers={"X-User": "root"}) == 1


def test_costs():
    seen = []
    policy, _ = make(
        {"match": "/constant", "limit": "10/minute", "cost": 4},
        {"match": "/body", "limit": "10/minute", "cost": {"from": "body", "per": 1000, "most": 6}},
        {"match": "/function", "limit": "10/minute", "cost": lambda request: seen.append(request) or 7},
        {"match": "/header", "limit": "10/minute", "cost": {"from": "header:X-Cost", "missing": 3}},
    )

    def left(path, **more):
        return ask(policy, path, **more).remaining

    assert [left("/constant"), left("/constant"), ask(policy, "/constant").allowed] == [6, 2, False]
    assert [left("/body", headers={"Content-Length": "1001"}), left("/body", size=10**9), left("/body", size=0)] == [
        8,
        2,
        1,
    ]
    assert ask(policy, "/body", headers={"Transfer-Encoding": "chunked"}).allowed is False  # unknown counts as the most
    assert left("/function") == 3
    assert len(seen) == 1
    assert [left("/header"), left("/header", headers={"X-Cost": "5"})] == [7, 2]


def test_scopes_are_counted_apart_and_hold_together():
    """A fleet's rule in the given store and an instance's rule in the process: all or nothing over both."""

    class Elsewhere(MemoryStore):
        blocking = True

    clock = FakeClock(100.0)
    policy, _ = make(
        {"limit": "5/minute", "scope": "instance"},
        {"match": "/a", "limit": "2/minute"},
        given_store=Elsewhere(clock=clock),
        clock=clock,
    )
    assert policy.instance is not policy.store
    assert count(policy, 10, path="/a") == 2
    assert count(policy, 10, path="/b") == 3  # the eight refusals of the fleet gave back what the instance had taken
    assert asyncio.run(policy.acheck(Request(peer=HERE, path="/a"))).allowed is False


def test_what_functions_said_is_given_back_without_asking_them_again():
    """A function that answers differently the second time made another key get back another cost."""
    turns = iter(range(1, 100))
    keys = iter("abcdef")
    policy, _ = make(
        {"limit": "10/minute", "by": lambda request: next(keys), "cost": lambda request: next(turns)},
        {"limit": "10/minute", "by": lambda request: next(keys)},
    )
    verdict = policy.check(Request(peer=HERE))
    assert (next(turns), next(keys)) == (2, "c")
    assert [decision.remaining for decision in verdict.decisions] == [9, 9]
    policy.give_back(verdict)
    assert (next(turns), next(keys)) == (3, "d")
    states = [policy.store.peek((check,))[0].remaining for _, check in verdict.notes.taken]
    assert states == [10, 10]


def test_a_request_that_counts_several_times_gives_all_of_it_back():
    policy, _ = make({"limit": "10/minute"})
    verdict = policy.selection_for_hits(Request(peer=HERE), 4).check(Request(peer=HERE))
    assert verdict.remaining == 6
    policy.give_back(verdict)
    assert policy.check(Request(peer=HERE)).remaining == 9

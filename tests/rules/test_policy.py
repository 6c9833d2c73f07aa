"""Policies: all rules at once, modes, penalties, grace, scopes, reload and live changes, on a clock that tests move."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import InvalidInput, InvalidRules, MemoryStore, Policy, Request, Verdict
from ratekeeper.testing import FakeClock
from tests import tier
from tests.rules.deciding import HERE, THERE, ask, count, make


def test_the_answer_is_a_verdict():
    policy, _ = make({"limit": "2/minute"}, {"limit": ["5/minute", "7/hour"]})
    verdict = ask(policy)
    assert isinstance(verdict, Verdict)
    assert verdict
    assert (verdict.allowed, verdict.status, verdict.reason, verdict.body) == (True, 200, "", b"")
    assert (verdict.names, verdict.rule) == (("r0", "r1", "r1"), "r0")
    assert [decision.limit for decision in verdict.decisions] == [2, 5, 7]
    assert (verdict.remaining, verdict.retry_after, verdict.delay) == (1, 0.0, 0.0)
    ask(policy)
    refused = ask(policy)
    assert (bool(refused), refused.status, refused.reason, refused.rule) == (False, 429, "limit", "r0")
    assert refused.retry_after == 30.0


def test_sync_and_async_are_one_policy():
    policy, _ = make({"limit": "2/minute", "grace": 1}, {"limit": "9/hour"})
    answers = [ask(policy).allowed, asyncio.run(policy.acheck(Request(peer=HERE))).allowed, ask(policy).allowed]
    assert answers == [True, True, True]
    assert not asyncio.run(policy.acheck(Request(peer=HERE))).allowed


def test_no_rule_no_limit():
    policy, _ = make({"match": "/a", "limit": "1/minute"})
    assert count(policy, 5, path="/b") == 5
    assert ask(policy, path="/b").headers == []


def test_a_refused_caller_that_waits_is_admitted_and_not_a_microsecond_earlier():
    policy, clock = make(
        {"limit": "3/second"}, {"limit": "7/minute sliding_window"}, {"limit": "5 per 7 seconds sliding_log"}
    )
    rng = random.Random(5)
    refusals = 0
    for _ in range(300):
        clock.advance(rng.choice([0, 0.1, 0.333333, 1.7, 5]))
        verdict = ask(policy)
        if not verdict.allowed:
            refusals += 1
            micros = round(verdict.retry_after * 1_000_000)
            clock.advance((micros - 1) / 1_000_000)
            assert not ask(policy).allowed
            clock.advance(0.000001)
            assert ask(policy).allowed
    assert refusals > 50


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


def test_several_messages_of_one_socket():
    policy, _ = make({"counts": "messages", "match": "/chat", "limit": "2/minute"}, {"limit": "1/minute"})
    request = Request("GET", "/chat", HERE)
    assert [policy.check_message(request).allowed for _ in range(3)] == [True, True, False]
    assert policy.check_message(Request("GET", "/other", HERE)).allowed
    assert ask(policy, "/chat").allowed


def test_a_body_of_ones_own():
    def page(verdict):
        return "text/html", f"<h1>{verdict.wait}</h1>".encode()

    rule = {"name": "r", "limit": "1/minute"}
    for body, functions in ((page, None), ("function:page", {"page": page})):
        policy = Policy.parse({"response": {"body": body}, "rules": [rule]}, functions=functions, clock=FakeClock(1.0))
        assert ask(policy).body == b""
        refused = ask(policy)
        assert refused.body == b"<h1>60</h1>"
        assert (b"content-type", b"text/html") in refused.headers
    with pytest.raises(InvalidRules, match=r"response.body: expected one of json, problem, text, none, function:NAME"):
        Policy.parse({"response": {"body": "jsno"}, "rules": [rule]})


def test_threads_get_exactly_what_there_is():
    from threading import Thread

    policy = Policy.parse(
        {"rules": [{"name": "a", "limit": "1000/day"}, {"name": "b", "by": "all", "limit": "700/day"}]}
    )
    admitted = []

    def run():
        admitted.append(sum(policy.check(Request(peer=HERE)).allowed for _ in range(500)))

    threads = [Thread(target=run) for _ in range(14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(admitted) == 700
    assert policy.explain(Request(peer=HERE)).steps[0].text.startswith("1000/day, by ip, cost 1: 300 of 1000 left")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"watch": "often"}, "watch: expected seconds above 0, got 'often'."),
        ({"watch": 0}, "watch: expected seconds above 0, got 0."),
        ({"store": 5}, "store: expected a URL such as 'redis://localhost:6379/0' or a store, got 5."),
        ({"sinks": [5]}, "sinks: expected functions of an event, got 5."),
        ({"functions": {"who": 5}}, "functions: expected a dictionary of functions by their names, got {'who': 5}."),
        (
            {"functions": [len]},
            "functions: expected a dictionary of functions by their names, got [<built-in function len>].",
        ),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    path = tmp_path / "rules.json"
    path.write_text('{"rules": [{"name": "r", "limit": "1/minute"}]}')
    with pytest.raises(InvalidInput) as caught:
        Policy.load(path, **options)
    assert str(caught.value) == message


def changed(policy, limit):
    from ratekeeper.rules import parse as config

    policy.replace(config.parse({"rules": [{"name": "r0", "limit": limit}]}))


LIMITS = [
    "5/minute", "20/minute", "1/minute", "7 per 13 seconds", "100/hour", "5/minute burst 2", "10/second token_bucket",
    "5/minute sliding_log", "9/hour sliding_log", "5/minute fixed_window", "7/hour fixed_window",
    "5/minute sliding_window",
    "8/minute sliding_window slices 4", "3/second leaky_bucket", "unlimited",
]  # fmt: skip

change = st.tuples(st.sampled_from(LIMITS), st.integers(0, 12), st.sampled_from([0, 0.1, 1, 20, 100]))


@given(st.lists(change, max_size=12))
@settings(max_examples=tier.examples(150), deadline=None)
def test_a_limit_that_changes_never_fails_and_never_locks_out_for_longer_than_itself(steps):
    policy, clock = make({"limit": "5/minute"})
    for limit, calls, pause in steps:
        changed(policy, limit)
        for _ in range(calls):
            ask(policy)
        verdict = ask(policy)
        if not verdict.allowed:
            (own,) = policy.rules[0].limits.values()
            longest = -(-own.full // own.drain) if own.layout.startswith("bucket") else 2 * own.micros
            assert 0 < verdict.retry_after * 1_000_000 <= longest
            clock.advance(verdict.retry_after)
            assert ask(policy).allowed
        clock.advance(pause)


@pytest.mark.parametrize(
    ("algorithm", "raised", "lowered"),
    [("sliding_log", 3, 0), ("fixed_window", 3, 0), ("sliding_window", 3, 0), ("gcra", 8, 2), ("token_bucket", 8, 2)],
)
def test_a_changed_limit_holds_at_once(algorithm, raised, lowered):
    """Windows go on counting; a bucket of another rate has other ticks, and starts full."""
    policy, _ = make({"limit": f"5/minute {algorithm}"})
    assert count(policy, 9) == 5
    changed(policy, f"8/minute {algorithm}")
    assert count(policy, 9) == raised
    changed(policy, f"2/minute {algorithm}")
    assert count(policy, 9) == lowered


def test_a_store_that_changes_is_opened_and_the_given_one_stays():
    policy, _ = make({"limit": "1/minute"})
    first = policy.store
    from ratekeeper.rules import parse as config

    policy.replace(config.parse({"store": "memory://?max_keys=5", "rules": [{"name": "r0", "limit": "1/minute"}]}))
    assert policy.store is not first
    assert policy.store.max_keys == 5
    own = MemoryStore()
    policy = Policy.parse({"rules": [{"name": "r", "limit": "1/minute"}]}, store=own)
    policy.replace(config.parse({"store": "memory://?max_keys=5", "rules": [{"name": "r", "limit": "1/minute"}]}))
    assert policy.store is own
    policy.close()


def test_a_dictionary_is_expected():
    with pytest.raises(InvalidRules, match=r"^rules: expected a dictionary, got 'rules.toml'. To read a file"):
        Policy.parse("rules.toml")
    assert repr(make({"limit": "1/minute"})[0]) == "Policy(1 rules)"

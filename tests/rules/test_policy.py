"""Policies: all rules at once, modes, penalties, grace, scopes, reload and live changes, on a clock that tests move."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratekeeper import InvalidInput, InvalidRules, MemoryStore, Policy, Request, Verdict
from ratekeeper.testing import FakeClock
from tests import tier
from tests.rules.deciding import HERE, ask, count, make


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
    with pytest.raises(InvalidRules, match=r"response.body: expected one of json, problem, text, none, json-camel, "):
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
    [("sliding_log", 3, 0), ("fixed_window", 3, 0), ("sliding_window", 3, 0), ("gcra", 0, 0), ("token_bucket", 0, 0)],
)
def test_a_changed_limit_holds_at_once(algorithm, raised, lowered):
    """Windows go on counting what was used, buckets which share of them was used."""
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

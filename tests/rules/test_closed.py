"""Limits of 0: nobody passes, without a store being asked."""

import pytest

from ratekeeper import InvalidLimit
from ratekeeper.rules.closed import parse_rule_limits
from tests.rules.deciding import HERE, THERE, ask, count, make


@pytest.mark.parametrize(
    "limit", ["0/minute", " 0 per day", ["0/hour", "5/minute"], "0/second burst 5", "0/m sliding_log"]
)
def test_a_limit_of_0_admits_nobody_and_says_so(limit):
    policy, clock = make({"limit": limit}, {"limit": "5/hour"})
    verdict = ask(policy)
    assert (verdict.allowed, verdict.status, verdict.retry_after, verdict.rule) == (False, 429, None, "r0")
    assert verdict.message == "Too many requests: the limit is 0."
    headers = dict(verdict.headers)
    assert (headers[b"x-ratelimit-limit"], headers[b"x-ratelimit-remaining"]) == (b"0", b"0")
    assert b"retry-after" not in headers
    clock.advance(100_000)
    assert count(policy, 5) == 0
    assert policy.explain(verdict.request).steps[1].text.endswith("5 of 5 left")  # a refusal costs nothing


def test_a_limit_of_0_is_for_a_tier_too():
    tiers = {"tiers": {"from": "app:plan", "default": "free"}}
    policy, _ = make({"limit": {"free": "0/day", "paid": "2/day"}}, **tiers)
    assert count(policy, 3) == 0
    assert count(policy, 3, facts={"plan": "paid"}) == 2


def test_a_limit_of_0_in_shadow_refuses_nobody():
    policy, _ = make({"limit": "0/day", "mode": "shadow"})
    verdict = ask(policy)
    assert verdict.allowed
    assert verdict.notes.shadow == ("r0",)
    assert verdict.limited


def test_a_limit_of_0_counts_towards_its_penalty():
    policy, _ = make({"limit": "0/day", "penalty": {"after": 2, "within": "1 minute", "block": "1 hour"}})
    assert [ask(policy, peer=peer).reason for peer in (HERE, HERE, HERE, THERE)] == ["limit"] * 4


def test_explain_and_advice_say_that_nobody_passes():
    policy, _ = make({"limit": "0/minute"})
    assert policy.explain(ask(policy).request).steps[0].text == "0/minute: refuses everybody"


def test_the_rest_of_the_text_must_be_a_limit():
    with pytest.raises(InvalidLimit, match="expected a unit of time"):
        parse_rule_limits("0/moment", None)

"""Advice on rules that are allowed and probably unwise: each sentence, and what gets none."""

import pytest

from ratekeeper import Policy
from ratekeeper.rules.lint import advise


def advice(*rules, **settings):
    named = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    policy = Policy.parse({**settings, "rules": named})
    return advise(policy.rules, policy.compiled.identity)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([{"match": "POST /Login", "limit": "5/minute fixed_window"}],
         "rule 'r0' guards /Login with a fixed window, which can admit twice its count around the end of a window. "
         "Use gcra or sliding_log."),
        ([{"match": "/api/password", "limit": "5/minute", "on_store_error": "allow"}],
         "rule 'r0' guards /api/password and fails open while the store is down. "
         "Use on_store_error = 'deny' or 'local'."),
        ([{"limit": "60/minute burst 1"}],
         "rule 'r0' has a burst of 1: two requests at once are refused although 60/minute burst 1 allows more. "
         "Raise the burst."),
        ([{"limit": "1/minute burst 101"}],
         "rule 'r0' has a burst of 101, more than 100 periods' worth of 1/minute burst 101. Is that meant?"),
        ([{"by": "all", "limit": ["5/second", "9/minute"]}],
         "rule 'r0' counts all callers together and admits only 9/minute: one caller can lock all others out. "
         "Count by ip too."),
        ([{"limit": "5/minute", "enforce_percent": 0}],
         "rule 'r0' is enforced for 0 % of its subjects. Write mode = 'shadow' if that is meant."),
        ([{"match": "/admin/**", "allow_from": []}, {"match": "GET /admin/users", "limit": "5/minute"}],
         "rule 'r1' never decides anything: 'r0' refuses every request before it."),
        ([{"limit": "5/minute"}, {"limit": ["10/minute", "600/hour"]}],
         "rule 'r1' never refuses a request: 'r0' counts the same and is stricter."),
        ([{"limit": "5/minute"}, {"match": "/search", "limit": "50/minute"}],
         "rule 'r1' never refuses a request: 'r0' counts the same requests and more and is stricter."),
        ([{"match": "/search", "by": ["ip", "route"], "limit": "50/minute"}, {"limit": ["5/minute", "9/hour"]}],
         "rule 'r0' never refuses a request: 'r1' counts the same requests and more and is stricter."),
    ],
)  # fmt: skip
def test_each_sentence(rules, expected):
    assert advice(*rules) == [expected]


@pytest.mark.parametrize(
    "rules",
    [
        [{"match": "POST /login", "limit": "5/minute"}],
        [{"match": "/pictures", "limit": "5/minute fixed_window", "on_store_error": "allow"}],
        [{"match": "/login", "limit": "5/minute", "mode": "shadow", "on_store_error": "allow"}],
        [{"limit": "1/minute burst 1"}],
        [{"limit": "1/minute burst 100"}],
        [{"by": "all", "limit": "10/second"}],
        [{"by": "all", "limit": "9/minute", "mode": "shadow"}],
        [{"by": "all", "match": "POST /", "limit": "9/minute"}],
        [{"limit": "5/minute"}, {"limit": "100/hour"}],
        [{"limit": "5/minute"}, {"limit": "10/minute fixed_window"}],
        [{"limit": "5/minute", "match": "/x"}, {"limit": "10/minute"}],
        [{"limit": "5/minute"}, {"limit": "10/second", "match": "/x", "by": "route"}],
        [{"limit": "5/minute", "by": ["ip", "route"]}, {"limit": "10/minute", "match": "/x"}],
        [{"limit": "5/minute", "mode": "shadow"}, {"limit": "10/minute", "match": "/x"}],
        [{"limit": "5/minute", "enforce_percent": 50}, {"limit": "10/minute", "match": "/x"}],
        [{"limit": "5/minute", "exempt": ["10.0.0.0/8"]}, {"limit": "10/minute", "match": "/x"}],
        [{"limit": "5/minute"}, {"limit": "10/minute", "match": "/x", "cost": 3}],
        [{"limit": "5/minute"}, {"limit": "3/minute burst 10", "match": "/x"}],
        [{"limit": "5/minute", "scope": "instance"}, {"limit": "10/minute", "match": "/x"}],
        [{"limit": "5/minute"}, {"limit": "10/minute", "mode": "off"}],
        [{"limit": "5/minute"}, {"limit": "10/minute", "by": "all", "match": "POST /"}],
        [{"match": "/admin/**", "allow_from": ["10.0.0.0/8"]}, {"match": "/admin/users", "limit": "5/minute"}],
        [{"match": "POST /admin/**", "allow_from": []}, {"match": "/admin/users", "limit": "5/minute"}],
        [{"match": "/admin/**", "host": "a.example", "allow_from": []}, {"match": "/admin/users", "limit": "5/minute"}],
    ],
)
def test_what_gets_none(rules):
    assert advice(*rules) == []


def test_keys_that_anybody_can_make_up():
    """Attacks 10 and 11: an unlisted API key is believed, so a rule by it alone holds only the honest."""
    rules = [{"by": "user", "limit": "5/minute"}, {"limit": "60/minute"}]
    (found,) = advice(*rules, identity={"user": "header:X-Api-Key"})
    assert found == (
        "rule 'r0' counts by 'header:X-Api-Key' and accepts any value: a client that sends a new one each time is "
        "limited by the rules by ip only. List the keys you issued in [identity.api_keys]."
    )


def test_a_limit_of_0_is_pointed_out():
    policy = Policy.parse({"rules": [{"name": "a", "limit": "0/minute"}]})
    assert advise(policy.rules, policy.compiled.identity) == [
        "rule 'a' refuses every request, as its limit is 0. To switch the rule off, write mode = 'off'."
    ]

"""A verdict as status, body and header fields."""

import json

import pytest

from ratekeeper import Policy, Request
from ratekeeper.testing import FakeClock

PEER = "203.0.113.9"


def verdict(rule, times=1, response=None, **facts):
    rules = {"rules": [{"name": "login", **rule}], **({"response": response} if response else {})}
    policy = Policy.parse(rules, clock=FakeClock(1_000_000.0))
    for _ in range(times):
        found = policy.check(Request(peer=PEER, **facts))
    return found


@pytest.mark.parametrize(
    ("rule", "times", "status", "reason"),
    [
        ({"limit": "2/minute"}, 2, 200, ""),
        ({"limit": "2/minute"}, 3, 429, "limit"),
        ({"limit": "1/minute", "penalty": {"after": 1, "within": "1 minute", "block": "1 hour"}}, 3, 429, "blocked"),
        ({"allow_from": ["10.0.0.0/8"]}, 1, 403, "forbidden"),
        ({"limit": "2/minute", "cost": "header:X-Cost"}, 1, 400, "cost"),
    ],
)
def test_the_status_says_why(rule, times, status, reason):
    found = verdict(rule, times, headers={"X-Cost": "many"})
    assert (found.status, found.reason, found.allowed, found.rule) == (status, reason, not reason, "login")
    if status != 200:
        assert json.loads(found.body)["error"] in ("rate_limited", "forbidden", "invalid_cost")


@pytest.mark.parametrize(
    ("body", "media", "text"),
    [
        ("json", b"application/json", '"error"'),
        ("problem", b"application/problem+json", "quota-exceeded"),
        ("text", b"text/plain; charset=utf-8", "Too many requests"),
    ],
)
def test_a_refusal_has_the_body_that_was_chosen(body, media, text):
    found = verdict({"limit": "1/minute"}, 2, {"body": body})
    assert text in found.body.decode()
    assert dict(found.headers)[b"content-type"] == media


def test_a_message_of_a_rule_is_filled_in():
    found = verdict({"limit": "1/minute", "message": "{rule}: {limit}, wait {retry_after}"}, 2)
    assert json.loads(found.body)["message"] == "login: 1, wait 60"


def test_a_refusal_that_time_ends_says_when():
    found = verdict({"limit": "1/minute"}, 2)
    assert found.retry_after == 60.0
    assert dict(found.headers)[b"retry-after"] == b"60"
    assert b"retry-after" not in dict(verdict({"allow_from": []}).headers)


@pytest.mark.parametrize("dialects", [["x-ratelimit", "draft-11"], ["draft-7"], ["x-ratelimit-delta", "draft-3"]])
@pytest.mark.parametrize("limit", ["9/minute", ["9/minute", "90/hour"], "9 per minute fixed_window", "9 concurrent"])
@pytest.mark.parametrize("times", [1, 5, 10])
def test_header_fields_as_text_are_those_as_bytes(monkeypatch, dialects, limit, times):
    monkeypatch.setattr("ratekeeper.http.verdict.time", lambda: 1_700_000_000.5)  # the instant of a reset is told
    judged = verdict({"limit": limit}, times, {"headers": dialects})
    texts = judged.text_headers
    assert texts == [(name.decode("latin-1"), value.decode("latin-1")) for name, value in judged.headers]
    assert texts == judged.text_headers

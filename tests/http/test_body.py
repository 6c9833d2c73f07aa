"""The body of a refusal from a template: values, presets, and mistakes in templates."""

import json
import re
from datetime import datetime

import pytest

from ratekeeper import InvalidRules, Policy, Request
from ratekeeper.http.body import MEDIA, PLACEHOLDERS, PRESETS, filled
from ratekeeper.rules.schema import BODIES
from ratekeeper.testing import FakeClock
from tests.http.test_verdict import verdict

EVERYTHING = {name: f"{{{name}}}" for name in PLACEHOLDERS}


def body_of(refusal):
    return json.loads(refusal.body)


def test_every_placeholder_of_a_refusal_by_a_limit():
    refusal = verdict({"limit": "2/minute"}, 3, {"body": EVERYTHING})
    body = body_of(refusal)
    assert body == {
        "status": 429, "error": "rate_limited", "ERROR": "RATE_LIMITED", "title": "Too many requests",
        "message": "Too many requests. Try again in 30 seconds.", "rule": "login", "limit": 2, "remaining": 0,
        "retry_after": 30, "retry_at": body["retry_at"], "retry_at_iso": body["retry_at_iso"],
        "reset_at": body["reset_at"], "reset_at_iso": body["reset_at_iso"],
    }  # fmt: skip
    assert body["reset_at"] - body["retry_at"] == 30
    for name in ("retry_at", "reset_at"):
        assert body[name + "_iso"].endswith("Z")
        assert datetime.fromisoformat(body[name + "_iso"]).timestamp() == body[name]
    assert (b"content-type", b"application/json") in refusal.headers
    assert (b"retry-after", b"30") in refusal.headers


@pytest.mark.parametrize(
    ("rule", "status"),
    [({"allow_from": []}, 403), ({"limit": "2/minute", "cost": "header:X-Cost"}, 400)],
)
def test_what_does_not_apply_is_left_out(rule, status):
    refusal = verdict(rule, 1, {"body": {**EVERYTHING, "text": "[{limit}]"}}, headers={"X-Cost": "many"})
    body = body_of(refusal)
    assert body["status"] == status
    assert set(body) == {"status", "error", "ERROR", "title", "message", "text"}
    assert body["text"] == "[]"


def test_a_rule_without_headers_is_not_named():
    body = body_of(verdict({"limit": "2/minute", "headers": False}, 3, {"body": EVERYTHING}))
    assert "rule" not in body
    assert "limit" not in body


def test_names_lists_and_braces_are_kept():
    template = {"a b": [1, True, {"c": "{{x}} {status}"}], "n": 1.5}
    assert filled(template, {"status": 429}) == {"a b": [1, True, {"c": "{x} 429"}], "n": 1.5}


def test_no_text_of_a_client_or_a_rule_can_break_the_json():
    refusal = verdict({"limit": "1/minute", "message": 'say "no" \\ {rule}\n'}, 2, {"body": {"m": "<{message}>"}})
    assert body_of(refusal) == {"m": '<say "no" \\ login\n>'}


@pytest.mark.parametrize("preset", PRESETS)
def test_presets(preset):
    refusal = verdict({"limit": "2/minute"}, 3, {"body": preset})
    body = body_of(refusal)
    expected = {
        "json-camel": {"error": "rate_limited", "message": "M", "limit": 2, "retryAfter": 30, "resetAt": "T"},
        "error-object": {"error": {"code": "RATE_LIMITED", "message": "M", "retryAfter": 30, "resetAt": "T"}},
        "detail": {"detail": "M"},
        "jsonapi": {"errors": [{"code": "rate_limited", "title": "Too many requests", "detail": "M",
                                "meta": {"retryAfter": 30}}]},
        "graphql": {"errors": [{"message": "M", "extensions": {"code": "RATE_LIMITED", "retryAfter": 30}}]},
    }[preset]  # fmt: skip
    text = json.dumps(body).replace("Too many requests. Try again in 30 seconds.", "M")
    assert json.loads(re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "T", text)) == expected
    assert dict(refusal.headers)[b"content-type"].decode() == MEDIA.get(preset, "application/json")
    assert preset not in BODIES


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"a": {"b": "{retryafter}"}}, "rules: response.body.a.b: expected text with no placeholders but {status}, "),
        ({"a": ["{"]}, "rules: response.body.a[0]: expected text with no placeholders but {status}, "),
        ({"a": "{status!r}"}, "rules: response.body.a: expected text with no placeholders but {status}, "),
        ({"a": None}, "rules: response.body.a: expected text, a number, true, false, a list or a table"),
        ({}, "rules: response.body: expected 'json', "),
        ("jsonn", "rules: response.body: expected one of json, problem, text, none, json-camel, "),
    ],
)
def test_mistakes(body, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse({"response": {"body": body}, "rules": []})
    assert str(raised.value).startswith(message)


def test_all_adapters_send_it():
    """Adapters take status, headers and body from the verdict; FastAPI's dependency alone has a form of its own."""
    from fastapi import Depends, FastAPI
    from fastapi.testclient import TestClient

    from ratekeeper.adapters.fastapi import RateLimit

    policy = Policy.parse({"response": {"body": "error-object"}, "rules": []}, clock=FakeClock())
    app = FastAPI()
    app.get("/", dependencies=[Depends(RateLimit("1/minute", policy=policy))])(lambda: 1)
    client = TestClient(app)
    client.get("/")
    assert client.get("/").json()["detail"]["error"]["code"] == "RATE_LIMITED"
    assert policy.check(Request()).allowed

"""Tokens and key sources that a client or a neighbour tries to bend."""

import base64
import hashlib
import hmac

import pytest

from ratekeeper import InvalidRules, Policy, Request
from ratekeeper.rules.parse_identity import is_safe_source

SECRET = "s" * 64
DEEP = "[" * 100_000 + "]" * 100_000


def encoded(text):
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("header", "payload"), [('{"alg": "HS256", "x": ' + DEEP + "}", "{}"), ('{"alg": "HS256"}', DEEP)]
)
def test_13_a_token_with_endless_nesting_is_no_token(header, payload):
    rules = [{"name": "a", "by": "user", "limit": "2/minute"}]
    policy = Policy.parse({"identity": {"user": "jwt:sub", "jwt": {"secret": SECRET}}, "rules": rules})
    signed = f"{encoded(header)}.{encoded(payload)}"
    digest = hmac.new(SECRET.encode(), signed.encode(), hashlib.sha256).digest()
    token = f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
    request = Request(peer="203.0.113.9", headers={"Authorization": f"Bearer {token}"})
    assert [policy.check(request).allowed for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("https://issuer.example/keys", True), ("http://127.0.0.1/keys", True), ("http://127.0.0.1:8000/keys", True),
        ("http://localhost:8000/keys", True), ("http://[::1]:8000/keys", True), ("http://127.8.9.1/keys", True),
        ("http://127.0.0.1.evil.example/keys", False), ("http://localhost.evil.example/keys", False),
        ("http://127.0.0.1@evil.example/keys", False), ("http://localhost:80@evil.example/", False),
        ("http://[::1].evil.example/", False), ("http://127.0.0.1\\@evil.example/", False),
        ("http://issuer.example/", False),
        ("ftp://127.0.0.1/", False), ("https://", False), ("http://127.0.0.1:port/", False),
    ],
)  # fmt: skip
def test_13_keys_come_over_plain_http_from_this_host_only(url, is_safe):
    assert is_safe_source(url) is is_safe
    if not is_safe:
        with pytest.raises(InvalidRules, match="jwks_url: expected an https URL"):
            Policy.parse({"identity": {"user": "jwt:sub", "jwt": {"jwks_url": url}}, "rules": []})

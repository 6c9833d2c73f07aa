"""The OpenAPI document is a valid one, and what the service answers is what it says."""

import json
import re
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from tests.service.running import running

DOCUMENT = json.loads(files("ratekeeper.service.http").joinpath("openapi.json").read_text())
RULES = """
trusted_proxies = ["127.0.0.1"]
[[rules]]
name = "per-ip"
by = "ip"
limit = "2/hour"
[[rules]]
name = "later"
match = "/shadow"
by = "ip"
limit = "1/hour"
mode = "shadow"
"""
KEY = {"key": "k", "limit": "2/hour"}
ADMIN = {"authorization": "Bearer sesame"}
REQUEST = {"request": {"path": "/shadow", "ip": "198.51.100.1"}}
CALLS = [
    ("POST", "/v1/check", KEY, {}),
    ("POST", "/v1/check", {"key": "k", "limit": "2/hour", "cost": 9}, {}),
    ("POST", "/v1/check", {"checks": [KEY, {"key": ["a", 1], "rule": "per-ip"}]}, {}),
    *[("POST", "/v1/check", REQUEST, {})] * 3,
    ("POST", "/v1/check", {**REQUEST, "headers": True}, {}),
    ("POST", "/v1/check?deny_status=429", {"key": "once", "limit": "1/hour", "cost": 2}, {}),
    *[("POST", "/v1/check?deny_status=429", {"key": "twice", "limit": "1/hour"}, {})] * 2,
    ("POST", "/v1/check", {"key": "k", "limit": "x"}, {}),
    ("POST", "/v1/check", "{", {}),
    ("PUT", "/v1/check", KEY, {}),
    ("POST", "/v1/peek", KEY, {}),
    ("POST", "/v1/peek", {"checks": [KEY]}, {}),
    ("POST", "/v1/reserve", {"key": "r", "limit": "5/hour", "cost": 3}, {}),
    ("POST", "/v1/reserve", {"key": "r", "limit": "5 concurrent", "lasts": 15}, {}),
    ("POST", "/v1/renew", {"reservation": "made up"}, {}),
    ("POST", "/v1/settle", {"reservation": "made up", "actual": 1}, {}),
    ("POST", "/v1/refund", KEY, {}),
    ("POST", "/v1/reset", KEY, {}),
    ("POST", "/v1/explain", REQUEST, {}),
    *[("GET", "/v1/auth/original", None, {"x-original-uri": "/", "x-original-method": "GET"})] * 4,
    ("GET", "/v1/auth/forwarded", None, {}),
    ("GET", "/healthz", None, {}),
    ("GET", "/readyz", None, {}),
    ("GET", "/metrics", None, {}),
    ("GET", "/openapi.json", None, {}),
    ("GET", "/v1/status", None, {}),
    ("POST", "/v1/admin/switch", {"rule": "later", "mode": "off"}, ADMIN),
    ("POST", "/v1/admin/switch", {"rule": "nobody", "mode": "off"}, ADMIN),
    ("POST", "/v1/admin/switch", {"rule": "later", "mode": "off"}, {}),
    ("POST", "/v1/admin/kill", {"killed": False}, ADMIN),
    ("POST", "/v1/admin/reload", {}, ADMIN),
    ("POST", "/v1/admin/digest", {"address": "198.51.100.1"}, ADMIN),
    ("POST", "/v1/admin/digest", {"key": ["a", 1]}, ADMIN),
    ("POST", "/v1/admin/digest", {"address": "nobody"}, ADMIN),
    ("POST", "/v1/admin/digest", {"address": "198.51.100.1"}, {}),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with running(tmp_path_factory.mktemp("openapi"), RULES, admin_token="sesame") as found:
        yield found


def complaints(schema, value):
    checker = Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    return [error.message for error in checker.iter_errors(value)]


def test_the_document_is_valid():
    validate(DOCUMENT)


def test_answers_are_what_the_document_says(service):
    seen = set()
    for method, target, body, headers in CALLS:
        path = target.partition("?")[0]
        status, fields, found = service.call(method, target, body, headers)
        path = re.sub("^/v1/auth/.*", "/v1/auth/{form}", path)
        operations = DOCUMENT["paths"][path]
        responses = operations.get(method.lower(), next(iter(operations.values())))["responses"]
        said = responses.get(str(status)) or responses["default"]
        seen.add((path, status))
        media = fields.get("content-type", "").partition(";")[0]
        if status >= 400 and path != "/v1/auth/{form}" and status != 429:
            assert media == "application/problem+json", (target, status)
        if "content" in said and found:
            assert media in said["content"], (target, status, media)
            if isinstance(found, (dict, list)):
                assert complaints(said["content"][media]["schema"], found) == [], (target, status, found)
        if body is not None and status < 400:
            asked = operations["post"]["requestBody"]["content"]["application/json"]["schema"]
            assert complaints(asked, body) == [], (target, body)
    assert {path for path, _ in seen} == set(DOCUMENT["paths"]) - {"/v1/live"}
    assert {status for _, status in seen} >= {200, 400, 401, 405, 429}

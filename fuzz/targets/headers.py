"""Header fields of clients, proxies and servers: no client chooses its address, and no field makes a parser fail."""

from __future__ import annotations

import math
from typing import Any

from fuzz.choices import Choices
from ratekeeper import MemoryStore
from ratekeeper.identity.address import Addresses, parse_address
from ratekeeper.identity.request import Request
from ratekeeper.outbound import response_limits
from ratekeeper.outbound.structured_fields import parse_dictionary, parse_list
from ratekeeper.rules.policy import Policy
from ratekeeper.testing import FakeClock

FORWARDED = {"x-forwarded-for": "203.0.113.9", "forwarded": "for=203.0.113.9;proto=https", "x-real-ip": "203.0.113.9"}
FIELDS = ("retry-after", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset",
          "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "date", "age", "x-rate-limit-reset",
          "x-ratelimit-reset-after", "x-ratelimit-reset-requests", "retry-after-ms", "x-ms-retry-after-ms")  # fmt: skip
RULES: dict[str, Any] = {
    "trusted_proxies": ["10.0.0.0/8"],
    "rules": [
        {"name": "key", "by": ["header:X-Api-Key", "ip"], "limit": "100/minute"},
        {"name": "host", "host": "example.com", "match": "/{a}/x-{b}-{c}/**", "by": "ip", "limit": "100/minute"},
    ],
}
POLICY = Policy.parse(RULES, store=MemoryStore(max_keys=1000), clock=FakeClock())


def check(data: bytes) -> None:
    choices = Choices(data)
    written = [choices.piece(120).decode("latin-1") for _ in range(choices.number() % 4)]
    for name, appended in FORWARDED.items():
        addresses = Addresses(["10.0.0.0/8"], name)
        pairs = [*[(name, line) for line in written], (name, appended)]
        client = addresses.find(Request(peer="10.1.1.1", headers=pairs))
        assert client.subject == "203.0.113.9", "a client chose its address"
        if name != "x-real-ip" and written:  # a proxy that adds to the line that it received
            line = f"{written[-1]}, {appended}"
            client = addresses.find(Request(peer="10.1.1.1", headers=[(name, line)]))
            is_open_quote = name == "forwarded" and '"' in written[-1]  # then nobody knows where an element begins
            assert is_open_quote or client.subject == "203.0.113.9", "a client chose its address"
        assert addresses.find(Request(peer="192.0.2.1", headers=pairs)).subject == "192.0.2.1"
    text = choices.text(100)
    address = parse_address(text)
    if address is not None:
        assert parse_address(str(address)) == address
    path = "/" + choices.piece(200).decode("latin-1")
    headers = [(b"host", choices.piece(30)), (b"x-api-key", choices.piece(30))]
    verdict = POLICY.check(Request(choices.text(12) or "GET", path, text, headers, query=choices.piece(30)))
    assert all(b"\n" not in value and b"\r" not in value for _, value in verdict.headers)
    fields = [(choices.of(FIELDS), choices.text(100)) for _ in range(choices.number() % 6)]
    for _, value in fields:
        parse_list(value), parse_dictionary(value)
    for present in (0.0, 1_800_000_000.0):
        limits = response_limits.read(fields, present)
        assert limits.wait is None or (limits.wait >= 0 and math.isfinite(limits.wait)), (fields, limits.wait)
        assert limits.micros is None or limits.micros >= 0

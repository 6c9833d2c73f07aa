"""Who a client is, as a file says it: every message in full."""

# ruff: noqa: E501 - a table reads better with its rows whole

import pytest

from ratekeeper import InvalidRules, Policy
from tests.rules.samples import rule

MESSAGES = [
    ({**rule(), "tiers": {"from": "header:X-Plan", "default": "free"}}, "rules: tiers.from: expected trusted_proxies beside "
     "a tier from a header. Without a trusted proxy, any client could choose its tier."),
    ({**rule(), "identity": {"api_keys": {"s3cret": {}}}}, "rules: identity.api_keys: expected the SHA-256 of a key, 64 hex "
     "digits in lower case. Never write the key itself."),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")

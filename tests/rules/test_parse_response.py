"""What a refused client gets, as a file says it: every message in full."""

# ruff: noqa: E501 - a table reads better with its rows whole

import pytest

from ratekeeper import InvalidRules, Policy
from tests.rules.samples import rule

MESSAGES = [
    ({**rule(), "response": {"headers": {"left": "X-Left"}}}, "rules: response.headers: expected one of limit, remaining, "
     "reset, reset_after, retry_after, policy, got 'left'. Take it out."),
    ({**rule(), "response": {"headers": {"limit": "X Left"}}}, "rules: response.headers.limit: expected the name of a header, "
     "got 'X Left'."),
    ({**rule(), "response": {"headers": ["draft-1"]}}, "rules: response.headers[0]: expected 'x-ratelimit', "
     "'x-ratelimit-delta', 'draft-11', 'draft-7', 'draft-6' or 'draft-3', got 'draft-1'. Did you mean 'draft-11'?"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")

"""Rules files as a whole: what is missing, unknown or there twice, with every message in full."""

# ruff: noqa: E501 - a table reads better with its rows whole

import pytest

from ratekeeper import InvalidRules, Policy
from tests.rules.samples import rule

MESSAGES = [
    ({}, "rules: expected 'rules': a list of rules ([[rules]] in TOML). It is missing."),
    ({"rules": {}}, "rules: rules: expected a list of rules ([[rules]] in TOML), got {}."),
    ({"rules": [], "stroe": "memory://"}, "rules: expected one of store, timezone, on_store_error, trusted_proxies, client_header, "
     "proxies_drop_underscores, secret, exempt, identity, tiers, response, rules, got 'stroe'. Did you mean 'store'?"),
    ({"rules": [{"limit": "1/minute"}]}, "rules: rules[0]: expected 'name': a name of printable ASCII without quotes and "
     "backslashes. It is missing."),
    (rule(limit="function:f"), "rules: rules[0].limit (rule 'r'): expected a function that was given (none was), got "
     "'function:f'. Pass it: Policy.load(path, functions={...}); or name its module: 'function:MODULE:NAME'."),
    (rule(limit="function:json:__name__"), "rules: rules[0].limit (rule 'r'): expected a function that can be imported, got "
     "'function:json:__name__'. It is no function, but str."),
    (rule(penalty={"after": 5, "block": 60}), "rules: rules[0].penalty (rule 'r'): expected 'within': a length of time such as '10 "
     "minutes'. It is missing."),
    (rule(name="a\r\nb"), "rules: rules[0].name (rule 'a\\r\\nb'): expected a name of printable ASCII without quotes and "
     "backslashes, got 'a\\r\\nb'."),
    (rule(name="é"), "rules: rules[0].name (rule 'é'): expected a name of printable ASCII without quotes and backslashes, "
     "got 'é'."),
    (rule(name="r\n"), "rules: rules[0].name (rule 'r\\n'): expected a name of printable ASCII without quotes and "
     "backslashes, got 'r\\n'."),
    ({"rules": [{"name": "r", "limit": "1/minute"}] * 2}, "rules: rules[1].name (rule 'r'): expected a name of its own, got "
     "'r'. rules[0] has it."),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")

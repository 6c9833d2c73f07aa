"""Values that several parts of a file share: every message in full."""

# ruff: noqa: E501 - a table reads better with its rows whole

import pytest

from ratekeeper import InvalidRules, Policy
from tests.rules.samples import rule

MESSAGES = [
    (rule(by="usr"), "rules: rules[0].by[0] (rule 'r'): expected one of ip, user, api_key, tier, route, host, method, all, "
     "header:NAME, cookie:NAME, query:NAME, jwt:NAME, app:NAME, function:NAME, got 'usr'. Did you mean 'user'?"),
    (rule(by="function:f"), "rules: rules[0].by[0] (rule 'r'): expected a function that was given (none was), got "
     "'function:f'. Pass it: Policy.load(path, functions={...}); or name its module: 'function:MODULE:NAME'."),
    (rule(exempt=["function:json:dmps"]), "rules: rules[0].exempt[0] (rule 'r'): expected a function that can be imported, "
     "got 'function:json:dmps'. json has no 'dmps'. Did you mean 'dumps'?"),
    (rule(match="login"), "rules: rules[0].match (rule 'r'): expected methods and a path such as 'GET,POST /api/**', got "
     "'login'. A path begins with '/'."),
    (rule(match="GET /a?b=c"), "rules: rules[0].match (rule 'r'): expected a path without a query, got 'GET /a?b=c'. "
     "The query is not part of a route."),
    (rule(match="/a/**/b/**"), "rules: rules[0].match (rule 'r'): expected '**' once in a path, got '/a/**/b/**'."),
    (rule(penalty={"after": 5, "within": "10 mintues", "block": 5}), "rules: rules[0].penalty.within (rule 'r'): expected a "
     "length of time such as '10 minutes', got '10 mintues'. Expected a unit of time (millisecond, second, minute, hour, "
     "day, week), got 'mintues'. Did you mean 'minutes'?"),
    (rule(allow_from=["10.0.0/8"]), "rules: rules[0].allow_from[0] (rule 'r'): expected an address or a network such as "
     "'10.0.0.0/8', got '10.0.0/8'."),
    ({**rule(), "trusted_proxies": ["*"]}, "rules: trusted_proxies[0]: expected an address or a network such as "
     "'10.0.0.0/8', got '*'. Name your proxies: a trusted proxy can choose any client address."),
    ({**rule(), "trusted_proxies": ["::/0"]}, "rules: trusted_proxies[0]: expected the networks of your proxies, got "
     "'::/0'. If every address is trusted, any client can choose its address."),
    (rule(cost="bdoy"), "rules: rules[0].cost[0] (rule 'r'): expected one of body, header:NAME, function:NAME, got 'bdoy'. "
     "Did you mean 'body'?"),
    (rule(message="{who}"), "rules: rules[0].message (rule 'r'): expected text with no placeholders but {retry_after}, "
     "{limit}, {rule}, got '{who}'. Double a brace that is not a placeholder."),
    (rule(message="{rule.__class__}"), "rules: rules[0].message (rule 'r'): expected text with no placeholders but "
     "{retry_after}, {limit}, {rule}, got '{rule.__class__}'. Double a brace that is not a placeholder."),
    (rule(match="/users/{id"), "rules: rules[0].match (rule 'r'): expected each '{' closed by a '}', as in '/users/{id}', "
     "got '/users/{id'."),
    (rule(match="/{a:path}/b/**"), "rules: rules[0].match (rule 'r'): expected '**' once in a path, got '/{a:path}/b/**'."),
    (rule(by="header:X Tenant"), "rules: rules[0].by[0] (rule 'r'): expected the name of a header behind 'header:', got "
     "'header:X Tenant'."),
    (rule(exempt=["user:"]), "rules: rules[0].exempt[0] (rule 'r'): expected a name behind 'user:', got 'user:'."),
]  # fmt: skip


@pytest.mark.parametrize(("found", "message"), MESSAGES)
def test_messages(found, message):
    with pytest.raises(InvalidRules) as raised:
        Policy.parse(found)
    assert str(raised.value) == message
    assert message.startswith(raised.value.place + ":")

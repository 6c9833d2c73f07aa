"""What a worker decides by: rules that need to see responses are refused."""

import pytest

from ratekeeper import InvalidRules, Policy
from ratekeeper.service.decider import expect_requests


def test_rules_that_need_the_response_are_refused():
    rule = {"name": "login", "limit": "5/minute", "count_when": "status >= 400"}
    with pytest.raises(InvalidRules) as raised:
        expect_requests(Policy.parse({"rules": [rule]}).compiled.settings)
    assert str(raised.value) == (
        "rules[0].count_when (rule 'login'): expected a rule that counts every request, as the service sees no "
        "responses, got 'status >= 400'. Use count_when in the middleware of the application."
    )
    expect_requests(Policy.parse({"rules": [{**rule, "mode": "off"}]}).compiled.settings)

"""ratekeeper explain: which rules apply to a request."""

import json

from tests.commands.command import run


def test_explain_says_which_rules_apply(rules):
    result = json.loads(run("explain", rules, "POST /login", "--ip", "198.51.100.1", "--json").output)
    assert [step["applies"] for step in result["rules"]] == [True, True]
    assert run("explain", rules, "nonsense").exit_code == 2

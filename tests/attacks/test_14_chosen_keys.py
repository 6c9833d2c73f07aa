"""Attack 14: keys and costs that a client chooses.  What a warning says must be so: a client gets past such a rule."""

import pytest

from ratekeeper import Policy, Request

HERE = "203.0.113.9"


def hosts(number):
    return Request(peer=HERE, headers={"Host": f"h{number}.example"})


def keys(number):
    return Request(peer=HERE, headers={"X-Api-Key": f"made-up-{number}"})


@pytest.mark.parametrize(("by", "request_of"), [("host", hosts), (["ip", "host"], hosts), ("header:X-Api-Key", keys)])
def test_14_a_rule_by_a_chosen_key_is_warned_of_unless_a_rule_by_address_stands_beside_it(by, request_of):
    rule = {"name": "r", "by": by, "limit": "1/day"}
    alone = Policy.parse({"rules": [rule]})
    assert sum(alone.check(request_of(number)).allowed for number in range(20)) == 20
    assert ["which a client can change at will" in warning for warning in alone.warnings] == [True]
    covered = Policy.parse({"rules": [rule, {"name": "ip", "limit": "5/day"}]})
    assert sum(covered.check(request_of(number)).allowed for number in range(20)) == 5
    assert covered.warnings == ()


def test_14_a_body_without_a_length_costs_the_most():
    rule = {"name": "r", "limit": "1000/day", "cost": {"from": "body"}}
    unknown = Request("POST", "/", HERE)  # chunked: no Content-Length
    loose = Policy.parse({"rules": [rule]})
    assert sum(loose.check(unknown).allowed for _ in range(20)) == 20
    assert ["takes its cost from the body" in warning for warning in loose.warnings] == [True]
    strict = Policy.parse({"rules": [{**rule, "cost": {"from": "body", "most": 100}}]})
    assert sum(strict.check(unknown).allowed for _ in range(20)) == 10
    assert strict.warnings == ()

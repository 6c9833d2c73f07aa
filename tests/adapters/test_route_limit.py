"""What applications are given by mistake: told when they are made, in our words; and limits as values."""

import pytest
from flask import Flask

from ratekeeper import InvalidInput, Limit
from ratekeeper.adapters.asgi import RateLimitMiddleware
from ratekeeper.adapters.fastapi import RateLimit
from ratekeeper.adapters.flask import RateLimiter
from ratekeeper.adapters.route_limit import RouteLimit
from ratekeeper.adapters.wsgi import RateLimitMiddleware as WsgiMiddleware

NO_LIMIT = "limits: expected a limit or a list of them, got 5."


@pytest.mark.parametrize("policy", [5, None, ["10/minute"]])
@pytest.mark.parametrize("make", [
    lambda policy: RateLimitMiddleware(print, policy=policy),
    lambda policy: WsgiMiddleware(print, policy=policy),
    lambda policy: RateLimiter(Flask("app"), policy=policy) if policy else RateLimitMiddleware(print, policy=policy),
])  # fmt: skip
def test_what_is_no_policy_is_refused(make, policy):
    with pytest.raises(InvalidInput, match="policy: expected a Policy, the path of a rules file or a dictionary, got "):
        make(policy)


@pytest.mark.parametrize("make", [RateLimit, RouteLimit])
@pytest.mark.parametrize(
    ("limit", "words", "message"),
    [
        (5, {}, NO_LIMIT),
        (None, {}, "limits: expected a limit or a list of them, got None."),
        ([5], {}, "limit: expected text such as '100/minute' or a Limit, got 5 (int)."),
        ("5/minute", {"by": 5}, "rules[0].by[1] (rule '5/minute'): expected text, got 5."),
    ],
)
def test_what_is_no_limit_of_a_route_is_refused(make, limit, words, message):
    with pytest.raises(InvalidInput) as caught:
        make(limit, **words)
    assert str(caught.value).endswith(message)


def test_a_limit_of_a_route_may_be_a_value():
    (rule,) = RateLimit(Limit(5, "minute", algorithm="sliding_log")).policy.rules
    assert rule.limits == {"": Limit("5/minute sliding_log")}
    (rule,) = RouteLimit([Limit(5, "minute"), "50/day"]).settings.rules
    assert str(rule.limits[""]) == "5/minute, 50/day"

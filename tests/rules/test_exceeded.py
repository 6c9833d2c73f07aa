"""LimitExceeded as the verdict on a request."""

import pytest

from ratekeeper import Limiter, LimitExceeded, Policy, Request
from ratekeeper.rules.exceeded import exceeded
from ratekeeper.testing import FakeClock


def refused(limit, name=None, **words):
    limiter = Limiter(limit, clock=FakeClock(), name=name)
    call = limiter.limit(key="k", **words)(int)
    limiter.check("k")
    with pytest.raises(LimitExceeded) as raised:
        call()
    return raised.value


def test_it_has_the_headers_of_the_limiter():
    headers = dict(exceeded(refused("1/minute", "reports"), Request()).headers)
    assert headers[b"retry-after"] == b"60"
    assert headers[b"ratelimit-policy"] == b'"reports";q=1;w=60'


def test_it_has_the_form_of_the_policy():
    policy = Policy.parse({"response": {"headers": ["draft-7"], "body": "problem"}, "rules": []})
    verdict = exceeded(refused(["5/second", "1/minute"], "reports"), Request(), policy)
    assert (verdict.status, verdict.wait, verdict.rule) == (429, 60, "reports")
    assert dict(verdict.headers)[b"ratelimit"] == b"limit=1, remaining=0, reset=60"
    assert b'"status": 429' in verdict.body


@pytest.mark.parametrize("name", ['with "quotes"', "Straße", "long" * 20])
def test_a_name_that_no_header_can_show_is_not_shown(name):
    verdict = exceeded(refused("1/minute", name), Request())
    assert {name for name, _ in verdict.headers} == {b"retry-after", b"cache-control", b"content-type"}


def test_a_cost_that_never_passes_has_no_retry_after():
    verdict = exceeded(refused("1/minute", cost=5), Request())
    assert verdict.status == 429
    assert b"retry-after" not in dict(verdict.headers)

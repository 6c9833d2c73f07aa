"""The JSON that is written by hand on the hot path is that of ``decision_json``."""

import json

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Decision, Policy, Request
from ratekeeper.decision import PresetDecision, decision_json, new_decision
from ratekeeper.service.http.decision_response import check_response, verdict_json, verdict_response_of_one

micros = st.integers(0, 10**13)


def body(response):
    return json.loads(response.partition(b"\r\n\r\n")[2])


@given(
    st.booleans(), st.integers(1, 10**12), st.integers(0, 10**12), st.none() | micros, micros, micros,
    st.sampled_from(["", "local: gave no answer in 50 ms", "allow: refused the connection"]),
)  # fmt: skip
def test_a_check_is_answered_with_its_decision(allowed, limit, remaining, retry, reset, delay, reason):
    preset = PresetDecision(limit, remaining, 0 if allowed else retry, reset, delay if allowed else 0, reason)
    decision = new_decision(Decision, (allowed, preset, None, 0, 1))
    figures = decision.limit, decision.remaining, decision.delay, decision.reason
    assert body(check_response("", decision, *figures)) == decision_json(decision)
    refusal = check_response("deny_status=429", decision, *figures)
    assert refusal.startswith(b"HTTP/1.1 200" if allowed else b"HTTP/1.1 429")
    assert body(refusal) == decision_json(decision)


@given(st.integers(1, 5), st.sampled_from(["gcra", "leaky_bucket", "fixed_window"]), st.integers(1, 7))
def test_a_verdict_of_one_limit_is_answered_like_every_other(count, algorithm, times):
    rule = {"name": "a rule", "by": "ip", "limit": f"{count}/day", "algorithm": algorithm}
    policy = Policy.parse({"rules": [rule]})
    for _ in range(times):
        verdict = policy.check(Request("GET", "/", "198.51.100.1"))
        assert body(verdict_response_of_one(*verdict.limits[0])) == verdict_json(verdict, with_headers=False)

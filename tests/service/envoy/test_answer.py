"""The response that is written by hand is the one that protobuf writes."""

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Decision, Limit
from ratekeeper.service.envoy import answer
from ratekeeper.service.envoy import rate_limits as envoy
from ratekeeper.service.envoy.config import Rate

OK, OVER = 1, 2


@given(
    st.booleans(), st.integers(1, 10**12), st.integers(0, 10**12), st.one_of(st.none(), st.integers(0, 10**13)),
    st.integers(0, 10**13), st.sampled_from(["", "named", "x" * 200]), st.sampled_from(sorted(answer.HEADERS)),
)  # fmt: skip
def test_what_is_written_by_hand_is_what_protobuf_writes(allowed, limit, left, retry, reset, name, style):
    decision = Decision(allowed, limit, left, None if retry is None else retry / 1e6, reset / 1e6)
    rate = Rate("path", Limit(7, 60), unit="minute", count=7, name=name)
    check = envoy.DescriptorCheck(rate, "path", None, envoy.TAKE, 1)
    check.outcome = envoy.Outcome(not allowed, limit, left, decision.reset_after, decision.retry_after)
    names = answer.HEADERS[style]
    whole = envoy.Response(overall_code=OK if allowed else OVER, statuses=[envoy.status_of(check)])
    envoy.add_headers(whole, [check], names)
    serialized = answer.length_delimited(b"\x12", envoy.limit_message(rate).SerializeToString())
    shown = decision.reset_after if allowed else envoy.wait_of(decision)
    written = answer.response(serialized, decision, shown, decision.retry_after, names)
    assert written == whole.SerializeToString()

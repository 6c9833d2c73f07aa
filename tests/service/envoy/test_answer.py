"""The response that is written by hand is the one that protobuf writes."""

from hypothesis import given
from hypothesis import strategies as st

from ratekeeper import Decision, Limit
from ratekeeper.service.envoy import answer
from ratekeeper.service.envoy import server as envoy
from ratekeeper.service.envoy.config import Rate

OK, OVER = 1, 2


@given(
    st.booleans(), st.integers(1, 10**12), st.integers(0, 10**12),
    st.one_of(st.none(), st.integers(0, 10**13)), st.integers(0, 10**13), st.sampled_from(["", "named", "x" * 200]),
)  # fmt: skip
def test_what_is_written_by_hand_is_what_protobuf_writes(allowed, limit, left, retry, reset, name):
    decision = Decision(allowed, limit, left, None if retry is None else retry / 1e6, reset / 1e6)
    rate = Rate("path", Limit(7, 60), unit="minute", count=7, name=name)
    current = envoy.limit_message(rate)
    shown = decision.reset_after if allowed else envoy.wait_of(decision)
    status = envoy.Status(
        code=OK if allowed else OVER,
        current_limit=current,
        limit_remaining=min(left, 2**32 - 1),
        duration_until_reset=envoy.duration(shown),
    )
    serialized = answer.length_delimited(b"\x12", current.SerializeToString())
    written = answer.response(serialized, decision, shown, decision.retry_after)
    assert written == envoy.response_of([status], [decision]).SerializeToString()

"""What outbound clients are given by mistake: told when they are made, in our words."""

import pytest

from ratekeeper import InvalidInput, Limit
from ratekeeper.outbound import Adaptive, Budget, pace, throttle_bytes
from ratekeeper.outbound.httpx import AsyncPacedTransport, PacedTransport
from ratekeeper.outbound.requests import PacedAdapter

NO_STORE = "store: expected a URL such as 'redis://localhost:6379/0' or a store, got 5."
NO_RATE = "expected a rate, got '2 concurrent', which is held and given back. Use Limiter.limit or Limiter.reserve."
NO_LIMIT = "limits: expected a limit such as '100/minute' or a list of limits, got 5."


@pytest.mark.parametrize("kind", [PacedTransport, AsyncPacedTransport, PacedAdapter])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 5}, NO_LIMIT),
        ({"limit": b"5/second"}, "limit: expected text such as '100/minute' or a Limit, got b'5/second' (bytes)."),
        ({"store": 5}, NO_STORE),
        ({"retry": 5}, "retry: expected a Retry such as Retry(max_retries=5), got 5."),
    ],
)
def test_a_paced_client_is_made_of_what_it_needs(kind, options, message):
    with pytest.raises(InvalidInput) as caught:
        kind(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pace(5), NO_LIMIT),
        (lambda: pace("5/second", store=5), NO_STORE),
        (lambda: pace("2 concurrent"), f"pace: {NO_RATE}"),
        (lambda: Budget(calls="2 concurrent"), f"calls: {NO_RATE}"),
        (lambda: throttle_bytes([b"a"], Limit("2 concurrent")), f"rate: {NO_RATE}"),
        (lambda: Budget(tokens="5/second", store=5), NO_STORE),
        (lambda: Adaptive(store=5), NO_STORE),
        (lambda: throttle_bytes([b"a"], 5), "rate 5: expected bytes and a time, such as '1 MB/s', got 5."),
    ],
)
def test_everything_else_too(make, message):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert str(caught.value) == message

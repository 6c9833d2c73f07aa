"""Counts of calls, tokens, waits and money."""

import pickle

import pytest

from ratekeeper.errors import InvalidInput
from ratekeeper.outbound import Meter, Usage
from ratekeeper.testing import FakeClock


def test_the_rate_is_that_of_the_last_minute():
    clock = FakeClock()
    meter = Meter(clock=clock)
    for _ in range(120):
        meter.record("m", Usage(10, 5), 0.0)
        clock.advance(1)
    progress = meter.progress()
    assert progress.calls == 120
    assert progress.calls_per_second == pytest.approx(1.0, abs=0.02)
    assert progress.tokens_per_minute == pytest.approx(900, abs=20)
    clock.advance(600)
    assert meter.progress().calls_per_second == 0
    assert len(meter._recent) == 0


def test_the_longest_start_of_a_models_name_gives_the_price():
    meter = Meter({"m": (1.0, 2.0), "m-large": (10.0, 20.0)}, clock=FakeClock())
    meter.record("m-small", Usage(1_000_000, 0), 0.0)
    meter.record("m-large-2", Usage(0, 1_000_000), 0.0)
    meter.record("unknown", Usage(5, 5), 0.0)
    meter.record("m", None, 4.0)
    progress = meter.progress()
    assert (progress.money, progress.calls, progress.waited) == (21.0, 4, 4.0)


def test_processes_add_up():
    meter = Meter({"m": (1.0, 0.0)}, clock=FakeClock())
    meter.record("m", Usage(1_000_000, 500), 2.0)
    other = pickle.loads(pickle.dumps(meter.progress()))
    line = "2 calls, 2.0/s | 2,001,000 tokens, 120,060,000/min | waited 2.0 s a call | $2.00"
    assert str(meter.progress() + other) == line
    assert str(Meter(clock=FakeClock())) == "0 calls, 0.0/s | 0 tokens, 0/min | waited 0.0 s a call | $0.00"


def test_wrong_prices():
    with pytest.raises(InvalidInput) as caught:
        Meter({"m": 5})
    expected = (
        "prices: expected dollars for a million tokens of input and of output, such as (1.25, 10), for 'm', got 5."
    )
    assert str(caught.value) == expected

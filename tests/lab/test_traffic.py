"""Shapes of traffic are what they say."""

import pytest

from ratekeeper import lab


@pytest.mark.parametrize("shape", lab.SHAPES)
def test_shapes_are_in_order_and_within_their_span(shape):
    traffic = lab.traffic(shape, "30/minute", seconds=300, clients=4)
    assert list(traffic.times) == sorted(traffic.times)
    assert traffic.times[0] >= 0
    assert traffic.times[-1] < traffic.span == 300_000_000
    assert set(traffic.who) == {0, 1, 2, 3}


@pytest.mark.parametrize("shape", ["steady", "on_off", "poisson"])
def test_a_load_is_in_multiples_of_the_limit(shape):
    traffic = lab.traffic(shape, "100/minute", load=3, clients=5, seconds=1200)
    assert len(traffic) == pytest.approx(3 * 100 * 20 * 5, rel=0.03)


def test_a_stricter_limit_gets_more_calls_in_a_retry_storm():
    traffic = lab.traffic("retry_storm", "20/second")
    lenient, strict = lab.simulate("20/second", traffic, algorithms=["gcra", "sliding_log"]).lanes
    assert strict.calls > lenient.calls > len(traffic)

"""Sliding window as a table: instant, cost, answer, remaining, retry, reset, delay."""

from ratekeeper import Limit
from tests.algorithms.tables import follow


def test_the_window_before_weighs_what_it_still_covers():
    follow(
        "10/second sliding_window",
        """
        0      10 yes    0    0   2000 0
        500    1  no     0  600   1500 0
        1000   1  no     0  100   1000 0
        1100   1  yes    0    0   1900 0
        1500   4  yes    0    0   1500 0  # 10 * 0.5 + 5
        1500   11 never  0    0   1500 0
        2000   5  yes    0    0   2000 0
        2000   1  no     0  200   2000 0
        """,
    )


def test_slices_sharpen_the_edge():
    follow(
        "12/second sliding_window slices 4",
        """
        0      12 yes    0    0   1250 0
        999    1  no     0  21.834  251  0
        1125   6  yes    0    0   1125  0  # half of the first slice is left
        1250   6  yes    0    0   1250  0
        """,
    )


def test_a_refund_goes_to_the_slice_it_came_from_and_to_older_ones():
    limit = Limit.parse("10/second sliding_window")
    state, _ = limit.rule.decide(limit.rule.EMPTY, 500_000, limit, 5)
    state, _ = limit.rule.decide(state, 1_500_000, limit, 5)
    assert limit.rule.unpack(limit.rule.refund(state, 1_500_000, limit, 3, 500_000), 1_500_000, limit) == (1, [5, 2])
    assert limit.rule.unpack(limit.rule.refund(state, 1_500_000, limit, 7, 1_500_000), 1_500_000, limit) == (1, [0, 3])

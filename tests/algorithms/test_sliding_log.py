"""Sliding log as a table: instant, cost, answer, remaining, retry, reset, delay."""

from tests.algorithms.tables import follow


def test_each_unit_leaves_one_period_after_it_came():
    follow(
        "3/second sliding_log",
        """
        0      1  yes    2    0   1000 0
        400    2  yes    0    0   1000 0
        500    1  no     0  500   900  0
        500    2  no     0  900   900  0
        999.999 1 no     0  0.001 400.001 0
        1000   1  yes    0    0   1000 0
        1400   2  yes    0    0   1000 0
        1400   4  never  0    0   1000 0
        9000   3  yes    0    0   1000 0
        """,
    )

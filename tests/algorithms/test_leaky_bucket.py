"""Leaky bucket as a table: instant, cost, answer, remaining, retry, reset, delay."""

from tests.algorithms.tables import follow


def test_turns_are_an_interval_apart():
    follow(
        "10/second burst 3 leaky_bucket",
        """
        0    1  yes    2    0   100  0
        0    1  yes    1    0   200  100
        0    1  yes    0    0   300  200
        0    1  no     0  100   300  0
        50   1  no     0   50   250  0
        100  1  yes    0    0   300  200
        350  2  yes    0    0   250  50
        1000 4  never  3    0   0    0
        1000 3  yes    0    0   300  0
        1250 2  yes    0    0   250  50
        """,
    )

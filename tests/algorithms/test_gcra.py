"""GCRA as a table: instant, cost, answer, remaining, retry, reset, delay."""

from tests.algorithms.tables import follow


def test_a_burst_then_the_rate():
    follow(
        "10/second burst 3",
        """
        0      1  yes    2    0   100  0
        0      2  yes    0    0   300  0
        0      1  no     0  100   300  0
        99     1  no     0    1   201  0
        99.999 1  no     0  0.001 200.001  0
        100    1  yes    0    0   300  0
        250    2  no     1   50   150  0
        300    2  yes    0    0   300  0
        300    4  never  0    0   300  0
        600    3  yes    0    0   300  0
        """,
    )


def test_thirds_of_a_second_are_exact():
    follow(
        "3/second",
        """
        0       3  yes  0  0        1000     0
        333.333 1  no   0  0.001    666.667  0
        333.334 1  yes  0  0        1000     0  # due at 4/3 s
        666.666 1  no   0  0.001    666.668  0
        666.667 1  yes  0  0  1000  0
        """,
    )

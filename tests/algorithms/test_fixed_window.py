"""Fixed window as a table: instant, cost, answer, remaining, retry, reset, delay."""

from tests.algorithms.tables import follow


def test_the_count_starts_again_at_every_multiple_of_the_period():
    follow(
        "5/second fixed_window",
        """
        900    3  yes    2    0   100  0
        900    3  no     2  100   100  0
        999    2  yes    0    0   1    0
        999.999 1 no     0  0.001 0.001 0
        1000   5  yes    0    0   1000 0
        1400   1  no     0  600   600  0
        3000   6  never  5    0   0    0
        """,
    )

"""Token bucket as a table: instant, cost, answer, remaining, retry, reset, delay."""

from tests.algorithms.tables import follow


def test_tokens_come_back_one_by_one():
    follow(
        "10/second burst 20 token_bucket",
        """
        0     15 yes    5    0   1500 0
        0     6  no     5  100   1500 0
        0     5  yes    0    0   2000 0
        50    1  no     0   50   1950 0
        150   1  yes    0    0   1950 0
        5000  20 yes    0    0   2000 0
        5000  21 never  0    0   2000 0
        """,
    )

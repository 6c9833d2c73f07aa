"""Tables and bars in a terminal."""

import pytest

from ratekeeper import lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.text import lanes_as_text


def test_text_has_a_table_and_bars():
    text = str(lab.simulate("10/second", "boundary", algorithms=["gcra", "fixed_window"]))
    assert text.startswith("boundary: 80 calls by 1 client (each for itself) in 12 s, seed 1\n")
    assert "10/second fixed_window        80        0  2.00 x" in text
    assert text.count("█") >= 4
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_is_no_wider_than_the_terminal(width):
    simulation = lab.simulate("100/minute", "poisson", algorithms=ALGORITHMS)
    lines = lanes_as_text(simulation, width).splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("limit")]
    assert len(heads) == (1 if width == 140 else 2)
    assert "fairness" in heads[-1]

"""Tables and bars in a terminal, of a simulation and of a replay."""

import pytest

from ratekeeper import lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.text import PLAIN, simulation_as_text, style_for
from tests.lab.samples import ONE, RULES, SAMPLE


def test_text_has_a_table_and_bars():
    text = str(lab.simulate("10/second", "boundary", algorithms=["gcra", "fixed_window"]))
    assert text.startswith("boundary: 80 calls by 1 client (one counter each) in 12 s, seed 1\n")
    assert "10/second fixed_window        80        0  2.00 x" in text
    assert text.count("█") >= 4
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_table_is_no_wider_than_the_terminal(width):
    simulation = lab.simulate("100/minute", "poisson", algorithms=ALGORITHMS)
    lines = simulation_as_text(simulation, width).splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("limit")]
    assert len(heads) == (1 if width == 140 else 2)
    assert "fairness" in heads[-1]


def test_a_replay_starts_with_the_totals():
    text = str(lab.replay(SAMPLE, RULES, suggest=0.001, against=ONE))
    lines = text.splitlines()
    assert lines[0] == "400 requests by 45 clients, 1995-08-01T00:00:01Z to 1995-08-01T00:11:11Z"
    assert lines[1] == "6 would be refused (1.5 %), from 3 clients (6.7 %)"
    assert "time zones are ignored" in text
    assert "lowest limit that refuses" in text
    assert "at most 0.1 % of clients" in text
    assert "compared with the current rules" in text


def test_an_output_that_cannot_encode_blocks_gets_ascii():
    assert style_for("utf-8", colours=False) == PLAIN
    for encoding in (None, "ascii", "latin-1", "no such encoding"):
        style = style_for(encoding, colours=False)
        simulation_as_text(lab.simulate("10/second", "burst"), 100, style).encode("ascii")

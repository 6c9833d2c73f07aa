"""Frames need a library of the caller."""

import pytest

from ratekeeper import InvalidInput, lab


def test_a_frame_needs_a_library():
    simulation = lab.simulate("10/second", "burst")
    try:
        import pandas  # noqa: F401
    except ImportError:
        with pytest.raises(InvalidInput, match=r"^frame: expected pandas to be installed. Run: pip install pandas$"):
            simulation.frame("pandas")
    else:
        assert list(simulation.frame("pandas")["admitted"]) == [simulation.lanes[0].admitted]
    with pytest.raises(InvalidInput, match=r"^frame: expected pandas or polars, got 'excel'\.$"):
        simulation.frame("excel")

"""Pictures of a simulation, in files."""

import pytest

from ratekeeper import InvalidInput, lab


@pytest.mark.full  # the commands write pictures in the quick tier too
def test_plots_are_written(tmp_path):
    pytest.importorskip("matplotlib")
    from ratekeeper.lab.plots import save_lanes

    simulation = lab.simulate("10/second", "boundary", algorithms=["gcra", "fixed_window"])
    save_lanes(simulation, tmp_path / "lanes.png")
    save_lanes(simulation, tmp_path / "lanes.svg")
    assert (tmp_path / "lanes.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "lanes.svg").read_text()
    with pytest.raises(InvalidInput, match=r"^plot 'lanes.gif': expected a name that ends in .png, .svg, .pdf.$"):
        save_lanes(simulation, "lanes.gif")

"""The report in a real browser: what it draws is what the lab says."""

import re
import shutil
import subprocess

import pytest

from ratekeeper import lab
from ratekeeper.algorithms import ALGORITHMS
from ratekeeper.lab.report import write_simulation

pytestmark = pytest.mark.real
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FIGURES = r'<b>(\w+)</b><span class="lane-figures">([\d,]+) admitted · ([\d,]+) refused .*? worst second ([\d.]+) ×'
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000"),
)


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("shape", ["burst", "boundary", "poisson"])
def test_the_page_shows_what_the_lab_says(tmp_path, shape):
    simulation = lab.simulate("10/second burst 15", shape, algorithms=ALGORITHMS, clients=4, seconds=20)
    write_simulation(simulation, tmp_path / "report.html")
    page = f"file://{tmp_path}/report.html"
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path}/profile", "--dump-dom", page]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    figures = re.findall(FIGURES, shown)
    lanes = {lane.algorithm: lane for lane in simulation.lanes}
    assert [name for name, *_ in figures] == list(ALGORITHMS)
    for name, admitted, refused, worst in figures:
        lane = lanes[name]
        assert (int(admitted.replace(",", "")), int(refused.replace(",", ""))) == (lane.admitted, lane.refused)
        assert float(worst) == pytest.approx(lane.worst_window_ratio, abs=0.0051)

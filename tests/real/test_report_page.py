"""The report in a real browser: what it draws is what the lab says."""

import re
import shutil
import subprocess

import pytest

from ratekeeper import lab
from ratekeeper.algorithms import ALGORITHMS, WINDOWS
from ratekeeper.lab.report import write_simulation
from ratekeeper.lab.traffic import recorded
from tests.real import pages
from tests.twins.test_js import RULES_JS, RUNNER, walks_of_all

pytestmark = pytest.mark.real
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FIGURES = r'<b>(\w+)</b><span class="lane-figures">([\d,]+) admitted · ([\d,]+) refused .*? worst window ([\d.]+) ×'
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--virtual-time-budget=20000"),
)


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("shape", ["burst", "boundary", "poisson"])
def test_the_page_shows_what_the_lab_says(tmp_path, shape):
    simulation = lab.simulate("10/second burst 15", shape, algorithms=ALGORITHMS, clients=4, seconds=20)
    write_simulation(simulation, tmp_path / "report.html")
    check_figures(opened(tmp_path), simulation)


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_a_browser_decides_what_python_decides(tmp_path):
    (tmp_path / "report.html").write_text(
        f"<pre></pre><script>{RULES_JS.read_text('utf-8')}</script><script>const walks = {walks_of_all(50)};"
        f"const tell = (text) => {{ document.querySelector('pre').textContent = text; }};{RUNNER}</script>"
    )
    assert '<pre>{"walks":400,"wrong":[]}</pre>' in opened(tmp_path)


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_a_browser_counts_by_the_calendar_of_the_limit(tmp_path):
    """Three months of calls: what the page shows beside the calendar of Berlin is what the lab says."""
    calls = recorded([(at * 7_001.0 + 1.79e9, "abc"[at % 3], 1) for at in range(1_200)])
    simulation = lab.simulate("100/month calendar Europe/Berlin", calls)
    write_simulation(simulation, tmp_path / "report.html")
    (lane,) = simulation.lanes
    shown = opened(tmp_path)
    (figures,) = re.findall(r"<b>calendar_window</b><span class=.lane-figures.>([^<]*)<", shown)
    assert figures.startswith(f"{lane.admitted:,} admitted · {lane.refused:,} refused")
    assert figures.endswith("by the calendar of Europe/Berlin")
    assert lane.refused


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
def test_dragging_decides_again(tmp_path):
    """The sliders are moved as a hand would, and all six decide what the lab decides under the limit that is shown."""
    simulation = lab.simulate("10/second burst 15", "poisson", load=1.5, clients=4, seconds=20)
    write_simulation(simulation, tmp_path / "report.html")
    page = tmp_path / "report.html"
    page.write_text(page.read_text("utf-8").replace("<head>", f"<head>{NO_FRAMES}") + DRAG, "utf-8")
    shown = opened(tmp_path)
    limit = re.search(r'<b id="limit-shown">([^<]*)</b>', shown)[1].replace(" per ", "/")
    assert re.fullmatch(r"\d+/second burst \d+", limit)
    assert limit != "10/second burst 15"
    check_figures(shown, lab.simulate(limit, simulation.traffic, algorithms=ALGORITHMS, shared=True))


@pytest.mark.skipif(BROWSER is None, reason="no chromium here")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_fits_and_everybody_can_use_it(tmp_path, scheme):
    """Bars stay in their card, and nothing is drawn for 0."""
    playwright = pytest.importorskip("playwright.sync_api")
    simulation = lab.simulate("10/second burst 15", "burst", algorithms=ALGORITHMS, clients=4, seconds=20)
    write_simulation(simulation, tmp_path / "report.html")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=list(pages.QUIET))
        page = browser.new_page(color_scheme=scheme)
        page.goto((tmp_path / "report.html").as_uri())
        pages.check_that_it_fits(page, "report")
        page.set_viewport_size({"width": 1280, "height": 900})
        pages.check_that_everybody_can_use_it(page, f"report, {scheme}")
        browser.close()


# Without a screen frames may never come.
NO_FRAMES = "<script>window.requestAnimationFrame = (call) => setTimeout(call, 1);</script>"
DRAG = """<script>
const drag = (id, value) => { const it = byId(id); it.value = value; it.dispatchEvent(new Event("input")); };
drag("count", 450);
drag("burst", 250);
byId("shared").click();
</script>"""


def opened(folder):
    page = f"file://{folder}/report.html"
    command = [BROWSER, *QUIET, f"--user-data-dir={folder}/profile", "--dump-dom", page]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def check_figures(shown, simulation):
    figures = re.findall(FIGURES, shown)
    lanes = {lane.algorithm: lane for lane in simulation.lanes}
    assert [name for name, *_ in figures] == [*ALGORITHMS, "first_use_window"]  # seconds have no calendar
    for name, admitted, refused, worst in figures:
        if name in WINDOWS:
            (lane,) = lab.simulate(
                f"{simulation.lanes[0].limit.partition(' ')[0]} first-use", simulation.traffic, shared=simulation.shared
            ).lanes
        else:
            lane = lanes[name]
        assert (int(admitted.replace(",", "")), int(refused.replace(",", ""))) == (lane.admitted, lane.refused)
        assert float(worst) == pytest.approx(lane.worst_window_ratio, abs=0.0051)

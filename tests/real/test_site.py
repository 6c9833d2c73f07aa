"""The documentation site in a real browser: nothing is cut off, and the playground plays."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
WIDTHS = (390, 768, 1280, 1920)
PAGES = (
    *("index.html", "playground.html", "howto/deployment.html", "howto/troubleshooting.html", "reference/rules.html"),
    *("reference/api.html", "benchmarks/in-process.html", "algorithms/which.html"),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    if BROWSER is None:
        pytest.skip("no chromium here")
    quiet = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=list(quiet))
        yield browser
        browser.close()


def opened(browser, address, errors, scheme="light"):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(address)
    return page


def test_no_page_is_wider_than_its_window(site, browser):
    """A wide table scrolls inside the page."""
    errors = []
    for name in PAGES:
        page = opened(browser, (site / name).as_uri(), errors)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)
        page.close()
    assert errors == []


def figures(page, side):
    return page.locator(f'[data-shows="{side}-figures"]').inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_playground_decides_calls(site, browser, scheme):
    """Three calls by mouse and keyboard against a limit of two, and a link that reproduces the settings."""
    address = f"{(site / 'playground.html').as_uri()}#traffic=none&count=2&period=hour&a=fixed_window&b=gcra"
    errors = []
    page = opened(browser, address, errors, scheme)
    page.get_by_role("button", name="Send a call").click()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    assert figures(page, "a").startswith("2 admitted · 1 refused · 0 of 2 left · retry after")
    assert figures(page, "b").startswith("2 admitted · 1 refused")
    assert page.locator('[data-shows="a-line"]').inner_text() == 'Limiter("2/hour", algorithm="fixed_window")'
    page.locator('[name="a"]').select_option("leaky_bucket")
    assert "a=leaky_bucket" in page.url
    assert figures(page, "a").startswith("0 admitted")
    again = opened(browser, page.url, errors, scheme)
    assert again.locator('[data-shows="a-line"]').inner_text() == 'Limiter("2/hour", algorithm="leaky_bucket")'
    assert errors == []

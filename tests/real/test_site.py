"""The documentation site in a real browser: nothing is cut off, and the playground plays."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.pages import QUIET, check_that_everybody_can_use_it, check_that_it_fits

pytest.importorskip("mkdocs")
playwright = pytest.importorskip("playwright.sync_api")

pytestmark = pytest.mark.real
expect = playwright.expect
ROOT = Path(__file__).parents[2]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PAGES = (
    *("index.html", "playground.html", "howto/deployment.html", "howto/troubleshooting.html", "howto/first-429.html"),
    *("reference/rules.html", "reference/api.html", "reference/platforms.html", "algorithms/which.html"),
    *("benchmarks/in-process.html", "benchmarks/redis.html", "benchmarks/http.html"),
)
# What people ask, and the pages that answer it.
QUESTIONS = {
    "why am I counted by address": ("howto/faq.html", "howto/troubleshooting.html"),
    "429 behind nginx": ("howto/faq.html", "howto/troubleshooting.html", "howto/behind-a-proxy.html"),
    "half my limit while redis is down": ("howto/faq.html", "howto/troubleshooting.html"),
    "redis eviction": ("howto/faq.html", "howto/troubleshooting.html", "howto/redis.html"),
    "docker": ("howto/deployment.html",),
    "kubernetes": ("howto/deployment.html",),
    "helm chart": ("howto/deployment.html",),
    "grafana dashboard": ("howto/deployment.html",),
    "limit by user of a JWT": ("howto/jwt.html",),
    "retry-after header": ("reference/headers.html",),
    "migrate from slowapi": ("howto/from-slowapi.html",),
    "rate limit a fastapi route": ("howto/fastapi.html",),
    "django rest framework throttle": ("howto/drf.html", "howto/from-drf-throttles.html"),
    "share a limit between gunicorn workers": ("howto/shared-memory.html",),
    "test without sleeping": ("howto/testing.html",),
    "which algorithm": ("algorithms/which.html",),
    "openai tokens per minute": ("howto/llm-budgets.html", "howto/llm-sdks.html"),
    "different limits for free and paid plans": ("howto/tiers.html",),
    "envoy ratelimit": ("howto/from-envoy-ratelimit.html",),
    "complete rules file": ("reference/rules-by-example.html",),
    "does it run on windows": ("reference/platforms.html",),
    "monthly quota by calendar": ("reference/limits.html",),
    "limitexceeded exception": ("reference/errors.html",),
    "what would a limit have done to my access log": ("howto/replay.html",),
    "prometheus metrics": ("reference/events.html", "howto/deployment.html"),
}


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
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=BROWSER, args=list(QUIET))
        yield browser
        browser.close()


def opened(browser, address, errors, scheme="light"):
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.on("pageerror", lambda error: errors.append(error))
    page.on("request", lambda request: errors.append(request.url) if not local(request.url) else None)
    page.goto(address)
    return page


def local(address):
    return address.startswith(("file:", "data:", "about:", "blob:"))


def test_pages_fit_their_window_and_everybody_can_use_them(site, browser):
    """No request leaves for another host either."""
    errors = []
    for name in PAGES:
        page = opened(browser, (site / name).as_uri(), errors)
        check_that_it_fits(page, name)
        page.close()
        for scheme in ("light", "dark"):
            page = opened(browser, (site / name).as_uri(), errors, scheme)
            check_that_everybody_can_use_it(page, f"{name}, {scheme}")
            page.close()
    assert errors == []


def test_the_readme_fits_as_it_is_rendered(tmp_path, browser):
    """By the renderer that GitHub made, with tables that scroll, as it shows them; and PyPI takes it."""
    cmarkgfm = pytest.importorskip("cmarkgfm")
    markdown = pytest.importorskip("readme_renderer.markdown")
    text = (ROOT / "README.md").read_text("utf-8")
    on_pypi = markdown.render(text)
    assert on_pypi.count("<img") == text.count("<img") + text.count("[![")
    raw = re.search(r"https://raw\.githubusercontent\.com/[^/]+/[^/]+/main/", text)[0]
    options = cmarkgfm.cmark.Options.CMARK_OPT_UNSAFE
    body = cmarkgfm.github_flavored_markdown_to_html(text, options=options).replace(raw, f"{ROOT.as_uri()}/")
    body = re.sub(r'src="https://[^"]*"', 'src="data:,"', body)  # badges
    (tmp_path / "readme.html").write_text(f"{README_LOOK}<main>{body}</main>", "utf-8")
    for scheme in ("light", "dark"):
        errors = []
        page = opened(browser, (tmp_path / "readme.html").as_uri(), errors, scheme)
        check_that_it_fits(page, "README.md")
        widths = page.evaluate("[...document.querySelectorAll('picture img')].map((img) => img.naturalWidth)")
        assert len(widths) == 3
        assert min(widths) > 0
        shown = page.evaluate("document.querySelector('picture img').currentSrc")
        assert shown.endswith(f"-{scheme}.svg")
        assert errors == []


README_LOOK = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta name="viewport" content="width=device-width"><title>README</title><style>
main { max-width: 1012px; margin: auto; padding: 16px; font: 16px/1.5 sans-serif; overflow-wrap: break-word }
main img { max-width: 100% } table { display: block; overflow: auto; max-width: 100%; width: max-content }
pre { overflow: auto; padding: 16px } </style>"""


def asked(page, question):
    """As by hand: the search listens to keys."""
    field = page.locator(".md-search__input")
    field.fill(question)
    field.dispatch_event("keyup")


def test_the_search_finds_what_people_ask(site, browser):
    """From disk, without a server: the page is among the first three."""
    assert len(QUESTIONS) >= 20
    errors, missed = [], {}
    page = opened(browser, (site / "index.html").as_uri(), errors)
    for question, answers in QUESTIONS.items():
        asked(page, "")
        expect(page.locator(".md-search-result__item")).to_have_count(0)  # those of the question before
        asked(page, question)
        page.locator(".md-search-result__item > .md-search-result__link").first.wait_for(state="attached")
        links = page.eval_on_selector_all(
            ".md-search-result__item > .md-search-result__link", "(all) => all.slice(0, 3).map((each) => each.href)"
        )
        found = [link.partition("?")[0].partition("#")[0].removeprefix(f"{site.as_uri()}/") for link in links]
        if not set(answers) & set(found):
            missed[question] = found
    assert missed == {}
    assert errors == []


def test_examples_are_copied_without_prompts_and_outputs(site, browser):
    errors = []
    page = opened(browser, (site / "howto/fastapi.html").as_uri(), errors)
    block = page.locator(".highlight:has(.gp) code").first
    assert ">>>" in block.inner_text()
    block.evaluate("(code) => code.setAttribute('data-md-copying', '')")  # as the button does
    copied = block.inner_text()
    assert "client = TestClient(app)" in copied
    assert ">>>" not in copied
    assert "[200, 200, 429]" not in copied
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


def test_the_playground_works_by_keyboard(site, browser):
    """Every control is reached by Tab, in the order of the page, and changes what it is for."""
    errors = []
    page = opened(browser, f"{(site / 'playground.html').as_uri()}#traffic=none&count=5&period=hour", errors)
    controls = page.locator("#live-lanes :is(input, select, button)")
    page.locator("#live-lanes [name=count]").focus()
    page.keyboard.press("ArrowRight")
    assert "count=6" in page.url
    reached = set()
    for _ in range(controls.count() + 4):
        reached.add(page.evaluate("document.activeElement.name || document.activeElement.tagName"))
        page.keyboard.press("Tab")
    assert {name for name in controls.evaluate_all("(all) => all.map((each) => each.name)") if name} <= reached
    page.locator("#live-lanes [name=pause]").focus()
    page.keyboard.press("Enter")
    assert page.locator("#live-lanes [name=pause]").get_attribute("aria-pressed") == "true"
    assert errors == []

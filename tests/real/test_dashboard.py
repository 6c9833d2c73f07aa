"""The dashboard in a real browser: it lives, it switches, it tries; in light, in dark and on a phone."""

import json
import os
from pathlib import Path

import pytest

from tests.real.pages import WIDTHS, check_that_everybody_can_use_it, check_that_it_fits
from tests.real.proxies import binary
from tests.service.running import running

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.real
expect = playwright.expect
RULES = """
[[rules]]
name = "per-ip"
by = "ip"
limit = "5/hour"

[[rules]]
name = "quiet"
match = "/quiet"
by = "ip"
limit = "1/hour"
mode = "shadow"
"""
SHOTS = os.environ.get("RATEKEEPER_SHOTS")  # a folder: then pictures are left there to be looked at


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as found:
        made = found.chromium.launch(executable_path=binary("chromium"), args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def service(tmp_path):
    with running(tmp_path, RULES, admin_token="sesame", state=tmp_path) as found:
        for number in range(12):
            found.post("/v1/check", {"request": {"path": "/quiet", "ip": f"198.51.100.{number % 2}"}})
        yield found


def opened(browser, service, **options):
    page = browser.new_context(**options).new_page()
    page.errors = []
    page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("request", lambda request: page.errors.append(request.url) if not local(request.url) else None)
    page.goto("http://{}:{}/".format(*service.addresses["http"]))
    expect(page.locator("#rules tbody tr")).to_have_count(2)
    return page


def local(url):
    return url.startswith(("http://127.0.0.1", "data:"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_shows_what_happens_and_fits(browser, service, scheme, width):
    page = opened(browser, service, color_scheme=scheme, viewport={"width": width, "height": 900})
    row = page.locator("#rules tbody tr").first
    assert row.locator("th").inner_text().startswith("per-ip")
    expect(row.locator("td.n")).to_have_text(["10", "2"])
    shadow = page.locator("#rules tbody tr").nth(1)  # met by the 10 that passed: one of each client is within its limit
    expect(shadow.locator("td.n")).to_have_text(["10", "08 would have been"])
    assert shadow.locator("td.n small").inner_text() == "8 would have been"
    assert page.get_by_label("mode of quiet").input_value() == "shadow"
    expect(page.locator("#clients li")).to_have_count(2)
    assert "198.51.100" not in page.content()
    check_that_it_fits(page, "dashboard", [width])
    if SHOTS:
        page.screenshot(path=str(Path(SHOTS, f"dashboard-{scheme}-{width}.png")), full_page=True)
    assert page.errors == []


def test_what_a_shadow_rule_lets_pass_is_drawn(browser, service, tmp_path):
    page = opened(browser, service)
    page.get_by_label("Show decisions of").select_option("quiet")
    for _ in range(3):  # somebody new: one within the limit, two over it
        service.post("/v1/check", {"request": {"path": "/quiet", "ip": "198.51.100.9"}})
    expect(page.locator("#rules tbody tr").nth(1).locator("td.n")).to_have_text(["13", "010 would have been"])
    expect(page.locator("#chart .area-s")).not_to_have_count(0)
    expect(page.locator("#chart .area-r")).to_have_count(0)
    expect(page.locator("#chart-text")).to_contain_text("of them over the limit) and 0.0 refused per second.")
    (tmp_path / "rules.toml").write_text(RULES.partition('[[rules]]\nname = "quiet"')[0])

    async def reload():
        service.worker.decider.reload()

    service.run(reload())  # a rule that is gone keeps its counts, and loses its switch
    expect(page.get_by_label("mode of quiet")).to_have_count(0)
    expect(page.locator("#rules tbody tr").nth(1)).to_contain_text("not in the rules")
    assert page.errors == []


def test_overrides_work_from_the_keyboard_and_need_the_token(browser, service):
    page = opened(browser, service)
    assert page.get_by_label("mode of quiet").is_disabled()
    page.get_by_role("button", name="Unlock overrides").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-form [role=alert]")).to_contain_text("expected 'Authorization: Bearer TOKEN'")
    page.get_by_label("Admin token").fill("sesame")
    page.keyboard.press("Enter")
    expect(page.get_by_label("mode of quiet")).to_be_enabled()
    page.get_by_label("mode of quiet").select_option("enforce")
    expect(page.locator("#said")).to_have_text("Done: quiet: enforce.")
    assert {rule.name: rule.mode for rule in service.worker.decider.policy.rules}["quiet"] == "enforce"
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Stop all limiting").click()
    page.get_by_role("alert").wait_for()
    assert service.worker.decider.overrides.is_killed
    page.get_by_role("button", name="Limit again").click()
    page.get_by_role("alert").wait_for(state="hidden")


def test_it_tries_a_limit_with_every_algorithm(browser, service):
    page = opened(browser, service)
    page.get_by_label("Limit", exact=True).fill("3/hour")
    page.get_by_label("Requests").fill("5")
    page.get_by_label("within seconds").fill("0")
    page.get_by_role("button", name="Fire").click()
    expect(page.locator("#tried")).to_contain_text("sliding_log allowed")
    said = page.locator("#tried").inner_text()
    assert said.count("allowed 3 of 5") == 6, said
    assert "leaky_bucket allowed 3 of 5, waits up to 40 min" in said  # the third of an hour's three
    expect(page.locator(".queued")).to_have_count(2)
    assert page.locator(".dot-a").count() == 18
    assert page.errors == []


def test_everything_has_a_name_and_nothing_is_hard_to_read(browser, service):
    """What a screen reader says of each control, and the contrast of all text, in both schemes."""
    for scheme in ("light", "dark"):
        page = opened(browser, service, color_scheme=scheme)
        unnamed = page.evaluate("""[...document.querySelectorAll('button,select,input')].filter(e =>
            !(e.getAttribute('aria-label') || (e.labels && e.labels.length) || e.textContent.trim())).length""")
        assert unnamed == 0
        poor = json.loads(page.evaluate(CONTRAST))
        assert poor == []
        check_that_everybody_can_use_it(page, f"dashboard, {scheme}")


CONTRAST = """(() => {
  const part = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(part);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$|transparent/.test(colour)) return colour;
    }
    return 'rgb(255,255,255)';
  };
  const poor = [];
  for (const e of document.querySelectorAll('body *')) {
    const says = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!e.offsetParent || e.disabled || !says) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    if ((a + .05) / (b + .05) < 4.5) poor.push(e.tagName + ' ' + e.textContent.trim().slice(0, 30));
  }
  return JSON.stringify(poor);
})()"""

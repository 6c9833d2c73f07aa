"""What a browser says of a page: whether it fits its window, and what it lacks for those who cannot see it."""

from pathlib import Path

import pytest

WIDTHS = (390, 768, 1280, 1920)
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")
# Elements with text that end beyond the window, though nothing around them scrolls.  What is hidden on purpose, such
# as a closed drawer, is left out.
CUT_OFF = """() => {
  const scrolls = (e) => { for (; e && e !== document.body; e = e.parentElement)
    if (/auto|scroll/.test(getComputedStyle(e).overflowX)) return true; return false; };
  const said = [];
  for (const e of document.querySelectorAll("body *")) {
    const box = e.getBoundingClientRect();
    if (!box.width || !box.height || box.right <= innerWidth + 1 || box.left >= innerWidth || scrolls(e)) continue;
    if (!e.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    if (e.textContent.trim() || /IMG|SVG|CANVAS|INPUT|BUTTON/i.test(e.tagName))
      said.push(`${e.tagName} ${e.className} ends at ${Math.round(box.right)}: ${e.textContent.trim().slice(0, 40)}`);
  }
  return said.slice(0, 5);
}"""


def check_that_it_fits(page, name, widths=WIDTHS):
    """Nothing is wider than the window, nor cut off, at any of the widths; a wide table scrolls inside the page."""
    for width in widths:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (name, width)
        assert page.evaluate(CUT_OFF) == [], (name, width)


def check_that_everybody_can_use_it(page, name):
    """axe finds nothing serious."""
    axe = pytest.importorskip("axe_playwright_python")
    page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    serious = [
        f"{each['id']}: {each['help']}: {[node['target'] for node in each['nodes'][:3]]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == [], f"{name}: {serious}"

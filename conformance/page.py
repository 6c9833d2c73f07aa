"""Write docs/conformance.md and its chart from the result file."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from conformance.judge import FAILED, NOT_JUDGED, NOT_PROMISED, PASSED
from conformance.laws import LAWS
from conformance.upstream import NOTES

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "conformance.md"
CHART = DOCS / "pictures" / "conformance.svg"
SIGNS = {PASSED: "✓", NOT_PROMISED: "·", NOT_JUDGED: "○"}
FAMILIES = {"reference": 0, "ours": 1, "peer": 2}
# No heading of a column is wider than its cells need to be.
TABLES = (("Core", ("core",)), ("Distributed, HTTP and failure", ("distributed", "http", "failure")))


def anchor(result: dict[str, Any], law: str) -> str:
    return f"{result['target']}-{law}"


def cell(result: dict[str, Any], law: str) -> str:
    found = result["laws"].get(law)
    if found is None:
        return "·"
    return f"[✗](#{anchor(result, law)})" if found["status"] == FAILED else SIGNS[found["status"]]


def title(result: dict[str, Any]) -> str:
    store = {"redis": ", Redis", "shm": ", shared memory"}.get(result["promises"]["store"], "")
    name = result["name"]
    if store.strip(", ").lower() in name.lower() or (store and "," in name):
        store = ""
    if result["target"] == "ratekeeper-pure":
        store = " without C"
    return f"{name}{store} {result['version']}"


def table(results: list[dict[str, Any]], laws: list[str]) -> list[str]:
    lines = ["| target | " + " | ".join(laws) + " |", "|---" + "|:-:" * len(laws) + "|"]
    for result in results:
        cells = [cell(result, law) for law in laws]
        if set(cells) != {"·"}:
            lines.append(f"| {title(result)} | {' | '.join(cells)} |")
    return lines


def failures(results: list[dict[str, Any]]) -> list[str]:
    lines = []
    for result in results:
        for law, found in result["laws"].items():
            if found["status"] != FAILED:
                continue
            lines += [f"### {result['target']}: {law}", "", f"{title(result)}: {LAWS[law].sentence}", ""]
            lines += [f"{found['says']}", ""]
            sentence, thread = NOTES.get((result["target"], law), NOTES.get((result["target"], "*"), ("", "")))
            if sentence:
                lines += [sentence + (f" See [{thread.split('github.com/')[-1]}]({thread})." if thread else ""), ""]
            lines += ["```sh", f"python -m conformance run --target {result['target']} --law {law}", "```", ""]
            if found.get("history"):
                lines += ["```text", *found["history"], "```", ""]
    return lines


def chart(results: list[dict[str, Any]]) -> str:
    """The worst interval of each target, as a multiple of what its algorithm may admit there."""
    rows = sorted(((max(each["over_admission"].values()), title(each)) for each in results if each["over_admission"]),
                  reverse=True)  # fmt: skip
    most = max([2.0, *(ratio for ratio, _ in rows)])
    left, wide, step = 250, 420, 20
    tall = 40 + step * len(rows) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + wide + 70} {tall}" role="img" '
        f'aria-label="Over-admission of each target">',
        "<style>text{font:12px system-ui,sans-serif;fill:#222}.bar{fill:#2b7a4b}.over{fill:#c0392b}"
        ".line{stroke:#888;stroke-dasharray:3 3}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}.bar{fill:#58b981}.over{fill:#ff7b6b}.line{stroke:#999}}"
        "</style>",
        f'<text x="{left}" y="16">admitted in the worst interval, times what may be admitted there</text>',
    ]
    for number, (ratio, name) in enumerate(rows):
        y = 30 + step * number
        size = max(1.0, wide * ratio / most)
        kind = "over" if ratio > 1 else "bar"
        parts.append(f'<text x="{left - 8}" y="{y + 11}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="{kind}" x="{left}" y="{y}" width="{size:.1f}" height="14" rx="2"/>')
        parts.append(f'<text x="{left + size + 6:.1f}" y="{y + 11}">{ratio:.2f}</text>')
    one = left + wide / most
    parts.append(f'<line class="line" x1="{one:.1f}" x2="{one:.1f}" y1="24" y2="{tall - 14}"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def page_text(content: dict[str, Any]) -> str:
    about = content["conditions"]
    ordered = sorted(content["targets"], key=lambda each: (FAMILIES[each["family"]], each["language"], each["target"]))
    results = [each for each in ordered if "missing" not in each]
    missing = [each for each in ordered if "missing" in each]
    red = sum(found["status"] == FAILED for each in results for found in each["laws"].values())
    lines = [
        "<!-- Written by `python -m conformance page` from conformance/results/latest.json: do not edit. -->",
        "# Conformance of rate limiters",
        "",
        "Does a rate limiter admit what it promises to admit?",
        "The conformance suite in the folder `conformance/` of this repository asks"
        " limiters in any language, with cases from an exact model and laws on recorded histories.",
        "Each target runs in its released version and its recommended configuration, and is judged only by what it"
        " promises itself.",
        "",
        f"Run on {about['date']}, suite version {about['suite']}, Python {about['python']}, {about['system']}, beside"
        f" other work: {len(results)} targets, {red} failures.",
        "`make conformance` installs the other libraries, runs everything again and writes this page.",
        "",
        "✓ the law holds · ✗ it does not: the sign links to the failure and the command that shows it · ○ it could not"
        " be judged here, for example because the clock of the target cannot be set · `·` not promised.",
        "On real time, where the clock cannot be set, ✓ says that no break was seen in this run.",
        "",
    ]
    for heading, levels in TABLES:
        laws = [name for name, entry in LAWS.items() if entry.level in levels]
        lines += [f"## {heading}", "", *table(results, laws), ""]
    lines += ["## The laws", "", "| law | level | |", "|---|---|---|"]
    lines += [f"| {entry.name} | {entry.level} | {entry.sentence} |" for entry in LAWS.values()]
    lines += [
        "",
        "## Over-admission",
        "",
        "What each target admitted in its worst interval, under bursts around the edges of windows and under clients at"
        " the same time, as a multiple of what its own algorithm may admit there.",
        "A target with a bar beyond 1 broke its bound.",
        "",
        "![Over-admission of each target](pictures/conformance.svg)",
        "",
        "How fast the libraries are is measured elsewhere: [in process](benchmarks/in-process.md),"
        " [on Redis](benchmarks/redis.md), [HTTP](benchmarks/http.md).",
        "",
        "## Failures",
        "",
        "Each with the command that shows it, after `python -m conformance install`.",
        "A failure here means that the released version does something else than the sentence says, in this"
        " configuration; it says nothing about other qualities of the library.",
        "",
        *failures(results),
    ]
    if missing:
        lines += ["## Not run", ""]
        lines += [f"- {each['target']}: {each['missing'].splitlines()[0]}" for each in missing]
        lines.append("")
    return "\n".join(lines)


def write_page(content: dict[str, Any], *, is_check: bool = False) -> int:
    """Write both files, or only say whether they are up to date."""
    results = [each for each in content["targets"] if "missing" not in each]
    wanted = {PAGE: page_text(content), CHART: chart(results)}
    if is_check:
        stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
        if stale:
            print(
                f"expected the page of the result file, got other text in {', '.join(stale)}. Run it without --check."
            )
        return len(stale)
    for path, text in wanted.items():
        path.write_text(text, "utf-8")
        print(path.relative_to(DOCS.parent))
    return 0

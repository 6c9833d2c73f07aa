"""Draw what the benchmarks recorded, beside the peers: ``python -m bench.charts [--check]``.

Reads ``bench/results/*.json`` and writes ``docs/pictures/bench-*-light.svg`` and ``-dark.svg``.  A bar ends at the best
round, and the thin line behind it at the quartile that is worse.  With ``--check`` nothing is written, and the exit
code is 1 if a chart is out of date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from bench.harness import RESULTS
from ratekeeper.algorithms import ALGORITHMS

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
FONTS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
NAMES_OF_COLOURS = ("card", "edge", "ink", "muted", "ours", "theirs")
COLOURS: dict[str, dict[str, str]] = {
    scheme: dict(zip(NAMES_OF_COLOURS, colours.split(), strict=True))
    for scheme, colours in {
        "light": "#ffffff #d5d9df #1f2328 #57606a #1f6feb #8c959f",
        "dark": "#0d1117 #30363d #e6edf3 #9198a1 #58a6ff #6e7681",
    }.items()
}
WIDTH, MARGIN, NAMES, VALUES = 760, 24, 216, 96
ROW, BAR = 26, 14
# With their versions, below a chart.
SHOWN = (
    "limits",
    "throttled-py",
    "pyrate-limiter",
    "token-bucket",
    "slowapi",
    "fastapi-limiter",
)
Figure = dict[str, Any]
Results = Mapping[str, dict[str, Any]]


@dataclass
class Panel:
    """One question, and a bar for everybody who answers it."""

    title: str
    unit: str
    better: str
    bars: Sequence[tuple[str, Figure, str]]  # a label, what was measured, and whether it is ours

    @property
    def height(self) -> int:
        return 40 + ROW * len(self.bars)


def race(results: Results, benchmark: str, title: str) -> dict[str, Figure]:
    for each in results[benchmark]["races"]:
        if each["title"] == title:
            return {figure["name"]: figure for figure in each["figures"]}
    raise KeyError(
        f"bench/results/{benchmark}.json: expected a race {title!r}. Run `python -m bench {benchmark} --json`."
    )


def by_best(bars: list[tuple[str, Figure, str]]) -> list[tuple[str, Figure, str]]:
    return sorted(bars, key=lambda bar: bar[1]["best"])


def decision(results: Results, refused: bool = False) -> Panel:
    """Our slowest algorithm beside the fastest of each peer."""
    word = "refused" if refused else "allowed"
    found = race(results, "inprocess", f"One decision, hot key, {word}")
    slowest = max((found[f"ratekeeper native {name}"] for name in ALGORITHMS), key=lambda figure: figure["best"])
    fastest: dict[str, Figure] = {}
    for name, figure in found.items():
        peer = name.split(" ")[0]
        if peer not in ("ratekeeper", "F1:") and figure["best"] < fastest.get(peer, figure)["best"] + 1e-12:
            fastest[peer] = figure
    bars = [
        ("ratekeeper, slowest of six", slowest, "ours"),
        ("d[key] += 1 in a function", found["F1: d[key] += 1"], ""),
    ]
    bars += [
        (f"{peer}, {figure['name'].split(' ')[-1].replace('_', ' ')}", figure, "") for peer, figure in fastest.items()
    ]
    return Panel(f"One decision in process, {word}", "ns", "less", by_best(bars))


def redis(results: Results, tasks: int) -> Panel:
    """CPU time: on a machine that is shared, decisions a second tell more about the others than about the client."""
    found = race(results, "redis_clients", f"One event loop, {tasks} tasks: CPU time")
    labels = {"redis-py pool, EVALSHA 'return 1'": "redis-py, an empty script"}
    bars = [(labels.get(name, name), figure, "ours" * (name == "ratekeeper")) for name, figure in found.items()]
    return Panel(f"On Redis, {tasks} tasks: CPU time of the client for a decision", "µs", "less", by_best(bars))


def request(results: Results, title: str, heading: str) -> Panel:
    found = race(results, "http", title)
    bars = [(name.removesuffix(", three match"), found[name], "ours" * name.startswith("ratekeeper")) for name in found]
    return Panel(heading, "µs", "less", by_best(bars))


def fastapi(results: Results) -> Panel:
    return request(results, "In FastAPI", "In FastAPI: CPU time that a limit adds to a request")


def memory(results: Results, algorithm: str) -> Panel:
    bars = []
    for name, figure in race(results, "memory", algorithm).items():
        label = f"ratekeeper, {name}" if name in ("native", "pure") else name
        bars.append((label, figure, "ours" * label.startswith("ratekeeper")))
    return Panel(f"Memory of a key, {algorithm.replace('_', ' ')}", "bytes", "less", by_best(bars))


CHARTS: dict[str, tuple[str, tuple[str, ...], Callable[[Results], list[Panel]]]] = {
    "overview": (
        "Beside the peers",
        ("inprocess", "redis_clients", "http"),
        lambda found: [decision(found), redis(found, 64), fastapi(found)],
    ),
    "in-process": (
        "One decision in process",
        ("inprocess",),
        lambda found: [decision(found), decision(found, refused=True)],
    ),
    "memory": (
        "What a key takes",
        ("memory",),
        lambda found: [memory(found, "sliding_log"), memory(found, "token_bucket"), memory(found, "fixed_window")],
    ),
    "redis": ("Decisions on Redis", ("redis_clients",), lambda found: [redis(found, 64), redis(found, 256)]),
    "http": (
        "What a limit adds to a request",
        ("http",),
        lambda found: [
            request(found, "Before a bare ASGI application", "In front of a bare ASGI application: CPU time added"),
            fastapi(found),
        ],
    ),
}


def conditions(found: Sequence[dict[str, Any]]) -> list[str]:
    """What stands below a chart, in lines."""
    rounds = sorted({figure["rounds"] for each in found for one in each["races"] for figure in one["figures"]})
    first = found[0]
    dates = sorted({each["date"] for each in found})
    loads = sorted({each["load"] for each in found})
    load = f"{loads[0]:g}" if len(loads) == 1 else f"{loads[0]:g} to {loads[-1]:g}"
    how = "one fresh process each" if rounds == [1] else "bars: best of interleaved rounds; thin lines: worse quartile"
    versions = {name: version for each in found for name, version in each["versions"].items()}
    shown = [
        name for name in ("limits", "throttled-py", "pyrate-limiter", "slowapi", "fastapi-limiter") if name in versions
    ]
    return [
        f"{how}. {' and '.join(dates)}, Python {first['python']}, {first['engine']} core.",
        f"{first['processor']}, {first['cores']} cores shared with other work (load {load}).",
        ", ".join(f"{name} {versions[name]}" for name in shown) + ".",
    ]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def svg(title: str, panels: Sequence[Panel], notes: Sequence[str], scheme: str) -> str:
    colour = COLOURS[scheme]
    items: list[str] = []

    def words(x: float, y: float, text: str, fill: str, size: int = 13, weight: int = 400) -> None:
        items.append(
            f'<text x="{x:g}" y="{y:g}" fill="{fill}" font-size="{size}" font-weight="{weight}">{escape(text)}</text>'
        )

    left, room = MARGIN + NAMES, WIDTH - 2 * MARGIN - NAMES - VALUES
    y = MARGIN
    for panel in panels:
        words(MARGIN, y + 14, panel.title, colour["ink"], 15, 600)
        better = f"{panel.unit + ', ' if panel.unit else ''}{panel.better} is better"
        items.append(
            f'<text x="{WIDTH - MARGIN}" y="{y + 14:g}" fill="{colour["muted"]}" font-size="12" text-anchor="end">'
            f"{escape(better)}</text>"
        )
        worse = "quartile_1" if panel.better == "more" else "quartile_3"
        most = max(max(figure["best"], figure[worse]) for _, figure, _ in panel.bars)
        for place, (label, figure, ours) in enumerate(panel.bars):
            top = y + 28 + ROW * place
            fill = colour["ours"] if ours else colour["theirs"]
            end, spread = (left + room * figure[key] / most for key in ("best", worse))
            words(MARGIN, top + 12, label, colour["ink"], 13, 600 if ours else 400)
            items.append(
                f'<rect x="{left}" y="{top:g}" width="{max(1.5, end - left):.1f}" height="{BAR}" rx="2" fill="{fill}"/>'
            )
            if abs(spread - end) > 1:
                line = f"M{end:.1f} {top + BAR / 2:g}L{spread:.1f} {top + BAR / 2:g}"
                items.append(f'<path d="{line}" stroke="{colour["ink"]}" stroke-width="1.5"/>')
            unit = f" {panel.unit}" if panel.unit else ""
            words(
                max(end, spread) + 8, top + 12, number(figure["best"]) + unit, colour["ink"], 13, 600 if ours else 400
            )
        y += panel.height + 12
    for note in notes:
        words(MARGIN, y + 8, note, colour["muted"], 11)
        y += 16
    height = y + MARGIN - 8
    head = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" font-family="{FONTS}" role="img"'
    frame = f'x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="10"'
    frame += f' fill="{colour["card"]}" stroke="{colour["edge"]}"'
    return "\n".join([f'<svg {head} aria-label="{escape(title)}">', f"<rect {frame}/>", *items, "</svg>\n"])


def main(arguments: Sequence[str]) -> int:
    results = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("*.json"))}
    stale = 0
    for name, (title, sources, panels) in CHARTS.items():
        notes = conditions([results[source] for source in sources])
        for scheme in COLOURS:
            path, drawn = PICTURES / f"bench-{name}-{scheme}.svg", svg(title, panels(results), notes, scheme)
            if "--check" not in arguments:
                path.write_text(drawn, "utf-8")
            elif not path.is_file() or path.read_text("utf-8") != drawn:
                print(f"{path.name}: expected a chart of bench/results, got another. Run `python -m bench.charts`.")
                stale += 1
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

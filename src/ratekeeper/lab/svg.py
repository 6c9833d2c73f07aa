"""Small charts for the report, as SVG and HTML; the style sheet of the page colours them.

Labels are HTML beside the SVG: a narrow screen squeezes the SVG, and must not squeeze the letters.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from math import log10
from typing import TYPE_CHECKING

from ratekeeper.lab.text import duration, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.outcome import RankOutcome

WIDTH, HEIGHT = 960, 130

Ticks = list[tuple[float, str]]  # the distance from the left, 0 to 1, and the label
MOST_TICKS = 7
DAY = 86_400
STEPS = (
    *(10.0**power * size for power in range(-6, 0) for size in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 365 * DAY, 3650 * DAY),
)


def time_ticks(seconds: float, start: datetime | None = None) -> Ticks:
    """Return ticks at round times: elapsed since 0, or by the clock if the stretch begins at ``start``."""
    step = next((step for step in STEPS if seconds / step <= MOST_TICKS), STEPS[-1])
    began = start.timestamp() if start else 0.0
    # A label extends to the right of its tick, so the last 7 % have none.
    numbers = range(-int(-began // step), int((began + 0.93 * seconds) / step) + 1)
    return [((at - began) / seconds, tick_label(at, step, start is not None)) for at in (step * n for n in numbers)]


def tick_label(at: float, step: float, by_the_clock: bool) -> str:
    if not by_the_clock:
        return duration(at) if at else "0"
    stamp = datetime.fromtimestamp(at, UTC)
    return stamp.strftime("%b %d" if not at % DAY else "%H:%M" if not step % 60 else "%H:%M:%S")


def stacked_bars(admitted: Sequence[int], refused: Sequence[int], ticks: Ticks, most: int) -> str:
    """Draw bars over time: admitted below, refused on top."""
    step = WIDTH / max(1, len(admitted))
    bars = []
    for number, (low, high) in enumerate(zip(admitted, refused, strict=True)):
        left, width = number * step, step * 0.92
        low_height, high_height = HEIGHT * low / max(1, most), HEIGHT * high / max(1, most)
        if low:
            bars.append(rectangle("a", left, HEIGHT - low_height, width, low_height))
        if high:
            bars.append(rectangle("r", left, HEIGHT - low_height - high_height, width, high_height))
    return chart("".join(bars), f"{most:,}", "0", ticks)


def rank_bars(ranks: Sequence[RankOutcome]) -> str:
    """Draw, for each rank of clients, the share that is refused at least once."""
    lines = []
    for rank in ranks:
        share = rank.clients_refused / max(1, rank.clients)
        label = f"<b>{escape(rank.rank)}</b>, {plural(rank.clients, 'client')}"
        if rank.clients:
            label += f", {rank.least_per_minute:,} or more requests in their busiest minute"
        requests = f"{rank.refused:,} of {rank.requests:,} requests"
        caption = f"{100 * share:.1f} % are refused at least once ({rank.clients_refused:,}); {requests}"
        bar = f'<div class="bar"><div style="width:{max(0.3, 100 * share):.1f}%"></div></div>'
        lines.append(f'<div class="rank">{label}{bar}<span class="quiet">{caption}</span></div>')
    return "".join(lines)


def curve(points: Sequence[tuple[int, int]], clients: int, now: int, then: int) -> str:
    """Draw how many clients a limit refuses, by its count, on a logarithmic scale."""
    most = max(2, *(count for count, _ in points), now, then)

    def across(count: int) -> float:
        return 0.98 * log10(max(1, count)) / log10(most)

    steps = [(WIDTH * across(count), HEIGHT * (1 - refused / max(1, clients))) for count, refused in points]
    path = f"M{steps[0][0]:.1f} {steps[0][1]:.1f} " + " ".join(f"H{x:.1f} V{y:.1f}" for x, y in steps[1:])
    marks = [
        f'<line class="{kind}" x1="{WIDTH * across(count):.1f}" x2="{WIDTH * across(count):.1f}" y1="0" y2="{HEIGHT}"/>'
        for kind, count in (("mark", now), ("mark then", then))
    ]
    counts = [10**power for power in range(len(str(most))) if 10**power <= most]
    if len(counts) < 3:
        counts = sorted({*counts, *(size * ten for ten in counts for size in (2, 5) if size * ten <= most)})
    ticks = [(across(count), f"{count:,}") for count in counts]
    return chart(f'<path class="curve" d="{path}"/>{"".join(marks)}', "100 %", "0 %", ticks)


def rectangle(kind: str, left: float, top: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"/>'


def chart(shapes: str, top: str, bottom: str, ticks: Ticks) -> str:
    labels = "".join(f'<span style="left:{100 * place:.1f}%">{escape(text)}</span>' for place, text in ticks)
    name = (
        f'role="img" aria-label="Chart from {escape(bottom)} to {escape(top)}"'  # the caption of its figure says more
    )
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" {name}>{shapes}</svg>'
    sides = f'<div class="sides"><span>{escape(top)}</span><span>{escape(bottom)}</span></div>'
    return f'<div class="plot">{sides}<div class="field">{svg}<div class="ticks">{labels}</div></div></div>'

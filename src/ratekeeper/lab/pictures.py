"""Small pictures for the report, as SVG and HTML text; the page's style sheet colours them.

Words stand beside the SVG, not in it: a picture is squeezed on a telephone, and its words must not be.
"""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.replay import RankOutcome

WIDE, HIGH = 960, 130

Ticks = list[tuple[float, str]]  # how far from the left, 0 to 1, and what stands there


def stacked(admitted: Sequence[int], refused: Sequence[int], ticks: Ticks, most: int) -> str:
    """Bars over time: what was admitted, and on top of it what was refused."""
    step = WIDE / max(1, len(admitted))
    bars = []
    for place, (low, high) in enumerate(zip(admitted, refused, strict=True)):
        left, wide = place * step, step * 0.92
        tall, lost = HIGH * low / max(1, most), HIGH * high / max(1, most)
        if low:
            bars.append(rectangle("a", left, HIGH - tall, wide, tall))
        if high:
            bars.append(rectangle("r", left, HIGH - tall - lost, wide, lost))
    return plot("".join(bars), f"{most:,}", "0", ticks)


def ranks(rows: Sequence[RankOutcome]) -> str:
    """For each rank of clients, the share that is ever refused."""
    lines = []
    for row in rows:
        part = row.clients_refused / max(1, row.clients)
        label = f"<b>{escape(row.rank)}</b>, {row.clients:,} clients, {row.least_per_minute:,} or more in a minute"
        requests = f"{row.refused:,} of {row.requests:,} requests"
        told = f"{100 * part:.1f} % are ever refused ({row.clients_refused:,}); {requests}"
        bar = f'<div class="bar"><div style="width:{max(0.3, 100 * part):.1f}%"></div></div>'
        lines.append(f'<div class="rank">{label}{bar}<span class="quiet">{told}</span></div>')
    return "".join(lines)


def curve(points: Sequence[tuple[int, int]], clients: int, now: int, then: int) -> str:
    """How many clients a limit would ever refuse, by its count; the counts on a scale of proportions."""
    most = max(2, *(count for count, _ in points), now, then)

    def across(count: int) -> float:
        return 0.98 * log10(max(1, count)) / log10(most)

    path = " ".join(
        f"{'L' if place else 'M'}{WIDE * across(count):.1f} {HIGH * (1 - refused / max(1, clients)):.1f}"
        for place, (count, refused) in enumerate(points)
    )
    marks = [
        f'<line class="{kind}" x1="{WIDE * across(count):.1f}" x2="{WIDE * across(count):.1f}" y1="0" y2="{HIGH}"/>'
        for kind, count in (("mark", now), ("mark then", then))
    ]
    steps = [10**power for power in range(len(str(most))) if 10**power <= most]
    if len(steps) < 3:
        steps = sorted({*steps, *(size * step for step in steps for size in (2, 5) if size * step <= most)})
    ticks = [(across(step), f"{step:,}") for step in steps]
    return plot(f'<path class="curve" d="{path}"/>{"".join(marks)}', "100 %", "0 %", ticks)


def rectangle(kind: str, left: float, top: float, wide: float, tall: float) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'


def plot(inside: str, top: str, bottom: str, ticks: Ticks) -> str:
    words = "".join(f'<span style="left:{100 * place:.1f}%">{escape(text)}</span>' for place, text in ticks)
    drawn = f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img">{inside}</svg>'
    sides = f'<div class="sides"><span>{escape(top)}</span><span>{escape(bottom)}</span></div>'
    return f'<div class="plot">{sides}<div class="field">{drawn}<div class="ticks">{words}</div></div></div>'

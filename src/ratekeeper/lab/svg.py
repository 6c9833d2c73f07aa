"""Small pictures for the report, as SVG text; the page's style sheet colours them."""

from __future__ import annotations

from html import escape
from math import log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.replay import RankOutcome

WIDE, HIGH, FOOT = 960, 150, 18


def hours(length: float, parts: int) -> list[float]:
    """Instants that divide a length into so many parts."""
    return [length * part / parts for part in range(parts)]


def stacked(admitted: Sequence[int], refused: Sequence[int], labels: Sequence[str], most: int) -> str:
    """Bars over time: what was admitted, and on top of it what was refused."""
    if not admitted:
        return svg(HIGH, "")
    step = WIDE / len(admitted)
    bars = []
    for place, (low, high) in enumerate(zip(admitted, refused, strict=True)):
        left, wide = place * step, max(0.5, step * 0.92)
        tall, lost = (HIGH - FOOT - 12) * low / max(1, most), (HIGH - FOOT - 12) * high / max(1, most)
        if low:
            bars.append(rectangle("a", left, HIGH - FOOT - tall, wide, tall))
        if high:
            bars.append(rectangle("r", left, HIGH - FOOT - tall - lost, wide, lost))
    marks = [
        f'<text x="{WIDE * number / len(labels):.0f}" y="{HIGH - 4}">{escape(label)}</text>'
        for number, label in enumerate(labels)
    ]
    top = f'<text x="0" y="10">{most:,}</text>'
    return svg(HIGH, "".join([*bars, axis(HIGH - FOOT), *marks, top]))


def ranks(rows: Sequence[RankOutcome]) -> str:
    """For each rank of clients, the share that is ever refused."""
    lines = []
    for number, row in enumerate(rows):
        top = 8 + 40 * number
        part = row.clients_refused / max(1, row.clients)
        label = f"{row.rank}: {row.clients:,} clients, up from {row.least_per_minute:,} a minute"
        told = (
            f"{100 * part:.1f} % ever refused ({row.clients_refused:,}); {row.refused:,} of {row.requests:,} requests"
        )
        lines.append(f'<text x="0" y="{top + 10}">{escape(label)}</text>')
        lines.append(rectangle("r", 0, top + 15, max(1.0, (WIDE - 330) * part), 12))
        lines.append(f'<text x="{max(1.0, (WIDE - 330) * part) + 8:.0f}" y="{top + 25}">{escape(told)}</text>')
    return svg(8 + 40 * len(rows), "".join(lines))


def curve(points: Sequence[tuple[int, int]], clients: int, now: int, then: int) -> str:
    """How many clients a limit would ever refuse, by its count; the counts on a scale of proportions."""
    most = max(2, *(count for count, _ in points), now, then)
    foot = HIGH - FOOT

    def across(count: int) -> float:
        return 60 + (WIDE - 80) * log10(max(1, count)) / log10(most)

    def down(refused: int) -> float:
        return 12 + (foot - 12) * (1 - refused / max(1, clients))

    path = " ".join(f"{'L' if place else 'M'}{across(c):.1f} {down(r):.1f}" for place, (c, r) in enumerate(points))
    ticks = []
    step = 1
    while step <= most:
        ticks.append(f'<text x="{across(step):.0f}" y="{HIGH - 4}">{step:,}</text>')
        step *= 10
    marks = [
        f'<line class="{kind}" x1="{across(count):.1f}" x2="{across(count):.1f}" y1="10" y2="{foot}"/>'
        f'<text x="{across(count) + 4:.0f}" y="{22 + 14 * row}">{word} {count:,}</text>'
        for row, (kind, count, word) in enumerate([("mark", now, "now"), ("mark then", then, "suggested")])
    ]
    sides = f'<text x="0" y="16">100 %</text><text x="0" y="{foot}">0 %</text>'
    return svg(HIGH, f'<path class="curve" d="{path}"/>{axis(foot)}{"".join(ticks + marks)}{sides}')


def rectangle(kind: str, left: float, top: float, wide: float, tall: float) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'


def axis(y: float) -> str:
    return f'<line class="axis" x1="0" x2="{WIDE}" y1="{y}" y2="{y}"/>'


def svg(high: int, inside: str) -> str:
    return f'<svg viewBox="0 0 {WIDE} {high}" role="img">{inside}</svg>'

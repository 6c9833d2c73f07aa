"""Small pictures for the report, as SVG and HTML text; the page's style sheet colours them.

Words stand beside the SVG, not in it: a picture is squeezed on a telephone, and its words must not be.
"""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from math import log10
from typing import TYPE_CHECKING

from ratekeeper.lab.text import counted, duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.outcome import RankOutcome

WIDE, HIGH = 960, 130

Ticks = list[tuple[float, str]]  # how far from the left, 0 to 1, and what stands there
MOST_TICKS = 7
DAY = 86_400
STEPS = (
    *(10.0**power * size for power in range(-6, 0) for size in (1, 2, 5)),
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600),
    *(DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY, 91 * DAY, 182 * DAY, 365 * DAY, 3650 * DAY),
)


def ticks_of(seconds: float, start: datetime | None = None) -> Ticks:
    """Marks at round times of a stretch: since its beginning, or by the clock if it begins at ``start``."""
    step = next((step for step in STEPS if seconds / step <= MOST_TICKS), STEPS[-1])
    began = start.timestamp() if start else 0.0
    # A mark's words begin where it stands, so there is none at the very end.
    numbers = range(-int(-began // step), int((began + 0.93 * seconds) / step) + 1)
    return [((at - began) / seconds, told(at, step, start is not None)) for at in (step * n for n in numbers)]


def told(at: float, step: float, by_the_clock: bool) -> str:
    if not by_the_clock:
        return duration(at) if at else "0"
    stamp = datetime.fromtimestamp(at, UTC)
    return stamp.strftime("%b %d" if not at % DAY else "%H:%M" if not step % 60 else "%H:%M:%S")


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
        label = f"<b>{escape(row.rank)}</b>, {counted(row.clients, 'client')}"
        if row.clients:
            label += f", {row.least_per_minute:,} or more in a minute"
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

    steps = [(WIDE * across(count), HIGH * (1 - refused / max(1, clients))) for count, refused in points]
    path = f"M{steps[0][0]:.1f} {steps[0][1]:.1f} " + " ".join(f"H{x:.1f} V{y:.1f}" for x, y in steps[1:])
    marks = [
        f'<line class="{kind}" x1="{WIDE * across(count):.1f}" x2="{WIDE * across(count):.1f}" y1="0" y2="{HIGH}"/>'
        for kind, count in (("mark", now), ("mark then", then))
    ]
    tens = [10**power for power in range(len(str(most))) if 10**power <= most]
    if len(tens) < 3:
        tens = sorted({*tens, *(size * ten for ten in tens for size in (2, 5) if size * ten <= most)})
    ticks = [(across(ten), f"{ten:,}") for ten in tens]
    return plot(f'<path class="curve" d="{path}"/>{"".join(marks)}', "100 %", "0 %", ticks)


def rectangle(kind: str, left: float, top: float, wide: float, tall: float) -> str:
    return f'<rect class="{kind}" x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'


def plot(inside: str, top: str, bottom: str, ticks: Ticks) -> str:
    words = "".join(f'<span style="left:{100 * place:.1f}%">{escape(text)}</span>' for place, text in ticks)
    drawn = f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img">{inside}</svg>'
    sides = f'<div class="sides"><span>{escape(top)}</span><span>{escape(bottom)}</span></div>'
    return f'<div class="plot">{sides}<div class="field">{drawn}<div class="ticks">{words}</div></div></div>'

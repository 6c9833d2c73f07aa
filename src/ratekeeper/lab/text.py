"""Tables and bars for the terminal."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.simulate import Lane, Simulation

BLOCKS, DIGITS = " ▁▂▃▄▅▆▇█", " 12345678"
GREEN, RED, DIM, BOLD = "32", "31", "2", "1"


def duration(seconds: float) -> str:
    """``90 s`` -> ``1.5 min``: in the unit a person would say."""
    if not seconds:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (0.001, "ms")):
        if seconds >= size:
            return f"{seconds / size:{'.3g' if seconds / size < 100 else ',.0f'}} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def counted(number: int, what: str) -> str:
    """``1 client``, ``2,000 clients``."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    if not share:
        return "0 %"
    return f"{share:.1%}".replace("%", " %") if share >= 0.01 else f"{100 * share:.2g} %"


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Rows under a head, which may have lines; the first ``left`` columns to the left, the others to the right."""
    parts = [cell.split("\n") for cell in head]
    high = max(map(len, parts))
    heads = list(zip(*[[""] * (high - len(part)) + part for part in parts], strict=True))
    widths = [max(map(len, cells)) for cells in zip(*heads, *rows, strict=True)]
    lines = []
    for row in [*heads, ["─" * width for width in widths], *rows]:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def bars(counts: Sequence[int], width: int, most: float, colour: str = "", heights: str = BLOCKS) -> str:
    """One line of bars, ``width`` of them; the highest stands for ``most`` in a column."""
    pressed = squeezed(counts, width)
    top = len(heights) - 1
    cells = [heights[min(top, -(-round(count * top * 1000 / most) // 1000)) if most else 0] for count in pressed]
    return coloured("".join(cells).rstrip(), colour)


def squeezed(counts: Sequence[int], width: int) -> list[float]:
    """The counts summed up into ``width`` columns."""
    if len(counts) <= width:
        return list(counts)
    edges = [number * len(counts) // width for number in range(width + 1)]
    return [sum(counts[start:stop]) for start, stop in pairwise(edges)]


def coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code and text.strip() else text


LANE_HEAD = (
    *("limit", "admitted", "refused", "worst\nwindow", "worst\nsecond", "longest\nwait", "shut\nout"),
    *("wrongly\nadmitted", "wrongly\nrefused", "fairness", "bytes a\nclient"),
)
HALF = 7  # of these columns stand in a first table where there is no room for all


def lane_cells(lane: Lane) -> list[str]:
    return [
        lane.limit if lane.algorithm in lane.limit else f"{lane.limit} {lane.algorithm}",
        f"{lane.admitted:,}",
        f"{lane.refused:,}",
        f"{lane.worst_window_ratio:.2f} x",
        f"{lane.worst_second:,}",
        duration(lane.longest_delay),
        duration(lane.longest_shut_out),
        f"{lane.wrongly_admitted:,} ({percent(lane.wrongly_admitted / max(1, lane.calls))})",
        f"{lane.wrongly_refused:,} ({percent(lane.wrongly_refused / max(1, lane.calls))})",
        f"{lane.fairness:.3f}",
        f"{lane.state_bytes:,.0f}",
    ]


def lanes_as_text(simulation: Simulation, width: int = 100, colours: bool = False, heights: str = BLOCKS) -> str:
    """The lanes as a table and as bars over time: what was asked, admitted and refused."""
    green, red, dim = (GREEN, RED, DIM) if colours else ("", "", "")
    traffic = simulation.traffic
    who = "counted as one" if simulation.shared else "each for itself"
    seed = f", seed {traffic.seed}" if traffic.seed is not None else ""
    calls = f"{counted(len(traffic), 'call')} by {counted(len(traffic.clients), 'client')} ({who})"
    lines = [f"{traffic.name}: {calls} in {duration(traffic.span / 1e6)}{seed}", ""]
    rows = [lane_cells(lane) for lane in simulation.lanes]
    table = columns(LANE_HEAD, rows)
    if max(map(len, table)) > width:
        later = [(row[0], *row[HALF:]) for row in [LANE_HEAD, *rows]]
        table = [*columns(LANE_HEAD[:HALF], [row[:HALF] for row in rows]), "", *columns(later[0], later[1:])]
    lines += table
    label = max(len(lane_cells(lane)[0]) for lane in simulation.lanes) + 2
    room = max(20, width - label)
    most = max((max(squeezed(lane.asked_in_bin, room)) for lane in simulation.lanes), default=0)
    before: list[int] = []
    for lane in simulation.lanes:
        lines.append("")
        if lane.asked_in_bin != before:  # with retries each lane is asked otherwise
            before = lane.asked_in_bin
            lines.append(coloured("asked".rjust(label - 2), dim) + "  " + bars(before, room, most, dim, heights))
        lines += [
            lane_cells(lane)[0].ljust(label) + bars(lane.admitted_in_bin, room, most, green, heights),
            coloured("refused".rjust(label - 2), dim) + "  " + bars(lane.refused_in_bin, room, most, red, heights),
        ]
    return "\n".join(line.rstrip() for line in lines)

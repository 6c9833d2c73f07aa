"""Tables and bars for the terminal: a simulation, a replay, and the parts they are drawn with."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ratekeeper.lab.compare import Comparison
    from ratekeeper.lab.outcome import Replay
    from ratekeeper.lab.simulate import Lane, Simulation
    from ratekeeper.lab.suggest import Suggestion

BOLD, DIM, RED, GREEN, AMBER = "1", "2", "31", "32", "33"  # ANSI codes
LONGEST_CELL = 60


class Style(NamedTuple):
    """How to draw: with or without colours, and with characters that the output can encode."""

    colours: bool = False
    heights: str = " ▁▂▃▄▅▆▇█"
    rule: str = "─"

    def coloured(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colours and code and text.strip() else text

    def bars(self, counts: Sequence[int], width: int, most: float, code: str = "") -> str:
        """Draw ``width`` bars in one line; a full one stands for ``most``."""
        full = len(self.heights) - 1
        cells = [
            self.heights[min(full, -(-round(count * full * 1000 / most) // 1000)) if most else 0]
            for count in squeezed(counts, width)
        ]
        return self.coloured("".join(cells).rstrip(), code)

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
        """Draw a table; cells of the head may have several lines, and the first ``left`` columns are left-aligned."""
        parts = [cell.split("\n") for cell in head]
        height = max(map(len, parts))
        heads = list(zip(*[[""] * (height - len(part)) + part for part in parts], strict=True))
        widths = [max(map(len, cells)) for cells in zip(*heads, *rows, strict=True)]
        lines = []
        for row in [*heads, [self.rule * width for width in widths], *rows]:
            cells = [
                cell.ljust(width) if number < left else cell.rjust(width)
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return lines


PLAIN = Style()


def style_for(encoding: str | None, colours: bool) -> Style:
    """Choose a style that an output with this encoding can show."""
    try:
        (PLAIN.heights + PLAIN.rule).encode(encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return Style(colours, " 12345678", "-")
    return Style(colours)


def squeezed(counts: Sequence[int], width: int) -> list[float]:
    """Add the counts up into at most ``width`` columns."""
    if len(counts) <= width:
        return list(counts)
    edges = [number * len(counts) // width for number in range(width + 1)]
    return [sum(counts[start:stop]) for start, stop in pairwise(edges)]


def duration(seconds: float) -> str:
    """``90`` -> ``1.5 min``: in the unit that a person would choose."""
    if not seconds:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"), (0.001, "ms")):
        if seconds >= size:
            return f"{seconds / size:{'.3g' if seconds / size < 100 else ',.0f'}} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def plural(number: int, noun: str) -> str:
    """``1 client``, ``2,000 clients``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    if not share:
        return "0 %"
    return f"{share:.1%}".replace("%", " %") if share >= 0.01 else f"{100 * share:.2g} %"


def percent_of(part: int, total: int) -> str:
    return percent(part / total if total else 0.0)


def printable(text: str, most: int = LONGEST_CELL) -> str:
    """Make text from a log safe to show: clients may put control sequences of terminals into it."""
    safe = "".join(letter if letter.isprintable() else "·" for letter in text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"


LANE_HEAD = (
    *("limit", "admitted", "refused", "worst\nwindow", "worst\nsecond", "longest\nwait", "shut\nout"),
    *("differs from a\nsliding log", "fairness", "bytes per\nclient"),
)
FIRST_COLUMNS = 7  # columns of the first table, where the terminal is too narrow for one table


def lane_cells(lane: Lane) -> list[str]:
    return [
        lane.limit if lane.algorithm in lane.limit else f"{lane.limit} {lane.algorithm}",
        f"{lane.admitted:,}",
        f"{lane.refused:,}",
        f"{lane.worst_window_ratio:.2f} x",
        f"{lane.worst_second:,}",
        duration(lane.longest_delay),
        duration(lane.longest_shut_out),
        differences(lane),
        f"{lane.fairness:.3f}",
        f"{lane.state_bytes:,.0f}",
    ]


def differences(lane: Lane) -> str:
    """``5 (1.2 %): +4 −1``: decisions that differ, and how many of them admit or refuse what the log would not."""
    total = lane.wrongly_admitted + lane.wrongly_refused
    if not total:
        return "0"
    return f"{total:,} ({percent(lane.wrong)}): +{lane.wrongly_admitted:,} −{lane.wrongly_refused:,}"


def traffic_summary(simulation: Simulation) -> str:
    """``80 calls by 1 client (one counter each) in 12 s, seed 1``."""
    traffic = simulation.traffic
    counters = "one shared counter" if simulation.shared else "one counter each"
    seed = f", seed {traffic.seed}" if traffic.seed is not None else ""
    calls = f"{plural(len(traffic), 'call')} by {plural(len(traffic.clients), 'client')} ({counters})"
    return f"{calls} in {duration(traffic.span / 1e6)}{seed}"


def simulation_as_text(simulation: Simulation, width: int = 100, style: Style = PLAIN) -> str:
    """Draw the lanes as a table, and as bars over time: calls, admitted and refused."""
    lines = [f"{simulation.traffic.name}: {traffic_summary(simulation)}", ""]
    rows = [lane_cells(lane) for lane in simulation.lanes]
    table = style.table(LANE_HEAD, rows)
    if max(map(len, table)) > width:
        rest = [(row[0], *row[FIRST_COLUMNS:]) for row in [LANE_HEAD, *rows]]
        first = style.table(LANE_HEAD[:FIRST_COLUMNS], [row[:FIRST_COLUMNS] for row in rows])
        table = [*first, "", *style.table(rest[0], rest[1:])]
    lines += table
    margin = max(len(row[0]) for row in rows) + 2
    room = max(20, width - margin)
    most = max((max(squeezed(lane.asked_in_bin, room)) for lane in simulation.lanes), default=0)
    calls, refused = (style.coloured(word.rjust(margin - 2), DIM) + "  " for word in ("calls", "refused"))
    drawn: list[int] = []
    for lane, row in zip(simulation.lanes, rows, strict=True):
        lines.append("")
        if lane.asked_in_bin != drawn:  # retries make the calls of each lane different
            drawn = lane.asked_in_bin
            lines.append(calls + style.bars(drawn, room, most, DIM))
        lines += [
            row[0].ljust(margin) + style.bars(lane.admitted_in_bin, room, most, GREEN),
            refused + style.bars(lane.refused_in_bin, room, most, RED),
        ]
    return "\n".join(line.rstrip() for line in lines)


def replay_as_text(replay: Replay, width: int = 100, style: Style = PLAIN) -> str:
    """Draw the result of a replay, the most important figures first."""
    lines = [
        f"{plural(replay.requests, 'request')} by {plural(replay.clients, 'client')}, "
        f"{replay.first_at} to {replay.last_at}"
        if replay.requests
        else "the logs have no requests",
        f"{replay.refused:,} would be refused ({percent_of(replay.refused, replay.requests)}), "
        f"from {plural(replay.clients_refused, 'client')} ({percent_of(replay.clients_refused, replay.clients)})",
    ]
    if replay.calm_clients:
        lines.append(
            f"of the calmest 99 % of clients, {replay.calm_clients_refused:,} of {replay.calm_clients:,} would be "
            f"refused at least once ({percent_of(replay.calm_clients_refused, replay.calm_clients)})"
        )
    lines += [style.coloured(line, DIM) for line in notes(replay)]
    margin = len("requests  ")
    room = width - margin
    most = max(squeezed(replay.asked_in_bin, room), default=0)
    lines += [
        "",
        "requests".ljust(margin) + style.bars(replay.asked_in_bin, room, most, GREEN),
        "refused".ljust(margin) + style.bars(replay.refused_in_bin, room, most, RED),
        "",
        *style.table(
            ["rule", "limit", "mode", "requests", "refused", "clients\nrefused", "in\nshadow", "longest\nwait"],
            [
                [
                    printable(rule.rule), printable(rule.limit, 40), rule.mode, f"{rule.asked:,}", f"{rule.refused:,}",
                    f"{rule.clients_refused:,}", f"{rule.refused_in_shadow:,}",
                    "forever" if rule.longest_wait is None else duration(rule.longest_wait),
                ]
                for rule in replay.rules
            ],
            left=3,
        ),
        "",
        *style.table(
            ["clients by their\nbusiest minute", "clients", "ever refused", "requests", "refused",
             "at least\nper minute"],
            [
                [
                    rank.rank, f"{rank.clients:,}",
                    f"{rank.clients_refused:,} ({percent_of(rank.clients_refused, rank.clients)})",
                    f"{rank.requests:,}", f"{rank.refused:,} ({percent_of(rank.refused, rank.requests)})",
                    f"{rank.least_per_minute:,}",
                ]
                for rank in replay.ranks
            ],
        ),
    ]  # fmt: skip
    if replay.top_refused:
        lines += ["", *refused_clients_table(replay, style)]
    if replay.top_refused_paths:
        paths = replay.top_refused_paths[:10]
        rows = [[printable(path.path), f"{path.requests:,}", f"{path.refused:,}"] for path in paths]
        lines += ["", *style.table(["most refused paths", "requests", "refused"], rows)]
    if replay.suggestions:
        lines += ["", *suggestions_table(replay.suggestions, style)]
    if replay.comparison is not None:
        lines += ["", *comparison_lines(replay.comparison)]
    return "\n".join(line.rstrip() for line in lines)


def notes(replay: Replay) -> list[str]:
    """Say what a reader must know to trust the figures."""
    lines = [f"{printable(reason, 200)}; the lines before that are counted" for reason in replay.broken]
    if replay.bad_lines:
        lines.append(f"{replay.bad_lines:,} of {replay.lines:,} lines could not be read, for example:")
        lines += [f"  {bad.source}:{bad.number}: {bad.reason}: {printable(bad.text)}" for bad in replay.bad_shown]
    if "ignored" in replay.zones:
        lines.append("time zones are ignored: with them the lines would run backwards (--zone written keeps them)")
    if replay.late_lines:
        lines.append(
            f"{plural(replay.late_lines, 'line')} out of order by more than 10 s, counted at the time of the lines "
            "around; --sort puts all lines in order first"
        )
    if replay.set_back:
        lines.append(
            f"the log goes back in time {plural(replay.set_back, 'time')}, as if its clock had been set back: the "
            "lines after that are shifted to follow on; if its lines are only out of order, use --sort"
        )
    if not replay.exact:
        lines.append("there were too many clients or paths to count each: the calmest are counted together")
    lines += [f"rules: {warning}" for warning in replay.warnings]
    return lines


def refused_clients_table(replay: Replay, style: Style) -> list[str]:
    head = [
        *("most refused clients", "rule", "requests", "refused", "busiest\nminute", "first refused at"),
        "longest\nstretch",
    ]
    rows = [
        [
            printable(client.client, 40), printable(" ".join(client.rules), 30), f"{client.requests:,}",
            f"{client.refused:,}", f"{client.busiest_minute:,}", client.first_refused_at or "",
            duration(client.longest_refused),
        ]
        for client in replay.top_refused[:10]
    ]  # fmt: skip
    return style.table(head, rows, left=2)


def suggestions_table(suggestions: tuple[Suggestion, ...], style: Style) -> list[str]:
    title = f"lowest limit that refuses\nat most {percent(suggestions[0].share)} of clients"
    head = [title, "now", "refuses", "suggested", "refuses"]
    rows = [
        [
            printable(suggestion.rule), suggestion.now, f"{suggestion.refused_now:,} of {suggestion.clients:,}",
            suggestion.suggested, f"{suggestion.refused_then:,} of {suggestion.clients:,}",
        ]
        for suggestion in suggestions
    ]  # fmt: skip
    return style.table(head, rows, left=2)


def comparison_lines(comparison: Comparison) -> list[str]:
    lines = [
        f"compared with the current rules: {plural(comparison.newly_refused, 'request')} from "
        f"{plural(comparison.clients_newly_refused, 'client')} newly refused, "
        f"{comparison.newly_allowed:,} from {comparison.clients_newly_allowed:,} newly allowed",
        f"unchanged: {comparison.allowed_by_both:,} allowed, {comparison.refused_by_both:,} refused",
    ]
    for title, clients in (
        ("newly refused", comparison.newly_refused_clients),
        ("newly allowed", comparison.newly_allowed_clients),
    ):
        lines += [f"  {title}: {printable(name)} ({count:,})" for name, count in clients[:5]]
    return lines

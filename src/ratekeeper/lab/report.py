"""An interactive report in one HTML file.  The page loads nothing from any server.

All text from a log is escaped, because clients choose what it contains.
"""

from __future__ import annotations

import json
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import BUCKETS
from ratekeeper.calendars import UNITS, calendar_of
from ratekeeper.errors import InvalidInput
from ratekeeper.lab.files import open_for_writing
from ratekeeper.lab.svg import curve, rank_bars, stacked_bars, time_ticks
from ratekeeper.lab.text import (
    LANE_HEAD,
    duration,
    lane_cells,
    notes,
    percent,
    percent_of,
    plural,
    printable,
    traffic_summary,
)
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ratekeeper.lab.compare import Comparison
    from ratekeeper.lab.outcome import ClientOutcome, PathOutcome, Replay
    from ratekeeper.lab.simulate import Simulation

MOST_PLAYED = 20_000  # calls that the page can decide again while a slider moves
WIDE = 9  # a table of more columns gets a smaller font


def write_simulation(simulation: Simulation, path: str | Path) -> None:
    """Write the report of a simulation."""
    with open_for_writing(path) as file:
        file.write(simulation_page(simulation))


def write_replay(replay: Replay, path: str | Path) -> None:
    """Write the report of a replay."""
    with open_for_writing(path) as file:
        file.write(replay_page(replay))


def simulation_page(simulation: Simulation) -> str:
    traffic = simulation.traffic
    body = [
        f"<h1>{escape(traffic.name)}: {plural(len(simulation.lanes), 'limit')} under the same calls</h1>",
        f'<p class="quiet">{escape(traffic_summary(simulation))}.</p>',
        "<h2>Side by side</h2>",
        table(LANE_HEAD, [lane_cells(lane) for lane in simulation.lanes]),
        f'<p class="quiet">{escape(FIGURES_MEAN)}</p>',
        "<h2>Over time</h2>",
        f'<p class="legend quiet">{LEGEND}</p>',
    ]
    most = max((max(lane.asked_in_bin) for lane in simulation.lanes), default=1)
    for lane in simulation.lanes:
        length = lane.bin_seconds * len(lane.asked_in_bin)
        bars = stacked_bars(lane.admitted_in_bin, lane.refused_in_bin, time_ticks(length), most)
        caption = f"<b>{escape(lane_cells(lane)[0])}</b>: {lane.admitted:,} admitted, {lane.refused:,} refused"
        body.append(f"<figure>{bars}<figcaption>{caption}</figcaption></figure>")
    # The sliders start at a bucket if there is one, because it has a burst.
    lanes = sorted(simulation.lanes, key=lambda lane: lane.algorithm not in BUCKETS)
    first = first_limit(lanes[0].limit)
    about = "This page decides the same calls again while you move the sliders."
    if traffic.retry is not None:
        about += " It leaves out retries: here, refused clients do not come back."
    if len(traffic) > MOST_PLAYED:
        about += f" It uses the first {MOST_PLAYED:,} calls."
    calls = {
        **in_steps(traffic.times[:MOST_PLAYED].tolist(), traffic.origin),
        "who": traffic.who[:MOST_PLAYED].tolist(),
        "costs": traffic.costs[:MOST_PLAYED].tolist() if traffic.costs is not None else 1,
        "shared": simulation.shared,
    }
    return page(f"ratekeeper: {traffic.name}", body, about, calls, first)


LEGEND = "<span>admitted</span><span>refused</span>"
FIGURES_MEAN = (
    "Worst window: the most that one key was admitted within any one period, as a multiple of the limit. "
    "Worst second: the most that all clients together were admitted within any second. "
    "Longest wait: the longest delay of a call in a leaky bucket. "
    "Shut out: the longest time from a client's first refusal to its next admission. "
    "Differs from a sliding log: an exact log with the same history would have decided otherwise; "
    "+ was admitted where the log refuses, − was refused where it admits. "
    "Fairness: 1 if each client got its fair share."
)


def replay_page(replay: Replay) -> str:
    hit = replay.calm_clients_refused
    logs = ", ".join(printable(log.rpartition("/")[2]) for log in replay.logs)
    body = [
        f"<h1>{headline(replay)}</h1>",
        f'<p class="quiet">{escape(logs)}: {plural(replay.requests, "request")} by '
        f'{plural(replay.clients, "client")}, {time_range(replay)}. <a href="#play">Try another limit</a> below.</p>',
        '<div class="cards">',
        card(f"{replay.refused:,}", f"requests would be refused, {percent_of(replay.refused, replay.requests)} of all",
             "bad"),
        card(f"{replay.clients_refused:,}", f"clients would be refused at least once, "
             f"{percent_of(replay.clients_refused, replay.clients)} of {replay.clients:,}", "bad"),
        card(percent_of(hit, replay.calm_clients), f"of the calmest 99 % of clients would be refused at least once: "
             f"{hit:,} of {replay.calm_clients:,}. These are mostly people.", "bad" if hit else "good"),
        card(busiest_share(replay), "of the refusals would go to the busiest 1 % of clients", "good"),
        "</div>",
        *[f'<p class="quiet">{escape(line[:1].upper() + line[1:])}</p>' for line in notes(replay)],
        "<h2>Over time</h2>",
        f"<figure>{timeline(replay)}"
        f'<figcaption class="legend">{LEGEND}</figcaption></figure>',
        "<h2>Which rules refuse?</h2>",
        table(
            ["rule", "limit", "mode", "requests", "refused", "clients refused", "in shadow", "longest wait"],
            [
                [
                    rule.rule, rule.limit, rule.mode, f"{rule.asked:,}",
                    f"{rule.refused:,} ({percent_of(rule.refused, rule.asked)})", f"{rule.clients_refused:,}",
                    f"{rule.refused_in_shadow:,}",
                    "forever" if rule.longest_wait is None else duration(rule.longest_wait),
                ]
                for rule in replay.rules
            ],
            text=3,
        ),
        "<h2>Which clients are refused: people or abusers?</h2>",
        "<p>Clients are ranked by their busiest minute. A good limit refuses clients at the top, not the bottom.</p>",
        f"<figure>{rank_bars(replay.ranks)}</figure>",
        *clients_table("The most refused clients", replay.top_refused),
        *paths_table("The most refused paths", replay.top_refused_paths),
        *suggestion_charts(replay),
        *comparison_part(replay.comparison),
        *clients_table("The busiest clients", replay.top_clients),
        *paths_table("The busiest paths", replay.top_paths),
    ]  # fmt: skip
    played = replay.played
    start = played.times[0] if played.times else 0
    about = (
        f"This page decides the busiest stretch of the log, {plural(len(played.times), 'request')}, again while you "
        f"move the sliders, each request as the rule {printable(played.rule)} counts it. "
        "Tick the box to give all clients one counter."
    )
    calls = {
        **in_steps([at - start for at in played.times], start),
        "who": played.who,
        "costs": played.cost,
        "maxDelay": played.max_delay,
        "shared": False,
    }
    return page("ratekeeper: replay", body, about, calls, first_limit(played.limit))


def headline(replay: Replay) -> str:
    """Give the result in one sentence."""
    if not replay.requests:
        return "This log has no requests"
    if not replay.refused:
        return "These rules would have refused no request"
    if not replay.calm_clients_refused:
        return "These rules would have refused only the busiest clients"
    hit = percent_of(replay.calm_clients_refused, replay.calm_clients)
    return f"These rules would have refused {hit} of ordinary clients at least once"


def busiest_share(replay: Replay) -> str:
    return percent_of(sum(rank.refused for rank in replay.ranks[:2]), replay.refused) if replay.refused else "-"


def card(figure: str, text: str, kind: str) -> str:
    return f'<div class="card {kind}"><b>{escape(figure)}</b>{escape(text)}</div>'


def timeline(replay: Replay) -> str:
    length = replay.bin_seconds * len(replay.asked_in_bin)
    ticks = time_ticks(length, datetime.fromisoformat(replay.bins_at)) if replay.asked_in_bin else []
    return stacked_bars(replay.admitted_in_bin, replay.refused_in_bin, ticks, max(replay.asked_in_bin, default=1))


def time_range(replay: Replay) -> str:
    """``1995-08-01 00:00:01 to 03:44:40 UTC``."""
    if not replay.requests:
        return "at no time"
    first, last = (stamp.rstrip("Z").split("T") for stamp in (replay.first_at, replay.last_at))
    until = last[-1:] if first[0] == last[0] else last
    return f"{' '.join(first)} to {' '.join(until)} UTC"


def short_time(stamp: str | None) -> str:
    """``2026-03-01T12:00:11Z`` -> ``Mar 01, 12:00:11``."""
    return datetime.fromisoformat(stamp).strftime("%b %d, %H:%M:%S") if stamp else "-"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1, long: int = -1) -> str:
    """Draw a table; the first ``text`` columns are words, and column ``long`` may wrap."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [("text" if place < text else "") + (" long" if place == long else "") for place in range(len(row))]
        html = [f'<{tag} class="{kind}">{escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True)]
        return f"<tr>{''.join(html)}</tr>"

    lines = [cells("td", [printable(cell, 120) for cell in row]) for row in rows]
    kind = ' class="wide"' if len(head) > WIDE else ""
    content = f"<thead>{cells('th', head)}</thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table{kind}>{content}</table></div>'


def clients_table(title: str, clients: Sequence[ClientOutcome]) -> list[str]:
    if not clients:
        return []
    rows = [
        [
            client.client, " ".join(client.rules) or "-", f"{client.requests:,}", f"{client.busiest_minute:,}",
            f"{client.refused:,} ({percent_of(client.refused, client.requests)})", duration(client.longest_refused),
            short_time(client.first_refused_at), short_time(client.last_refused_at),
        ]
        for client in clients
    ]  # fmt: skip
    head = [
        *("client", "refused by", "requests", "busiest minute", "refused", "longest stretch"),
        *("first refused", "last refused"),
    ]
    return [f"<h2>{escape(title)}</h2>", table(head, rows, text=2)]


def paths_table(title: str, paths: Sequence[PathOutcome]) -> list[str]:
    if not paths:
        return []
    rows = [
        [path.path, f"{path.requests:,}", f"{path.refused:,} ({percent_of(path.refused, path.requests)})"]
        for path in paths
    ]  # fmt: skip
    return [f"<h2>{escape(title)}</h2>", table(["path", "requests", "refused"], rows, long=0)]


def suggestion_charts(replay: Replay) -> list[str]:
    if not replay.suggestions:
        return []
    lines = [
        f"<h2>Which limit refuses at most {percent(replay.suggestions[0].share)} of clients?</h2>",
        "<p>The share of clients that each limit, on its own, would refuse at least once, by its count. "
        "Red: the current limit. Green: the suggested one.</p>",
    ]
    for suggestion in replay.suggestions:
        caption = (
            f"<b>{escape(suggestion.rule)}</b>: <code>{escape(suggestion.now)}</code> refuses "
            f"{suggestion.refused_now:,} of {plural(suggestion.clients, 'client')}; "
            f"<code>{escape(suggestion.suggested)}</code> refuses {suggestion.refused_then:,}."
        )
        now, then = (parse_limits(text) for text in (suggestion.now, suggestion.suggested))
        chart = curve(suggestion.curve, suggestion.clients, now.count, then.count)  # type: ignore[union-attr]
        lines.append(f"<figure>{chart}<figcaption>{caption}</figcaption></figure>")
    return lines


def comparison_part(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    lines = [
        "<h2>What would change</h2>",
        '<div class="cards">',
        card(f"{comparison.newly_refused:,}",
             f"requests newly refused, from {plural(comparison.clients_newly_refused, 'client')}", "bad"),
        card(f"{comparison.newly_allowed:,}",
             f"requests newly allowed, from {plural(comparison.clients_newly_allowed, 'client')}", "good"),
        card(f"{comparison.refused_by_both:,}", "refused as before", ""),
        card(f"{comparison.allowed_by_both:,}", "allowed as before", ""),
        "</div>",
    ]  # fmt: skip
    for title, counts in (
        ("newly refused", comparison.newly_refused_clients),
        ("newly allowed", comparison.newly_allowed_clients),
        ("newly refused on", comparison.newly_refused_paths),
        ("newly allowed on", comparison.newly_allowed_paths),
    ):
        if counts:
            lines.append(table([title, "requests"], [[name, f"{count:,}"] for name, count in counts[:10]], long=0))
    return lines


def first_limit(text: str) -> Limit:
    """Return the first of the limits in ``text``: the sliders start there."""
    try:
        limits = parse_limits([part.rpartition(": ")[2].strip() for part in text.replace(";", ",").split(",")])
    except InvalidInput:
        limits = Limit(100, 60)
    first = limits.parts[0]
    if first.is_unlimited or first.is_leased:
        first = Limit(100, 60)
    return first


def calendars(calls: dict[str, Any], timezone: str) -> dict[str, Any]:
    """For each unit of the calendar: the windows that the calls lie in, as their first number and their edges."""
    first, last = calls["origin"], calls["origin"] + sum(calls["steps"])
    found = {}
    for unit in UNITS:
        calendar = calendar_of(unit, timezone, "timezone")
        start = calendar.index(first)
        edges = [calendar.start(number) for number in range(start, calendar.index(last) + 2)]
        found[unit] = {"first": start, "edges": edges}
    return found


def in_steps(times: list[int], origin: int) -> dict[str, Any]:
    """Times for the page: the instant of time 0, and differences, because these are shorter."""
    return {"origin": origin, "steps": [after - before for before, after in zip([0, *times], times, strict=False)]}


def page(title: str, body: list[str], about: str, calls: dict[str, Any], limit: Limit) -> str:
    timezone = limit.timezone or "UTC"
    played = {
        **calls,
        "count": limit.count,
        "burst": limit.burst,
        "micros": limit.micros,
        "slices": limit.slices,
        "period": limit.period_name,
        "timezone": timezone,
        "calendars": calendars(calls, timezone),
    }
    parts = {
        "title": escape(title),
        "css": asset("report.css"),
        "body": "\n".join(body),
        "about_play": escape(about),
        "footer": f"Made by ratekeeper {__version__}. This page makes the same decisions as the library.",
        "played": json.dumps(played).replace("<", "\\u003c"),
        "rules_js": asset("rules.js"),
        "decide_js": asset("decide.js").replace('"use strict";', ""),
        "play_js": asset("play.js").replace('"use strict";', ""),
    }
    # Each part is filled in once, from left to right: a part may itself contain "{body}", from a log.
    rest = asset("report.html")
    pieces = []
    for name, text in parts.items():
        before, _, rest = rest.partition("{" + name + "}")
        pieces += [before, text]
    return "".join([*pieces, rest])


def asset(name: str) -> str:
    return files("ratekeeper.lab").joinpath("page", name).read_text("utf-8")

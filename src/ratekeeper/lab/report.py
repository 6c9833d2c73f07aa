"""A report in one HTML file: readable by whoever decides, and playable; it asks no other server for anything.

Whatever comes from a log is escaped: clients write what they like.
"""

from __future__ import annotations

import json
from datetime import datetime
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ratekeeper.algorithms import BUCKETS
from ratekeeper.errors import InvalidInput
from ratekeeper.lab.files import writing
from ratekeeper.lab.replay_text import clean, notes, share
from ratekeeper.lab.simulate import under
from ratekeeper.lab.svg import curve, ranks, stacked, ticks_of
from ratekeeper.lab.text import LANE_HEAD, counted, duration, lane_cells, percent
from ratekeeper.limit import Limit, parse_limits
from ratekeeper.units import format_period
from ratekeeper.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from ratekeeper.lab.compare import Comparison
    from ratekeeper.lab.outcome import ClientOutcome, PathOutcome, Replay
    from ratekeeper.lab.simulate import Simulation

MOST_PLAYED = 20_000
WIDE = 9  # columns; a table of more is set smaller


def write_simulation(simulation: Simulation, path: str | Path) -> None:
    """Write the report of a simulation."""
    with writing(path) as file:
        file.write(simulation_page(simulation))


def write_replay(replay: Replay, path: str | Path) -> None:
    """Write the report of a replay."""
    with writing(path) as file:
        file.write(replay_page(replay))


def simulation_page(simulation: Simulation) -> str:
    traffic = simulation.traffic
    who = "counted as one" if simulation.shared else "each for itself"
    seed = f", seed {traffic.seed}" if traffic.seed is not None else ""
    body = [
        f"<h1>{escape(traffic.name)}: {counted(len(simulation.lanes), 'limit')} under the same calls</h1>",
        f'<p class="quiet">{counted(len(traffic), "call")} by {counted(len(traffic.clients), "client")}, {who}, '
        f"in {duration(traffic.span / 1e6)}{seed}.</p>",
        "<h2>Side by side</h2>",
        table(LANE_HEAD, [lane_cells(lane) for lane in simulation.lanes]),
        f'<p class="quiet">{escape(LANES_MEAN)}</p>',
        "<h2>Over time</h2>",
        f'<p class="legend quiet">{LEGEND}</p>',
    ]
    most = max((max(lane.asked_in_bin) for lane in simulation.lanes), default=1)
    for lane in simulation.lanes:
        length = lane.bin_seconds * len(lane.asked_in_bin)
        drawn = stacked(lane.admitted_in_bin, lane.refused_in_bin, ticks_of(length), most)
        caption = f"<b>{escape(lane_cells(lane)[0])}</b>: {lane.admitted:,} admitted, {lane.refused:,} refused"
        body.append(f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>")
    # A bucket says most: it has a burst.
    lanes = sorted(simulation.lanes, key=lambda lane: lane.algorithm not in BUCKETS)
    first = first_limit(lanes[0].limit)
    about = "The same calls, decided again in this page as you drag."
    if traffic.retry is not None:
        about += " Retries are left out here: in this part nobody who is refused comes back."
    if len(traffic) > MOST_PLAYED:
        about += f" The first {MOST_PLAYED:,} calls are played."
    return page(
        f"ratekeeper: {traffic.name}",
        body,
        about,
        traffic.times[:MOST_PLAYED].tolist(),
        traffic.who[:MOST_PLAYED].tolist(),
        first,
        simulation.shared,
    )


LEGEND = "<span>admitted</span><span>refused</span>"
LANES_MEAN = (
    "Worst window: the most that one key got into any stretch of one period, as a multiple of the limit. "
    "Worst second: of all clients together. Longest wait: for a turn in a leaky bucket. "
    "Shut out: from a first refusal to the next admission. "
    "Wrongly: where an exact sliding log with the same past would have decided otherwise. "
    "Fairness: 1 if everybody got its fair share."
)


def replay_page(found: Replay) -> str:
    hit = found.calm_clients_refused
    logs = ", ".join(clean(log.rpartition("/")[2]) for log in found.logs)
    body = [
        f"<h1>{headline(found)}</h1>",
        f'<p class="quiet">{escape(logs)}: {counted(found.requests, "request")} by '
        f'{counted(found.clients, "client")}, {spanned(found)}. <a href="#play">Try another limit</a> below.</p>',
        '<div class="cards">',
        card(f"{found.refused:,}", f"requests would be refused, {share(found.refused, found.requests)} of all", "bad"),
        card(f"{found.clients_refused:,}", f"clients would ever be refused, "
             f"{share(found.clients_refused, found.clients)} of {found.clients:,}", "bad"),
        card(share(hit, found.calm_clients), f"of the calm 99 % of clients are ever hit: {hit:,} of "
             f"{found.calm_clients:,}. These are mostly people.", "bad" if hit else "good"),
        card(busiest_share(found), "of the refusals fall on the busiest 1 % of clients", "good"),
        "</div>",
        *[f'<p class="quiet">{escape(line[:1].upper() + line[1:])}</p>' for line in notes(found)],
        "<h2>Over time</h2>",
        f"<figure>{timeline(found)}"
        f'<figcaption class="legend">{LEGEND}</figcaption></figure>',
        "<h2>Which rule refuses</h2>",
        table(
            ["rule", "limit", "mode", "requests", "refused", "clients refused", "in shadow", "longest wait"],
            [
                [
                    rule.rule, rule.limit, rule.mode, f"{rule.asked:,}",
                    f"{rule.refused:,} ({share(rule.refused, rule.asked)})", f"{rule.clients_refused:,}",
                    f"{rule.refused_in_shadow:,}",
                    "for ever" if rule.longest_wait is None else duration(rule.longest_wait),
                ]
                for rule in found.rules
            ],
            text=3,
        ),
        "<h2>Who is hit: people or abusers?</h2>",
        "<p>Clients are ranked by their busiest minute. A good limit is felt at the top and not at the bottom.</p>",
        f"<figure>{ranks(found.ranks)}</figure>",
        *clients_table("The most refused clients", found.top_refused),
        *paths_table("The most refused paths", found.top_refused_paths),
        *suggestions(found),
        *compared(found.comparison),
        *clients_table("The busiest clients", found.top_clients),
        *paths_table("The busiest paths", found.top_paths),
    ]  # fmt: skip
    times, who, _ = found.played
    about = (
        f"The busiest stretch of the log, {len(times):,} requests, decided again in this page as you drag; "
        "each client is counted for itself, unless you say otherwise."
    )
    limits = [rule.limit for rule in found.rules if rule.limit != "none"]
    return page("ratekeeper: replay", body, about, times, who, first_limit(limits[0] if limits else ""), False)


def headline(found: Replay) -> str:
    """The answer in a sentence."""
    if not found.requests:
        return "There is nothing in this log"
    if not found.refused:
        return "These rules would have refused nobody"
    if not found.calm_clients_refused:
        return "These rules would have refused only the busiest clients"
    hit = share(found.calm_clients_refused, found.calm_clients)
    return f"These rules would have hit {hit} of ordinary clients"


def busiest_share(found: Replay) -> str:
    return share(sum(rank.refused for rank in found.ranks[:2]), found.refused) if found.refused else "-"


def card(figure: str, text: str, kind: str) -> str:
    return f'<div class="card {kind}"><b>{escape(figure)}</b>{escape(text)}</div>'


def timeline(found: Replay) -> str:
    admitted = [asked - lost for asked, lost in zip(found.asked_in_bin, found.refused_in_bin, strict=True)]
    length = found.bin_seconds * len(admitted)
    ticks = ticks_of(length, datetime.fromisoformat(found.bins_at)) if admitted else []
    return stacked(admitted, found.refused_in_bin, ticks, max(found.asked_in_bin, default=1))


def spanned(found: Replay) -> str:
    """``1995-08-01 00:00:01 to 03:44:40 UTC``."""
    if not found.requests:
        return "at no time"
    first, last = (stamp.rstrip("Z").split("T") for stamp in (found.first_at, found.last_at))
    until = last[-1:] if first[0] == last[0] else last
    return f"{' '.join(first)} to {' '.join(until)} UTC"


def moment(stamp: str | None) -> str:
    """``2026-03-01T12:00:11Z`` -> ``Mar 01, 12:00:11``: short, as there are many."""
    return datetime.fromisoformat(stamp).strftime("%b %d, %H:%M:%S") if stamp else "-"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1, long: int = -1) -> str:
    """A table; the first ``text`` columns are words, and one may be long."""

    def cells(tag: str, row: Sequence[str]) -> str:
        kinds = [("text" if place < text else "") + (" long" if place == long else "") for place in range(len(row))]
        made = [f'<{tag} class="{kind}">{escape(cell)}</{tag}>' for kind, cell in zip(kinds, row, strict=True)]
        return f"<tr>{''.join(made)}</tr>"

    lines = [cells("td", [clean(cell, 120) for cell in row]) for row in rows]
    kind = ' class="wide"' if len(head) > WIDE else ""
    inside = f"<thead>{cells('th', head)}</thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table{kind}>{inside}</table></div>'


def clients_table(title: str, clients: Sequence[ClientOutcome]) -> list[str]:
    if not clients:
        return []
    rows = [
        [
            one.client, " ".join(one.rules) or "-", f"{one.requests:,}", f"{one.busiest_minute:,}",
            f"{one.refused:,} ({share(one.refused, one.requests)})", duration(one.longest_refused),
            moment(one.first_refused_at), moment(one.last_refused_at),
        ]
        for one in clients
    ]  # fmt: skip
    head = [
        *("client", "refused by", "requests", "busiest minute", "refused", "longest stretch"),
        *("first refused", "last refused"),
    ]
    return [f"<h2>{escape(title)}</h2>", table(head, rows, text=2)]


def paths_table(title: str, paths: Sequence[PathOutcome]) -> list[str]:
    if not paths:
        return []
    rows = [[one.path, f"{one.requests:,}", f"{one.refused:,} ({share(one.refused, one.requests)})"] for one in paths]
    return [f"<h2>{escape(title)}</h2>", table(["path", "requests", "refused"], rows, long=0)]


def suggestions(found: Replay) -> list[str]:
    if not found.suggestions:
        return []
    lines = [
        f"<h2>Which limit refuses at most {percent(found.suggestions[0].share)} of clients?</h2>",
        "<p>For each limit, looked at by itself: the share of its clients that it would ever refuse, "
        "by how high it is set. Red: as it stands; green: as suggested.</p>",
    ]
    for one in found.suggestions:
        caption = (
            f"<b>{escape(one.rule)}</b>: <code>{escape(one.now)}</code> refuses {one.refused_now:,} "
            f"of {one.clients:,}; <code>{escape(one.suggested)}</code> refuses {one.refused_then:,}."
        )
        now, then = (parse_limits(text) for text in (one.now, one.suggested))
        drawn = curve(one.curve, one.clients, now.count, then.count)  # type: ignore[union-attr]
        lines.append(f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>")
    return lines


def compared(comparison: Comparison | None) -> list[str]:
    if comparison is None:
        return []
    lines = [
        "<h2>What would change</h2>",
        '<div class="cards">',
        card(f"{comparison.newly_refused:,}",
             f"requests newly refused, of {counted(comparison.clients_newly_refused, 'client')}", "bad"),
        card(f"{comparison.newly_allowed:,}",
             f"requests newly allowed, of {counted(comparison.clients_newly_allowed, 'client')}", "good"),
        card(f"{comparison.refused_by_both:,}", "refused as before", ""),
        card(f"{comparison.allowed_by_both:,}", "allowed as before", ""),
        "</div>",
    ]  # fmt: skip
    for title, pairs in (
        ("newly refused", comparison.newly_refused_clients),
        ("newly allowed", comparison.newly_allowed_clients),
        ("newly refused on", comparison.newly_refused_paths),
        ("newly allowed on", comparison.newly_allowed_paths),
    ):
        if pairs:
            lines.append(table([title, "requests"], [[name, f"{count:,}"] for name, count in pairs[:10]], long=0))
    return lines


def first_limit(text: str) -> Limit:
    """The limit that the sliders start at: the first of those given."""
    try:
        found = parse_limits([part.rpartition(": ")[2].strip() for part in text.replace(";", ",").split(",")])
    except InvalidInput:
        found = Limit(100, 60)
    first = found.parts[0]
    if first.is_unlimited or first.is_leased:
        first = Limit(100, 60)
    return under(first, "gcra")


def page(title: str, body: list[str], about: str, times: list[int], who: list[int], limit: Limit, shared: bool) -> str:
    steps = [after - before for before, after in zip([0, *times], times, strict=False)]
    played: dict[str, Any] = {
        "steps": steps,
        "who": who,
        "count": limit.count,
        "burst": limit.burst,
        "micros": limit.micros,
        "period": format_period(limit.micros),
        "shared": shared,
    }
    parts = {
        "title": escape(title),
        "css": asset("report.css"),
        "body": "\n".join(body),
        "about_play": escape(about),
        "footer": f"Made by ratekeeper {__version__}. The rules in this page are those of production.",
        "played": json.dumps(played).replace("<", "\\u003c"),
        "rules_js": asset("rules.js"),
        "play_js": asset("play.js").replace('"use strict";', ""),
    }
    made = asset("report.html")
    before, _, rest = made.partition("{title}")
    pieces = [before]
    for name, text in parts.items():
        if name != "title":
            between, _, rest = rest.partition("{" + name + "}")
            pieces.append(between)
        pieces.append(text)
    return "".join([*pieces, rest])


def asset(name: str) -> str:
    return files("ratekeeper.lab").joinpath("page", name).read_text("utf-8")

"""A replay for the terminal: what a person wants to know first, first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratekeeper.lab.text import BLOCKS, DIM, GREEN, RED, bars, coloured, columns, counted, duration, percent, squeezed

if TYPE_CHECKING:
    from ratekeeper.lab.compare import Comparison
    from ratekeeper.lab.outcome import Replay
    from ratekeeper.lab.suggest import Suggestion

WIDEST = 60


def clean(text: str, most: int = WIDEST) -> str:
    """Text from a log, as it may be shown: clients write what they like, also commands to a terminal."""
    shown = "".join(letter if letter.isprintable() else "·" for letter in text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def share(part: int, whole: int) -> str:
    return percent(part / whole if whole else 0.0)


def replay_as_text(replay: Replay, width: int = 100, colours: bool = False, heights: str = BLOCKS) -> str:
    """The outcome of a replay as text."""
    green, red, dim = (GREEN, RED, DIM) if colours else ("", "", "")
    lines = [
        f"{counted(replay.requests, 'request')} by {counted(replay.clients, 'client')}, "
        f"{replay.first_at} to {replay.last_at}"
        if replay.requests
        else "there is no request in what was read",
        f"{replay.refused:,} would be refused ({share(replay.refused, replay.requests)}), "
        f"of {counted(replay.clients_refused, 'client')} ({share(replay.clients_refused, replay.clients)})",
    ]
    if replay.calm_clients:
        lines.append(
            f"of the calm 99 % of clients, {replay.calm_clients_refused:,} of {replay.calm_clients:,} are ever refused "
            f"({share(replay.calm_clients_refused, replay.calm_clients)})"
        )
    lines += [coloured(line, dim) for line in notes(replay)]
    room = width - len("refused  ")
    most = max(squeezed(replay.asked_in_bin, room), default=0)
    lines += [
        "",
        f"asked    {bars(replay.asked_in_bin, room, most, green, heights)}",
        f"refused  {bars(replay.refused_in_bin, room, most, red, heights)}",
        "",
        *columns(
            ["rule", "limit", "mode", "asked", "refused", "clients", "in\nshadow", "longest\nwait"],
            [
                [
                    clean(rule.rule), clean(rule.limit, 40), rule.mode, f"{rule.asked:,}", f"{rule.refused:,}",
                    f"{rule.clients_refused:,}", f"{rule.refused_in_shadow:,}",
                    "for ever" if rule.longest_wait is None else duration(rule.longest_wait),
                ]
                for rule in replay.rules
            ],
            left=3,
        ),
        "",
        *columns(
            ["clients by their\nbusiest minute", "clients", "ever refused", "requests", "refused", "least\na minute"],
            [
                [
                    rank.rank, f"{rank.clients:,}",
                    f"{rank.clients_refused:,} ({share(rank.clients_refused, rank.clients)})",
                    f"{rank.requests:,}", f"{rank.refused:,} ({share(rank.refused, rank.requests)})",
                    f"{rank.least_per_minute:,}",
                ]
                for rank in replay.ranks
            ],
        ),
    ]  # fmt: skip
    if replay.top_refused:
        lines += ["", *refused_clients(replay)]
    if replay.top_refused_paths:
        rows = [[clean(one.path), f"{one.requests:,}", f"{one.refused:,}"] for one in replay.top_refused_paths[:10]]
        lines += ["", *columns(["most refused paths", "requests", "refused"], rows)]
    if replay.suggestions:
        lines += ["", *suggested(replay.suggestions)]
    if replay.comparison is not None:
        lines += ["", *compared(replay.comparison)]
    return "\n".join(line.rstrip() for line in lines)


def notes(replay: Replay) -> list[str]:
    """What a reader must know to believe the figures."""
    found = [f"{clean(one, 200)}; what came before is counted" for one in replay.broken]
    if replay.bad_lines:
        found.append(f"{replay.bad_lines:,} of {replay.lines:,} lines could not be read; for example")
        found += [f"  {line.source}:{line.number}: {line.reason}: {clean(line.text)}" for line in replay.bad_shown]
    if "ignored" in replay.zones:
        found.append("time zones are ignored: with them the lines would run backwards (--zone written believes them)")
    if replay.late_lines:
        found.append(f"{replay.late_lines:,} lines came late by more than 10 s and were counted when they came")
    if replay.set_back:
        times = counted(replay.set_back, "time")
        found.append(f"a clock was set back, {times}: what was written after is told as if it had run on")
    if not replay.exact:
        found.append("there were too many clients or paths to remember all: calm ones were folded together")
    found += [f"rules: {warning}" for warning in replay.warnings]
    return found


def refused_clients(replay: Replay) -> list[str]:
    head = ["most refused clients", "by", "requests", "refused", "busiest\nminute", "first refused at", "longest"]
    rows = [
        [
            clean(one.client, 40), clean(" ".join(one.rules), 30), f"{one.requests:,}", f"{one.refused:,}",
            f"{one.busiest_minute:,}", one.first_refused_at or "", duration(one.longest_refused),
        ]
        for one in replay.top_refused[:10]
    ]  # fmt: skip
    return columns(head, rows, left=2)


def suggested(suggestions: tuple[Suggestion, ...]) -> list[str]:
    title = f"least limit that refuses\nat most {percent(suggestions[0].share)} of clients"
    head = [title, "now", "refuses", "suggested", "refuses"]
    rows = [
        [
            clean(one.rule), one.now, f"{one.refused_now:,} of {one.clients:,}", one.suggested,
            f"{one.refused_then:,} of {one.clients:,}",
        ]
        for one in suggestions
    ]  # fmt: skip
    return columns(head, rows, left=2)


def compared(comparison: Comparison) -> list[str]:
    lines = [
        f"beside the rules before: {counted(comparison.newly_refused, 'request')} of "
        f"{counted(comparison.clients_newly_refused, 'client')} newly refused, "
        f"{comparison.newly_allowed:,} of {comparison.clients_newly_allowed:,} newly allowed",
        f"unchanged: {comparison.allowed_by_both:,} allowed, {comparison.refused_by_both:,} refused",
    ]
    for title, pairs in (
        ("newly refused", comparison.newly_refused_clients),
        ("newly allowed", comparison.newly_allowed_clients),
    ):
        lines += [f"  {title}: {clean(name)} ({count:,})" for name, count in pairs[:5]]
    return lines
